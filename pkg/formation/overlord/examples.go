package overlord

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/agentformation/service/pkg/manifest"
)

// learned is what labelled examples teach: for each word how much more often
// it stands in the examples of one agent than in those of all others (a naive
// Bayes classifier over the words, the small words and the fields of a
// message). It is counted once and takes a few microseconds per example.
type learned struct {
	weights  map[string][]float64 // by feature, one per agent
	examples []manifest.RoutingExample
	holding  map[string][]int // the examples that have a word
}

const (
	// What examples teach counts as much as what agents say of themselves.
	taughtShare = 0.7
	// smoothing is how often a word counts that an agent's examples don't have.
	smoothing = 0.3
	// A word below this weight is no reason worth telling.
	tellingWeight = 0.8
)

// learn counts the words of the examples; without examples it returns nil.
// What it learned about an agent that has none says nothing about that agent.
func learn(examples []manifest.RoutingExample, agents []profile) *learned {
	if len(examples) == 0 {
		return nil
	}
	number := make(map[string]int, len(agents))
	for i := range agents {
		number[agents[i].id] = i
	}
	counts := make(map[string][]float64)
	holding := make(map[string][]int)
	own, all := make([]float64, len(agents)), 0.0
	for at, e := range examples {
		i, ok := number[e.Agent]
		if !ok {
			continue
		}
		for _, f := range listen(e.Message).features {
			holding[f.key] = append(holding[f.key], at)
			if counts[f.key] == nil {
				counts[f.key] = make([]float64, len(agents))
			}
			counts[f.key][i]++
			own[i]++
			all++
		}
	}
	l := &learned{weights: counts, examples: examples, holding: holding}
	spread := smoothing * float64(len(counts))
	for _, c := range counts {
		sum := 0.0
		for _, n := range c {
			sum += n
		}
		for i, n := range c {
			c[i] = 0
			if own[i] > 0 {
				c[i] = math.Log((n+smoothing)/(own[i]+spread)) - math.Log((sum-n+smoothing)/(all-own[i]+spread))
			}
		}
	}
	return l
}

// scores returns what examples say for and against each agent, nil when there
// are none.
func (l *learned) scores(m heardWords) []float64 {
	if l == nil {
		return nil
	}
	var out []float64
	for _, f := range m.features {
		for i, w := range l.weights[f.key] {
			if out == nil {
				out = make([]float64, len(l.weights[f.key]))
			}
			out[i] += taughtShare * w
		}
	}
	return out
}

// reasons returns the words that spoke most for an agent, and whether one of
// all its words is about a subject.
func (l *learned) reasons(agent int, m heardWords) (texts []string, subject bool) {
	type telling struct {
		word   string
		weight float64
	}
	var found []telling
	for _, f := range m.features {
		w := l.weights[f.key]
		if len(w) == 0 || w[agent] < tellingWeight {
			continue
		}
		subject = subject || f.kind == aSubject
		text := f.text
		if f.kind == aField {
			text = "words of " + text
		}
		found = append(found, telling{text, w[agent]})
	}
	slices.SortStableFunc(found, func(a, b telling) int { return cmp.Compare(b.weight, a.weight) })
	for _, t := range found[:min(len(found), maxReasons)] {
		texts = append(texts, t.word)
	}
	return texts, subject
}

// nearest returns the examples that share most with a message, the nearest
// first: those that share at least a word about a subject.
func (l *learned) nearest(message string, most int) []manifest.RoutingExample {
	if l == nil {
		return nil
	}
	score := make(map[int]float64)
	for _, word := range listen(message).subjects {
		have := l.holding[word.stem]
		for _, at := range have {
			score[at] += math.Log(1 + float64(len(l.examples))/float64(len(have)))
		}
	}
	found := slices.SortedFunc(maps.Keys(score), func(a, b int) int { return cmp.Or(cmp.Compare(score[b], score[a]), a-b) })
	var out []manifest.RoutingExample
	for _, at := range found[:min(len(found), most)] {
		out = append(out, l.examples[at])
	}
	return out
}
