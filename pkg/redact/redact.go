// Package redact takes secrets and personal data out of text before it is
// written down: the values it was told, in every form in which encoders write
// them, and what has the shape of a key, a token, a password, a credential in
// an address, an e-mail address, a phone, social security or card number
// (reference runtime.md 7.3).
//
// It promises that a JSON record stays one, that text without a secret passes
// without an allocation, and that what was secret once stays secret until the
// process ends. Both programs put it in front of their logs.
package redact

import (
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// The limits of what is known by value.
const (
	// MinValue is the shortest value in bytes that is recognised by itself:
	// shorter ones are found everywhere by chance.
	MinValue = 6
	// MaxValues is how many values are known at most; over it, the oldest go.
	MaxValues = 20_000
	// MaxPassing is how many values of AddPassing are known at most; over it,
	// those that were told longest ago go.
	MaxPassing = 2000
)

// Redactor knows secrets. It is safe for concurrent use.
type Redactor struct {
	known atomic.Pointer[values]

	mu    sync.Mutex // guards the fields that follow
	order []string   // oldest first
	have  map[string]bool
	// passing has the values of AddPassing, each with when it was told last.
	passing map[string]uint64
	told    uint64
}

// New returns a Redactor that knows shapes and no values.
func New() *Redactor {
	r := &Redactor{have: make(map[string]bool), passing: make(map[string]uint64)}
	r.known.Store(&values{})
	return r
}

// Add tells values that must not be written from now on. Those shorter than
// MinValue are not taken. They are never forgotten: a key that was replaced is
// still accepted somewhere.
func (r *Redactor) Add(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for _, s := range secrets {
		for _, part := range parts(s) {
			if !r.have[part] {
				r.have[part], changed = true, true
				r.order = append(r.order, part)
			}
		}
	}
	if !changed {
		return
	}
	if over := len(r.order) - MaxValues; over > 0 {
		for _, old := range r.order[:over] {
			delete(r.have, old)
		}
		r.order = slices.Clone(r.order[over:])
	}
	r.rebuild()
}

// AddPassing is Add for values that are told at each use, such as those of
// users: many of them never push out those of Add.
func (r *Redactor) AddPassing(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for _, s := range secrets {
		for _, part := range parts(s) {
			if r.passing[part] == 0 && !r.have[part] {
				changed = true
			}
			r.told++
			r.passing[part] = r.told
		}
	}
	if !changed {
		return
	}
	// A tenth goes at once, so that not every value costs a search.
	if len(r.passing) > MaxPassing {
		times := slices.Sorted(maps.Values(r.passing))
		oldest := times[len(times)-MaxPassing+MaxPassing/10]
		maps.DeleteFunc(r.passing, func(_ string, told uint64) bool { return told < oldest })
	}
	r.rebuild()
}

// rebuild makes the table of what is known; mu is held.
func (r *Redactor) rebuild() {
	r.known.Store(newValues(r.order, slices.Collect(maps.Keys(r.passing))))
}

// String returns text without secrets, values and shapes.
func (r *Redactor) String(text string) string {
	p := []byte(text)
	spans := r.find(p)
	if spans == nil {
		return text
	}
	return string(replace(p, spans))
}

// Values returns text without the values that were told, and leaves shapes:
// for answers, where an e-mail address may be what was asked for.
func (r *Redactor) Values(text string) string {
	p := []byte(text)
	spans := r.known.Load().find(p, nil)
	if spans == nil {
		return text
	}
	return string(replace(p, merge(spans)))
}

// Bytes returns p itself when it holds no secret, else a copy without them. A
// JSON object stays a JSON object.
func (r *Redactor) Bytes(p []byte) []byte {
	spans := r.find(p)
	switch {
	case spans == nil:
		return p
	case p[0] == '{':
		return replaceJSON(p, spans)
	default:
		return replace(p, spans)
	}
}

// Writer returns a writer that takes whole records and writes them to w
// without secrets. It is safe for concurrent use when w is.
func (r *Redactor) Writer(w io.Writer) io.Writer { return &writer{r, w} }

type writer struct {
	r *Redactor
	w io.Writer
}

// Write writes one record.
func (w *writer) Write(p []byte) (int, error) {
	if _, err := w.w.Write(w.r.Bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// find returns what has to go, in order and apart from each other; nil when
// nothing has.
func (r *Redactor) find(p []byte) []span {
	spans := r.known.Load().find(p, nil)
	s := scanner{p: p, spans: spans}
	s.scan()
	return merge(s.spans)
}

// span is the part [from,to) of a text that has to go.
type span struct {
	from, to int
	kind     string // of a shape; "" for a value
}

// merge joins spans that touch, so that nothing of overlapping secrets is left.
func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	out := spans[:1]
	for _, s := range spans[1:] {
		last := &out[len(out)-1]
		if s.from > last.to {
			out = append(out, s)
			continue
		}
		last.to = max(last.to, s.to)
		if s.kind == "" {
			last.kind = ""
		}
	}
	return out
}

// mark is what stands in the place of a secret. It is never taken for one.
func (s span) mark() string {
	if s.kind == "" {
		return "[redacted]"
	}
	return "[redacted:" + s.kind + "]"
}

// replace puts the marks into a text.
func replace(p []byte, spans []span) []byte {
	out := make([]byte, 0, len(p)+32)
	at := 0
	for _, s := range spans {
		out = append(append(out, p[at:s.from]...), s.mark()...)
		at = s.to
	}
	return append(out, p[at:]...)
}
