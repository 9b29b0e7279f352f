package telemetry

import (
	"encoding/json"
	"strconv"
	"time"
)

// Kind says what a span is about.
type Kind string

// The kinds of spans (reference runtime.md 21).
const (
	KindTurn       Kind = "turn"
	KindRouting    Kind = "routing"
	KindModel      Kind = "model"
	KindTool       Kind = "tool"
	KindMemory     Kind = "memory"
	KindDelegation Kind = "delegation"
	KindDelivery   Kind = "delivery"
)

// The attributes that this package reads, too: totals, metrics and exporters
// are made of them.
const (
	AttrTokens   = "tokens"   // Tokens, or an int at a memory span
	AttrCost     = "cost"     // *Cost; nil means unpriced
	AttrCached   = "cached"   // bool: the answer is an earlier one, no model was asked
	AttrProvider = "provider" // string
	AttrModel    = "model"    // string, the id behind the provider
	AttrAgent    = "agent_id" // string
	// AttrResponseModel is the model that answered, as its provider names it.
	AttrResponseModel = "response_model"
	AttrServer        = "server"   // string, of a tool
	AttrTool          = "tool"     // string
	AttrIsError       = "is_error" // bool: the tool said that it failed
	AttrRefused       = "refused"  // bool: the call did not fit and was not made; the result says why
	AttrFinish        = "finish_reason"
	// AttrOperation says what a model was asked for when it was not a chat.
	AttrOperation          = "operation"
	OperationEmbeddings    = "embeddings"
	OperationTranscription = "transcription"
	// AttrArguments and AttrResult are what a tool was given and gave. They are
	// never exported.
	AttrArguments = "arguments"
	AttrResult    = "result"
	// AttrStatus is how a turn ended: completed, failed, cancelled or
	// awaiting_clarification.
	AttrStatus = "status"
)

// Tokens are what a model call used.
type Tokens struct {
	Input  int `json:"input"`
	Output int `json:"output"`
	Cached int `json:"cached"` // part of Input
}

func (t Tokens) add(u Tokens) Tokens {
	return Tokens{t.Input + u.Input, t.Output + u.Output, t.Cached + u.Cached}
}

// Cost is an amount of money.
type Cost struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// Attribute is something that a span says about its work.
type Attribute struct {
	Key   string
	Value any
}

// Span is a piece of a turn's work. Its methods are safe for concurrent use,
// and do nothing on a nil Span or after End.
type Span struct {
	trace    *Trace
	id       int // 0 is the trace itself
	parent   int
	kind     Kind
	name     string
	started  time.Time
	duration time.Duration
	ended    bool
	kept     bool // among the trace's spans
	replayed bool
	failed   string // the text of the error; "" when there was none
	isError  bool
	attrs    []Attribute
	room     [8]Attribute // where attrs begins
}

// Set says something about the work. Long texts are cut, and secrets taken out
// before anybody sees them. The value must not change afterwards; a second one
// for the same key replaces the first.
func (s *Span) Set(key string, value any) {
	if s == nil {
		return
	}
	value = s.trace.clamp(value)
	s.trace.mu.Lock()
	defer s.trace.mu.Unlock()
	s.set(key, value)
}

// set is Set under the trace's lock.
func (s *Span) set(key string, value any) {
	if s.ended {
		return
	}
	for i := range s.attrs {
		if s.attrs[i].Key == key {
			s.attrs[i].Value = value
			return
		}
	}
	if len(s.attrs) == maxAttributes {
		return
	}
	if s.attrs == nil {
		s.attrs = s.room[:0]
	}
	s.attrs = append(s.attrs, Attribute{key, value})
}

// Rename replaces the name, when the work turned out to be about something else.
func (s *Span) Rename(name string) {
	if s == nil {
		return
	}
	s.trace.mu.Lock()
	defer s.trace.mu.Unlock()
	if !s.ended {
		s.name = name
	}
}

// End closes the span; err says why its work failed, nil that it did not. Only
// the first End counts.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	text := ""
	if err != nil {
		text = s.trace.hub.clean(clip(err.Error(), maxError))
	}
	t := s.trace
	now := t.hub.cfg.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.ended {
		return
	}
	if err != nil {
		s.isError, s.failed = true, text
	}
	if !s.replayed {
		s.duration = now.Sub(s.started)
	}
	s.ended = true
	t.count(s)
}

// value returns an attribute; the trace's lock is held.
func (s *Span) value(key string) any {
	for i := range s.attrs {
		if s.attrs[i].Key == key {
			return s.attrs[i].Value
		}
	}
	return nil
}

func (s *Span) text(key string) string { v, _ := s.value(key).(string); return v }

func (s *Span) flag(key string) bool { v, _ := s.value(key).(bool); return v }

// SpanRecord is a span as it is shown: its texts hold no secrets.
type SpanRecord struct {
	ID         string
	Parent     string // "" for none
	Kind       Kind
	Name       string
	Error      bool
	Running    bool   // it is open, and so is the turn
	Message    string // of the error
	Started    time.Time
	Duration   time.Duration // until now for a span that is open
	Attributes []Attribute   // values are string, bool, int, float64, Tokens, *Cost or json.RawMessage
}

// Value returns an attribute, nil when there is none.
func (r *SpanRecord) Value(key string) any {
	for i := range r.Attributes {
		if r.Attributes[i].Key == key {
			return r.Attributes[i].Value
		}
	}
	return nil
}

// Text returns a text attribute, "" when there is none.
func (r *SpanRecord) Text(key string) string { v, _ := r.Value(key).(string); return v }

// record returns the span as it is shown; the trace's lock is held.
func (s *Span) record(now time.Time) SpanRecord {
	r := SpanRecord{
		ID: strconv.Itoa(s.id), Kind: s.kind, Name: s.name, Error: s.isError, Message: s.failed,
		Started: s.started, Duration: s.duration, Attributes: make([]Attribute, len(s.attrs)),
	}
	if s.parent > 0 {
		r.Parent = strconv.Itoa(s.parent)
	}
	if !s.ended && !s.replayed {
		r.Duration = now.Sub(s.started)
		r.Running = s.trace.running()
	}
	copy(r.Attributes, s.attrs)
	return r
}

// shown takes the secrets out of a record and brings its values into the few
// types that are shown.
func (h *Hub) shown(r *SpanRecord) {
	if r.Kind == KindTool || r.Kind == KindDelegation { // others have names from the formation's own files
		r.Name = h.clean(r.Name)
	}
	for i := range r.Attributes {
		a := &r.Attributes[i]
		switch v := a.Value.(type) {
		case string:
			if !plain(a.Key) {
				a.Value = h.clean(v)
			}
		case json.RawMessage:
			a.Value = h.cleanJSON(v)
		}
	}
}

// plain tells attributes that name parts of the formation, which are no secrets
// and many.
func plain(key string) bool {
	switch key {
	case AttrProvider, AttrModel, AttrAgent, AttrServer, AttrTool, AttrFinish, AttrOperation, AttrStatus, AttrResponseModel,
		"mode", "purpose", "method", "chosen":
		return true
	}
	return false
}
