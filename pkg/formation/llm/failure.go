package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// Reason says why one attempt of a call failed, in words that hold for every
// provider.
type Reason uint8

// The reasons. The first five are worth another attempt.
const (
	Broken     Reason = iota // the connection failed, was reset or ended early
	Garbled                  // the reply could not be read
	Overloaded               // the provider answered with a fault of its own (5xx)
	Throttled                // too many requests (429)
	TimedOut                 // silence for longer than Settings.Timeout
	Exhausted                // the account's quota is used up
	Rejected                 // the key is missing or wrong, or lacks the right (401, 403)
	Missing                  // the provider has no such model or path (404)
	Refused                  // the provider found the request wrong (other 4xx)
)

// retryable tells whether the same call may succeed a moment later.
func (r Reason) retryable() bool { return r <= TimedOut }

// CallError is the failure of one attempt. Adapters make it; the Router
// retries on it and turns the last one into a *fault.Error that wraps it.
type CallError struct {
	Reason Reason
	// Status is the provider's HTTP status, 0 when there was none.
	Status int
	// RetryAfter is the wait that the provider asked for; 0 when it did not.
	RetryAfter time.Duration
	// Detail is what the provider said, shortened and without the key.
	Detail string
	// Cause is logged and never served.
	Cause error

	// open tells that no attempt was made: the circuit is open.
	open bool
}

// Error returns the reason with the provider's detail.
func (e *CallError) Error() string {
	text := e.phrase()
	if e.Status != 0 {
		text = fmt.Sprintf("%s (HTTP %d)", text, e.Status)
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap returns the low-level cause, or nil.
func (e *CallError) Unwrap() error { return e.Cause }

func (e *CallError) phrase() string {
	switch e.Reason {
	case Broken:
		return "the connection to the provider broke"
	case Garbled:
		return "the provider's reply could not be read"
	case Overloaded:
		return "the provider is not able to answer"
	case Throttled:
		return "the provider limits the rate of requests"
	case TimedOut:
		return "the provider did not answer in time"
	case Exhausted:
		return "the provider's quota is used up"
	case Rejected:
		return "the provider rejected the key"
	case Missing:
		return "the provider has no such model or path"
	case Refused:
		return "the provider refused the request"
	}
	return "the call did not succeed"
}

// kind maps the reason to what the caller of a turn should see.
func (e *CallError) kind() fault.Kind {
	switch e.Reason {
	case Throttled, Exhausted:
		return fault.RateLimited
	case Broken, Overloaded, TimedOut:
		return fault.Unavailable
	default:
		return fault.Failed
	}
}

// asFault names the model in the failure of its last attempt. The provider's
// words are served: they tell the formation's author what to change.
func (e *CallError) asFault(modelID string) error {
	f := fault.Wrap(e.kind(), "", fmt.Sprintf("model %s: %s", modelID, e.Error()), e).With("model", modelID)
	if e.RetryAfter > 0 {
		f = f.With("retry_after", int(math.Ceil(e.RetryAfter.Seconds())))
	}
	return f
}

// cancelled is the fault of a call whose caller went away or ran out of time.
func cancelled(ctx context.Context, modelID string) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fault.Wrap(fault.Unavailable, "", "model "+modelID+": the time for this turn is over", cause)
	}
	return fault.Wrap(fault.Canceled, "", "model "+modelID+": the call was cancelled", cause)
}
