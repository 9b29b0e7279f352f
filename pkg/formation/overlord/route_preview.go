package overlord

import (
	"context"
	"fmt"
)

// PreviewInput is a message that nobody answers.
type PreviewInput struct {
	Message   string
	LastAgent string // who answered last in the session, "" for none
	// UserID and RequestID are whom a model call is booked on.
	UserID    string
	RequestID string
}

// Preview tells who would answer a message.
type Preview struct {
	Agents   []Candidate `json:"agents"` // best first, never empty
	Method   string      `json:"method"` // single, history, model or default
	OffTopic bool        `json:"off_topic"`
}

// Preview decides about a message the way a turn would, without a turn: no
// agent sees it and nothing is stored. It asks a model when the turn would, so
// that the answer is the turn's; that call is booked like any other. A
// formation that routes by words alone spends nothing.
//
// The method is one of the reference's: what words decide is "default", since
// neither the session nor a model did, and off_topic tells whether anything
// matched at all.
func (o *Overlord) Preview(ctx context.Context, in PreviewInput) (Preview, error) {
	turn := Input{Message: in.Message, LastAgent: in.LastAgent, UserID: in.UserID, RequestID: in.RequestID}
	d, given := o.given(turn)
	if !given {
		d = o.router.route(ctx, turn)
	}
	if err := context.Cause(ctx); err != nil {
		return Preview{}, fmt.Errorf("preview a route: %w", err)
	}
	p := Preview{Agents: append([]Candidate(nil), d.candidates...), Method: d.Method, OffTopic: d.OffTopic}
	if p.Method == MethodHeuristic {
		p.Method = MethodDefault
	}
	switch first := &p.Agents[0]; {
	case d.Threat() != "":
		first.Reasons = append([]string{"the message would be refused: " + d.Threat()}, first.Reasons...)
	case d.SmallTalk:
		first.Reasons = append([]string{"small talk, which the overlord answers itself"}, first.Reasons...)
	}
	return p, nil
}
