package llm

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/telemetry"
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

// call is one run of Router.Stream or Router.Embed.
type call struct {
	router *Router
	req    Request
	yield  func(Chunk, error) bool
	// emitted tells that the reader holds text of an attempt.
	emitted bool
	// stopped tells that the reader left: yield must not be called again.
	stopped bool
	// refused is why the meter forbade an attempt; it ends the call.
	refused error
	// keep gathers the answer for the response cache; nil when none wants it.
	keep *keeping
}

// run asks the model and then, when it has to, the fallback.
func (c *call) run(ctx context.Context, modelID string) error {
	err := c.ask(ctx, modelID)
	fallback := c.req.Settings.Fallback
	if err == nil || c.stopped || c.refused != nil || ctx.Err() != nil || fallback == "" || fallback == modelID {
		return err
	}
	c.keep = nil // another model's answer is not this one's
	telemetry.Log(ctx, c.router.cfg.Log).Warn().Str("model", modelID).Str("fallback", fallback).Err(err).AnErr("cause", causeOf(err)).Msg("model failed, asking the fallback")
	if ferr := c.ask(ctx, fallback); ferr != nil {
		telemetry.Log(ctx, c.router.cfg.Log).Warn().Str("model", fallback).Err(ferr).AnErr("cause", causeOf(ferr)).Msg("fallback model failed")
		if ctx.Err() != nil || c.refused != nil {
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
	if t.provider == localProvider {
		return unable("model " + t.id + ": local models only embed")
	}
	model, err := c.router.model(t)
	if err != nil {
		return unopened(t, err)
	}
	req := c.req
	req.Model = t.model
	return c.persist(ctx, t, req.Settings.MaxRetries, func() error { return c.attempt(ctx, t, model, req) })
}

// persist makes an attempt, and up to retries more while they may help. The
// error of attempt tells whether and when, as verdict made it.
func (c *call) persist(ctx context.Context, t target, retries int, attempt func() error) error {
	circuit := c.router.circuit(t)
	guarded := func() (struct{}, error) {
		probe, refusal := circuit.allow(time.Now())
		if refusal != nil {
			return struct{}{}, backoff.Permanent(refusal)
		}
		end := endedUnknown
		defer func() { circuit.report(time.Now(), probe, end) }()
		err := attempt()
		var failed *CallError
		switch {
		case err == nil:
			end = endedWell
		case c.stopped || c.refused != nil || ctx.Err() != nil:
		case errors.As(err, &failed):
			end = endOf(failed.Reason)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(ctx, guarded,
		backoff.WithBackOff(waits()),
		backoff.WithMaxTries(uint(max(retries, 0))+1),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, wait time.Duration) {
			telemetry.Log(ctx, c.router.cfg.Log).Warn().Str("model", t.id).Err(err).AnErr("cause", causeOf(err)).Dur("wait", wait).Msg("model call failed, trying again")
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
	case c.refused != nil:
		return c.refused
	case ctx.Err() != nil:
		return cancelled(ctx, modelID)
	case errors.As(err, &failed):
		return failed.asFault(modelID)
	default:
		return fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+modelID+": "+fault.From(err).Message, err)
	}
}

// refuse notes that the meter forbids the attempt.
func (c *call) refuse(err error) error {
	c.refused = err
	return backoff.Permanent(err)
}

// attempt runs the model once. Its error tells backoff whether and when to
// try again.
func (c *call) attempt(parent context.Context, t target, model Model, req Request) error {
	book, err := c.router.reserve(parent, callOf(t, &req))
	if err != nil {
		return c.refuse(err)
	}
	defer book.close(parent)
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	limit := req.Settings.Timeout
	silence := startSilence(limit, func() { cancel(errSilent) })
	defer silence.stop()

	fresh := true
	for chunk, err := range model.Stream(ctx, req) {
		if err != nil {
			book.leave(ctx)
			return c.verdict(ctx, err, limit)
		}
		silence.stop()
		book.heard(chunk.Text)
		if chunk.Done {
			chunk.Usage = plausible(chunk.Usage)
			book.done(chunk.Usage)
		}
		if !c.pass(chunk, &fresh) {
			return backoff.Permanent(errStopped)
		}
		if chunk.Done {
			return nil
		}
		silence.restart()
	}
	return c.verdict(ctx, &CallError{Reason: Broken, Detail: "the answer ended before it was complete"}, limit)
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
	c.keep.add(chunk, *fresh)
	*fresh = false
	c.emitted = c.emitted || chunk.Text != ""
	c.stopped = !c.yield(chunk, nil)
	return !c.stopped
}

// verdict classifies the error of an attempt that ran under ctx and could be
// silent for limit.
func (c *call) verdict(ctx context.Context, err error, limit time.Duration) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		err = &CallError{Reason: TimedOut, Detail: "silent for " + limit.String(), Cause: err}
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
