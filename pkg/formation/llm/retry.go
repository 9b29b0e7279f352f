package llm

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/agentformation/service/pkg/fault"
)

// Waits between attempts. A provider that asks for more than maxRetryAfter is
// not waited for: somebody sits in front of the answer.
const (
	firstWait     = 250 * time.Millisecond
	maxWait       = 8 * time.Second
	maxRetryAfter = 60 * time.Second
)

var (
	errStopped = errors.New("the reader left")
	errSilent  = errors.New("silence for longer than the timeout")
)

// call is one run of Router.Stream.
type call struct {
	router *Router
	req    Request
	yield  func(Chunk, error) bool
	// emitted tells that the reader holds text of an attempt.
	emitted bool
	// stopped tells that the reader left: yield must not be called again.
	stopped bool
}

// run asks the model and then, when it has to, the fallback.
func (c *call) run(ctx context.Context, modelID string) error {
	err := c.ask(ctx, modelID)
	fallback := c.req.Settings.Fallback
	if err == nil || c.stopped || ctx.Err() != nil || fallback == "" || fallback == modelID {
		return err
	}
	c.router.cfg.Log.Warn().Str("model", modelID).Str("fallback", fallback).Err(err).AnErr("cause", causeOf(err)).Msg("model failed, asking the fallback")
	if ferr := c.ask(ctx, fallback); ferr != nil {
		c.router.cfg.Log.Warn().Str("model", fallback).Err(ferr).AnErr("cause", causeOf(ferr)).Msg("fallback model failed")
		if ctx.Err() != nil {
			return ferr
		}
		return err
	}
	return nil
}

// ask makes up to 1+MaxRetries attempts with one model.
func (c *call) ask(ctx context.Context, modelID string) error {
	t, err := c.router.split(modelID)
	if err != nil {
		return err
	}
	model, err := c.router.model(t)
	if err != nil {
		return fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+t.id+": "+err.Error(), err)
	}
	req := c.req
	req.Model = t.model
	attempt := func() (struct{}, error) { return struct{}{}, c.attempt(ctx, model, req) }
	_, err = backoff.Retry(ctx, attempt,
		backoff.WithBackOff(waits()),
		backoff.WithMaxTries(uint(max(req.Settings.MaxRetries, 0))+1),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, wait time.Duration) {
			c.router.cfg.Log.Warn().Str("model", t.id).Err(err).AnErr("cause", causeOf(err)).Dur("wait", wait).Msg("model call failed, trying again")
		}))
	return c.explain(ctx, t.id, err)
}

// explain turns the error of the last attempt into a fault.
func (c *call) explain(ctx context.Context, modelID string, err error) error {
	var failed *CallError
	switch {
	case err == nil:
		return nil
	case c.stopped:
		return errStopped
	case ctx.Err() != nil:
		return cancelled(ctx, modelID)
	case errors.As(err, &failed):
		return failed.asFault(modelID)
	default:
		return fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+modelID+": "+fault.From(err).Message, err)
	}
}

// attempt runs the model once. Its error tells backoff whether and when to
// try again.
func (c *call) attempt(parent context.Context, model Model, req Request) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silence := startSilence(req.Settings.Timeout, func() { cancel(errSilent) })
	defer silence.stop()

	fresh := true
	for chunk, err := range model.Stream(ctx, req) {
		if err != nil {
			return c.verdict(ctx, err)
		}
		silence.stop()
		if !c.pass(chunk, &fresh) {
			return backoff.Permanent(errStopped)
		}
		if chunk.Done {
			return nil
		}
		silence.restart()
	}
	return c.verdict(ctx, &CallError{Reason: Broken, Detail: "the answer ended before it was complete"})
}

// pass hands a chunk to the reader, after a restart marker when the reader
// still holds text of an earlier attempt.
func (c *call) pass(chunk Chunk, fresh *bool) bool {
	if chunk.Text == "" && !chunk.Done {
		return true
	}
	if *fresh && c.emitted {
		if c.stopped = !c.yield(Chunk{Restarted: true}, nil); c.stopped {
			return false
		}
		c.emitted = false
	}
	*fresh = false
	c.emitted = c.emitted || chunk.Text != ""
	c.stopped = !c.yield(chunk, nil)
	return !c.stopped
}

// verdict classifies the error of an attempt that ran under ctx.
func (c *call) verdict(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		err = &CallError{Reason: TimedOut, Detail: "silent for " + c.req.Settings.Timeout.String(), Cause: err}
	}
	var failed *CallError
	if !errors.As(err, &failed) || !failed.Reason.retryable() || failed.RetryAfter > maxRetryAfter {
		return backoff.Permanent(err)
	}
	if failed.RetryAfter > 0 {
		return errors.Join(err, &backoff.RetryAfterError{Duration: failed.RetryAfter})
	}
	return err
}

// causeOf returns what is logged of a failed call beside its served text, nil
// when there is no more.
func causeOf(err error) error {
	if failed, ok := errors.AsType[*CallError](err); ok {
		return failed.Cause
	}
	return nil
}

func waits() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = firstWait
	b.MaxInterval = maxWait
	return b
}

// silence cancels an attempt that says nothing for too long. The zero value
// waits forever.
type silence struct {
	timer *time.Timer
	limit time.Duration
}

func startSilence(limit time.Duration, cut func()) silence {
	if limit <= 0 {
		return silence{}
	}
	return silence{timer: time.AfterFunc(limit, cut), limit: limit}
}

// stop holds the clock while the reader works on a chunk.
func (s silence) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s silence) restart() {
	if s.timer != nil {
		s.timer.Reset(s.limit)
	}
}
