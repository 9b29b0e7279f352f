package client

import (
	"context"
	"net/http"
)

// RouteRequest is a message that nobody answers.
type RouteRequest struct {
	Message string `json:"message"`
	// SessionID names the session whose last agent counts; "" for none.
	SessionID string `json:"session_id,omitempty"`
}

// Candidate is an agent that a message may go to.
type Candidate struct {
	ID      string   `json:"id"`
	Score   float64  `json:"score"` // 0 to 1
	Reasons []string `json:"reasons"`
}

// RoutePreview tells which agent would answer a message.
type RoutePreview struct {
	Agents []Candidate `json:"agents"` // best first
	// Method is how it was decided: single, history, model, sop or default.
	Method   string `json:"method"`
	OffTopic bool   `json:"off_topic"` // no agent is for this
}

// Route asks who would answer a message. No agent sees it, and nothing is
// stored; a formation that routes by model spends a model call.
func (f *Formation) Route(ctx context.Context, req RouteRequest) (*RoutePreview, error) {
	c, err := newCall(http.MethodPost, "v1", "route").withJSON(req)
	if err != nil {
		return nil, err
	}
	c.timeout = chatTimeout // a model may be asked
	var out RoutePreview
	if err := f.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}
