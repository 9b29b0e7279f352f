package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The waits between two looks at an unfinished request.
const (
	firstPoll = 100 * time.Millisecond
	maxPoll   = 2 * time.Second
)

// Request is the record of one turn.
type Request struct {
	RequestID string     `json:"request_id"`
	UserID    string     `json:"user_id"`
	Status    string     `json:"status"` // pending, processing, running, completed, failed, cancelled, awaiting_clarification
	Progress  *string    `json:"progress"`
	CreatedAt *time.Time `json:"created_at"`
	// CompletedAt is nil until the request has ended.
	CompletedAt *time.Time `json:"completed_at,omitempty"`
	// Response is the text of the answer, set when completed.
	Response string `json:"response,omitempty"`
	// Result is the answer as it was made: a string, or an object for
	// structured output.
	Result json.RawMessage `json:"result,omitempty"`
	// Failure and FailureCode say why it failed.
	Failure     string `json:"error,omitempty"`
	FailureCode string `json:"error_code,omitempty"`
	// UI are the widgets of the answer, Question what a request asks that is
	// awaiting_clarification.
	UI       []Widget `json:"ui,omitempty"`
	Question string   `json:"clarification_question,omitempty"`
}

// Ended says whether the request's state will not change any more.
func (r *Request) Ended() bool {
	return r.Status == "completed" || r.Status == "failed" || r.Status == "cancelled"
}

// Request returns the record of a turn.
func (f *Formation) Request(ctx context.Context, id string) (*Request, error) {
	var out Request
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "requests", id), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// RequestSummary is a request in the list of requests.
type RequestSummary struct {
	RequestID   string     `json:"request_id"`
	UserID      string     `json:"user_id"`
	Status      string     `json:"status"`   // as in Request
	Progress    *int       `json:"progress"` // 0 to 100, nil when it is unknown
	CreatedAt   time.Time  `json:"created_at"`
	CompletedAt *time.Time `json:"completed_at"` // nil until it has ended
	Failure     string     `json:"error,omitempty"`
}

// Requests returns the newest requests of UserID, newest first; with the admin
// key and no UserID those of all users.
func (f *Formation) Requests(ctx context.Context) ([]RequestSummary, error) {
	var out struct {
		Requests []RequestSummary `json:"requests"`
	}
	if err := f.caller.json(ctx, newCall(http.MethodGet, "v1", "requests"), &out); err != nil {
		return nil, err
	}
	return out.Requests, nil
}

// CancelledRequest tells how a request was ended.
type CancelledRequest struct {
	RequestID string `json:"request_id"`
	Status    string `json:"status"` // cancelled
	// Cancellation is immediate, or cooperative: it ends when what it does just
	// now has noticed, or it had been cancelled before.
	Cancellation string `json:"cancellation"`
	Message      string `json:"message"`
}

// CancelRequest ends a turn; one that has ended is an error.
func (f *Formation) CancelRequest(ctx context.Context, id string) (*CancelledRequest, error) {
	var out CancelledRequest
	if err := f.caller.json(ctx, newCall(http.MethodDelete, "v1", "requests", id), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// WaitRequest looks at a turn until it has ended, or waits for a person
// (awaiting_clarification), or ctx ends.
func (f *Formation) WaitRequest(ctx context.Context, id string) (*Request, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = firstPoll, maxPoll
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
		r, err := f.Request(ctx, id)
		if err != nil {
			return nil, err
		}
		if r.Ended() || r.Status == "awaiting_clarification" {
			return r, nil
		}
		timer.Reset(wait.NextBackOff())
	}
}
