package fakellm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"time"
)

// Rule is a scripted reply. The first rule that matches a call and is not used
// up answers it. Empty conditions match everything.
type Rule struct {
	// Model is a regular expression on the model's name.
	Model string `json:"model,omitempty"`
	// User is a regular expression on the last user message.
	User string `json:"user,omitempty"`
	// Purpose is the name of the JSON schema that the call asks for, or "agent"
	// for a call that asks for none. Probes are answered by rules for "probe" only.
	Purpose string `json:"purpose,omitempty"`
	// Last is the role of the last message. "" is any, but "user" for a rule
	// that replies with tool calls, so that the tool's result gets another answer.
	Last string `json:"last,omitempty"`
	// Times limits how often the rule answers; 0 means always.
	Times int `json:"times,omitempty"`

	Reply Reply `json:"reply"`

	model, user *regexp.Regexp
	used        int // guarded by Server.mu
}

// Reply is what a rule makes the server do. The zero Reply is the default
// answer of the server. Frames are counted alike in all protocols: one that
// opens the answer, one for each delta, then the end.
type Reply struct {
	Text  string     `json:"text,omitempty"`
	Calls []ToolCall `json:"calls,omitempty"`
	// Chunks is the number of deltas of Text; 0 means the server's default.
	// Each tool call's arguments are cut into as many pieces.
	Chunks int `json:"chunks,omitempty"`
	// DelayMS is waited before the reply, ChunkDelayMS between two deltas.
	DelayMS      int `json:"delay_ms,omitempty"`
	ChunkDelayMS int `json:"chunk_delay_ms,omitempty"`

	// Status other than 0 and 200 replies with an error of this message and
	// code, or with Body when it is set.
	Status  int               `json:"status,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Message string            `json:"message,omitempty"`
	Code    string            `json:"code,omitempty"`
	// Body replaces the body of a reply, Frames the data of each streamed
	// frame (without "[DONE]", which is sent after them unless NoDone is set).
	// All three are words of one protocol.
	Body   string   `json:"body,omitempty"`
	Frames []string `json:"frames,omitempty"`
	// RawStream replaces the whole body of a streamed reply, frames and all.
	RawStream string `json:"raw_stream,omitempty"`

	// Gate holds the reply until that gate is released: before the first byte,
	// or, with GateAfter, when that many frames are out.
	Gate      string `json:"gate,omitempty"`
	GateAfter int    `json:"gate_after,omitempty"`
	// CutAfter drops the connection when that many frames are out (0 with Cut
	// set: right after the headers); CutBytes when that many bytes are out.
	// CutRune drops it inside the first rune of more than one byte.
	Cut      bool `json:"cut,omitempty"`
	CutAfter int  `json:"cut_after,omitempty"`
	CutBytes int  `json:"cut_bytes,omitempty"`
	CutRune  bool `json:"cut_rune,omitempty"`
	// EndAfter ends a stream in good order when that many frames are out,
	// though the answer is not whole; GarbageAfter goes on with a frame that is
	// no JSON, FailAfter with an error of Message and Code.
	EndAfter     int `json:"end_after,omitempty"`
	GarbageAfter int `json:"garbage_after,omitempty"`
	FailAfter    int `json:"fail_after,omitempty"`
	// Empty replies without a single choice, candidate or block.
	Empty bool `json:"empty,omitempty"`
	// CachedTokens of the prompt are said to come from the provider's cache.
	CachedTokens int `json:"cached_tokens,omitempty"`
	// Stall says nothing more until the caller leaves: at once, or after
	// StallAfter frames.
	Stall      bool `json:"stall,omitempty"`
	StallAfter int  `json:"stall_after,omitempty"`
	// Reset resets the connection instead of answering.
	Reset bool `json:"reset,omitempty"`
	// Pieces cuts the streamed bytes anywhere, each piece flushed on its own.
	Pieces int `json:"pieces,omitempty"`
	// NoUsage and NoDone leave those parts out, as some servers do.
	NoUsage bool `json:"no_usage,omitempty"`
	NoDone  bool `json:"no_done,omitempty"`
	// Finish replaces the finish reason.
	Finish string `json:"finish,omitempty"`
}

// ToolCall is a call that a reply asks for. Args is sent as it is, valid or not.
type ToolCall struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	Args string `json:"args"`
}

// compile checks the rule's expressions.
func (r *Rule) compile() error {
	for _, e := range []struct {
		text string
		to   **regexp.Regexp
	}{{r.Model, &r.model}, {r.User, &r.user}} {
		if e.text == "" {
			continue
		}
		re, err := regexp.Compile(e.text)
		if err != nil {
			return fmt.Errorf("rule expression %q: %w", e.text, err)
		}
		*e.to = re
	}
	if r.Last == "" && len(r.Reply.Calls) > 0 {
		r.Last = "user"
	}
	return nil
}

// matches tells whether the rule answers q.
func (r *Rule) matches(q *query) bool {
	switch {
	case r.Times > 0 && r.used >= r.Times,
		r.Last != "" && r.Last != q.last,
		r.Purpose != "" && r.Purpose != q.purpose,
		r.Purpose == "" && q.purpose == probePurpose,
		r.model != nil && !r.model.MatchString(q.Model),
		r.user != nil && !r.user.MatchString(q.user):
		return false
	}
	return true
}

// ParseRules reads one rule or a list of rules from JSON. Unknown fields are
// refused, so that a misspelt condition does not match everything.
func ParseRules(data []byte) ([]Rule, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		var rules []Rule
		if err := dec.Decode(&rules); err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
		return rules, nil
	}
	var rule Rule
	if err := dec.Decode(&rule); err != nil {
		return nil, fmt.Errorf("read rule: %w", err)
	}
	return []Rule{rule}, nil
}

// Add appends rules; it panics on a wrong expression, as the script is code.
func (s *Server) Add(rules ...Rule) {
	if err := s.Script(rules); err != nil {
		panic(err)
	}
}

// Script appends rules; a wrong expression is an error.
func (s *Server) Script(rules []Rule) error {
	compiled := make([]*Rule, len(rules))
	for i := range rules {
		compiled[i] = &rules[i]
		if err := compiled[i].compile(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, compiled...)
	return nil
}

// match returns the reply for q, false when no rule answers it.
func (s *Server) match(q *query) (Reply, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rules {
		if r.matches(q) {
			r.used++
			return r.Reply, true
		}
	}
	return Reply{}, false
}

func (r *Reply) delay() time.Duration { return time.Duration(r.DelayMS) * time.Millisecond }
func (r *Reply) chunkDelay() time.Duration {
	return time.Duration(r.ChunkDelayMS) * time.Millisecond
}
