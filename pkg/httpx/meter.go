package httpx

import (
	"sync/atomic"
	"time"
)

// meterBounds are the upper ends of a Meter's latency classes: from an answer
// out of memory to a long turn. A constant that Go cannot express.
var meterBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// Meter counts answers and how long they took. The zero Meter is ready; it is
// safe for concurrent use and costs three atomic additions per answer.
type Meter struct {
	classes [6]atomic.Uint64 // by the first digit of the status; 0 is no answer
	buckets [len(meterBounds) + 1]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
}

// Observe counts one answer.
func (m *Meter) Observe(status int, took time.Duration) {
	class := status / 100
	if class < 0 || class >= len(m.classes) {
		class = 0
	}
	m.classes[class].Add(1)
	i := 0
	for i < len(meterBounds) && took > meterBounds[i] {
		i++
	}
	m.buckets[i].Add(1)
	m.sum.Add(int64(took))
}

// MeterReading is what a Meter has counted.
type MeterReading struct {
	// Classes counts by the first digit of the status: Classes[2] are the 2xx.
	// Classes[0] are requests whose client left before an answer.
	Classes [6]uint64
	// Within[i] counts the answers that took at most Bounds[i] seconds.
	Bounds []float64
	Within []uint64
	Count  uint64
	Sum    time.Duration
}

// Read returns the counts. Answers that are counted meanwhile may be in some of
// them only.
func (m *Meter) Read() MeterReading {
	r := MeterReading{
		Bounds: make([]float64, len(meterBounds)), Within: make([]uint64, len(meterBounds)), Sum: time.Duration(m.sum.Load()),
	}
	for i := range m.classes {
		r.Classes[i] = m.classes[i].Load()
	}
	for i := range m.buckets {
		r.Count += m.buckets[i].Load()
		if i < len(meterBounds) {
			r.Bounds[i], r.Within[i] = meterBounds[i].Seconds(), r.Count
		}
	}
	return r
}
