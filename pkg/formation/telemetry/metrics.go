package telemetry

import (
	"bufio"
	"io"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// maxSeries bounds the series of one metric; what comes later counts under
// "other". Names of models and tools come from files and tool servers, but a
// server may change its tools as often as it likes.
const maxSeries = 500

// The upper bounds of the histograms' buckets in seconds.
var (
	turnBuckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	callBuckets = []float64{0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
)

// Metrics counts what turns did since the process began. The zero value is
// ready; nothing is allocated before something is counted. It is safe for
// concurrent use.
//
// It is no client_golang registry on purpose: a formation's process is to stay
// small while it does nothing, and these are six metrics of one writer.
type Metrics struct {
	mu         sync.Mutex // guards the fields that follow
	turns      counters
	turnTime   histograms
	models     counters
	modelTime  histograms
	tokens     counters
	costs      counters
	tools      counters
	toolTime   histograms
	eventsLost float64
}

// labels are the values of a series, in the order of the metric's names.
type labels [3]string

type counters map[labels]float64

type histogram struct {
	buckets []float64 // counts, not cumulative; one more for +Inf
	sum     float64
	count   uint64
}

type histograms map[labels]*histogram

func (c *counters) add(l labels, n float64) {
	if *c == nil {
		*c = make(counters)
	}
	if _, have := (*c)[l]; !have && len(*c) >= maxSeries {
		l = other(l)
	}
	(*c)[l] += n
}

func (h *histograms) observe(l labels, bounds []float64, seconds float64) {
	if *h == nil {
		*h = make(histograms)
	}
	have := (*h)[l]
	if have == nil && len(*h) >= maxSeries {
		l = other(l)
		have = (*h)[l]
	}
	if have == nil {
		have = &histogram{buckets: make([]float64, len(bounds)+1)}
		(*h)[l] = have
	}
	have.buckets[sort.SearchFloat64s(bounds, seconds)]++
	have.sum += seconds
	have.count++
}

// other stands for the series that came too late; how it went is kept.
func other(l labels) labels {
	for i := range l[:len(l)-1] {
		if l[i] != "" {
			l[i] = "other"
		}
	}
	return l
}

// The outcomes of calls.
const (
	outcomeOK    = "ok"
	outcomeError = "error"
	outcomeCache = "cached"
)

// count adds an ended span. It never blocks for long: nothing is done under the
// lock but counting.
func (m *Metrics) count(s *Span) {
	seconds := s.duration.Seconds()
	outcome := outcomeOK
	if s.isError || s.flag(AttrIsError) {
		outcome = outcomeError
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s.kind {
	case KindTurn:
		status := s.text(AttrStatus)
		if status == "" {
			status = outcome
		}
		m.turns.add(labels{status}, 1)
		m.turnTime.observe(labels{}, turnBuckets, seconds)
	case KindModel:
		m.countModel(s, outcome, seconds)
	case KindTool:
		server, tool := s.text(AttrServer), s.text(AttrTool)
		if tool == "" {
			tool = s.name
		}
		m.tools.add(labels{server, tool, outcome}, 1)
		m.toolTime.observe(labels{server}, callBuckets, seconds)
	default:
	}
}

func (m *Metrics) countModel(s *Span, outcome string, seconds float64) {
	provider, model := s.text(AttrProvider), s.text(AttrModel)
	if s.flag(AttrCached) {
		m.models.add(labels{provider, model, outcomeCache}, 1)
		return
	}
	m.models.add(labels{provider, model, outcome}, 1)
	m.modelTime.observe(labels{provider, model}, callBuckets, seconds)
	if t, ok := s.value(AttrTokens).(Tokens); ok {
		for _, part := range [...]struct {
			direction string
			n         int
		}{{"input", t.Input}, {"output", t.Output}, {"cached", t.Cached}} {
			if part.n > 0 {
				m.tokens.add(labels{provider, model, part.direction}, float64(part.n))
			}
		}
	}
	if c, _ := s.value(AttrCost).(*Cost); c != nil {
		m.costs.add(labels{provider, model, c.Currency}, c.Amount)
	}
}

// lose counts events that found no room at an observer.
func (m *Metrics) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.eventsLost++
}

// Write writes everything in the text format of Prometheus.
func (m *Metrics) Write(to io.Writer) error {
	if m == nil {
		return nil
	}
	w := &exposition{w: bufio.NewWriter(to)}
	m.mu.Lock()
	defer m.mu.Unlock()
	w.counters("formation_turns_total", "Turns that ended, by how.", []string{"status"}, m.turns)
	w.histograms("formation_turn_duration_seconds", "Time from the beginning of a turn to its end.", nil, turnBuckets, m.turnTime)
	w.counters("formation_model_calls_total", "Calls of models, with their retries, by outcome; cached ones asked no model.",
		[]string{"provider", "model", "outcome"}, m.models)
	w.histograms("formation_model_call_duration_seconds", "Time of calls of models.", []string{"provider", "model"}, callBuckets, m.modelTime)
	w.counters("formation_tokens_total", "Tokens by direction; cached ones are part of input.", []string{"provider", "model", "direction"}, m.tokens)
	w.counters("formation_cost_total", "What priced models cost.", []string{"provider", "model", "currency"}, m.costs)
	w.counters("formation_tool_calls_total", "Calls of tools by outcome.", []string{"server", "tool", "outcome"}, m.tools)
	w.histograms("formation_tool_call_duration_seconds", "Time of calls of tools.", []string{"server"}, callBuckets, m.toolTime)
	w.counters("formation_observer_events_lost_total", "Events that found no room at a slow observer.", nil, counters{{}: m.eventsLost})
	// The name that the client libraries of Prometheus give it.
	w.head("go_goroutines", "Goroutines that exist now.", "gauge")
	w.put("go_goroutines ", strconv.Itoa(runtime.NumGoroutine()), "\n")
	return w.w.Flush()
}

// exposition writes the text format. Errors stick to the writer until Flush.
type exposition struct {
	w *bufio.Writer
}

func (e *exposition) head(name, help, typ string) {
	e.put("# HELP ", name, " ", help, "\n# TYPE ", name, " ", typ, "\n")
}

func (e *exposition) put(parts ...string) {
	for _, p := range parts {
		_, _ = e.w.WriteString(p) // Flush tells
	}
}

func (e *exposition) counters(name, help string, names []string, c counters) {
	if len(c) == 0 {
		return
	}
	e.head(name, help, "counter")
	for _, l := range sorted(c) {
		e.put(name)
		e.labels(names, l, "")
		e.put(" ", number(c[l]), "\n")
	}
}

func (e *exposition) histograms(name, help string, names []string, bounds []float64, h histograms) {
	if len(h) == 0 {
		return
	}
	e.head(name, help, "histogram")
	for _, l := range sorted(h) {
		sum := 0.0
		for i, n := range h[l].buckets {
			sum += n
			le := "+Inf"
			if i < len(bounds) {
				le = number(bounds[i])
			}
			e.put(name, "_bucket")
			e.labels(names, l, le)
			e.put(" ", number(sum), "\n")
		}
		e.put(name, "_sum")
		e.labels(names, l, "")
		e.put(" ", number(h[l].sum), "\n", name, "_count")
		e.labels(names, l, "")
		e.put(" ", strconv.FormatUint(h[l].count, 10), "\n")
	}
}

// escape is how values of labels are written.
var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (e *exposition) labels(names []string, l labels, le string) {
	if len(names) == 0 && le == "" {
		return
	}
	mark := "{"
	for i, name := range names {
		e.put(mark, name, `="`, escape.Replace(strings.ToValidUTF8(l[i], "\ufffd")), `"`)
		mark = ","
	}
	if le != "" {
		e.put(mark, `le="`, le, `"`)
	}
	e.put("}")
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func sorted[V any](m map[labels]V) []labels {
	keys := make([]labels, 0, len(m))
	for l := range m {
		keys = append(keys, l)
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i], keys[j]
		for k := range a {
			if a[k] != b[k] {
				return a[k] < b[k]
			}
		}
		return false
	})
	return keys
}
