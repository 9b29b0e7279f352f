package embedtest

import "math"

// Hidden computes the last hidden state of the tokens, one row per token, the
// plain way: loops in double precision, one text, no padding, no mask.
func (m *Bert) Hidden(ids []int) [][]float64 {
	x := make([][]float64, len(ids))
	for t, id := range ids {
		x[t] = make([]float64, m.Size.Hidden)
		for d := range x[t] {
			x[t][d] = float64(m.word[id*m.Size.Hidden+d]) + float64(m.kind[d]) + float64(m.pos[t*m.Size.Hidden+d])
		}
		x[t] = m.norm.apply(x[t])
	}
	for _, l := range m.layers {
		x = m.apply(l, x)
	}
	return x
}

func (m *Bert) apply(l layer, x [][]float64) [][]float64 {
	n, size := len(x), m.Size.Hidden/m.Size.Heads
	q, k, v := l.query.all(x), l.key.all(x), l.value.all(x)
	mixed := make([][]float64, n)
	for t := range mixed {
		mixed[t] = make([]float64, m.Size.Hidden)
		for h := range m.Size.Heads {
			from, to := h*size, (h+1)*size
			weights := make([]float64, n)
			sum := 0.0
			for s := range n {
				weights[s] = math.Exp(dot(q[t][from:to], k[s][from:to]) / math.Sqrt(float64(size)))
				sum += weights[s]
			}
			for s := range n {
				for d := from; d < to; d++ {
					mixed[t][d] += weights[s] / sum * v[s][d]
				}
			}
		}
	}
	out := make([][]float64, n)
	for t, a := range l.out.all(mixed) {
		y := l.attn.apply(add(x[t], a))
		inner := l.up.apply(y)
		for i, u := range inner {
			inner[i] = u / 2 * (1 + math.Erf(u/math.Sqrt2))
		}
		out[t] = l.ffn.apply(add(y, l.down.apply(inner)))
	}
	return out
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func add(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] + b[i]
	}
	return out
}

func (l linear) apply(x []float64) []float64 {
	out := make([]float64, len(l.b))
	for j := range out {
		out[j] = float64(l.b[j])
		for i, v := range x {
			out[j] += v * float64(l.w[i*len(out)+j])
		}
	}
	return out
}

func (l linear) all(rows [][]float64) [][]float64 {
	out := make([][]float64, len(rows))
	for i, row := range rows {
		out[i] = l.apply(row)
	}
	return out
}

func (n norm) apply(x []float64) []float64 {
	mean, variance := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (v-mean)/math.Sqrt(variance+epsilon)*float64(n.scale[i]) + float64(n.bias[i])
	}
	return out
}

// Mean is the vector of a text by mean pooling and normalisation, which is what
// the configuration written by Repo asks for.
func (m *Bert) Mean(ids []int) []float64 {
	rows := m.Hidden(ids)
	out := make([]float64, m.Size.Hidden)
	for _, row := range rows {
		for d, v := range row {
			out[d] += v / float64(len(rows))
		}
	}
	return Unit(out)
}

// Unit scales v to length one.
func Unit(v []float64) []float64 {
	size := math.Sqrt(dot(v, v))
	out := make([]float64, len(v))
	for i := range v {
		out[i] = v[i] / size
	}
	return out
}
