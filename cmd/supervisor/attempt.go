package main

import (
	"context"
	"net/http"
	"time"

	"github.com/agentformation/service/pkg/client"
)

// The bounds of an interrupted deploy or update: how long the server's first
// step is waited for (in an answer without steps, how long a refusal is), and
// how long the undoing may take.
const (
	firstStepTimeout = 10 * time.Second
	refusalTimeout   = time.Second
	undoTimeout      = time.Minute
)

// attempt knows how far a deploy or update has come. Only when the server has
// told of a first step is what runs surely ours to undo: until then it may
// still find that somebody else's is there.
type attempt struct {
	sent  chan struct{} // closed when the bundle is sent
	begun chan struct{} // closed at the first step of the server
	first time.Duration // how long begun is waited for
}

// newAttempt begins an attempt; in a plain one the server tells of no step.
func newAttempt(plain bool) *attempt {
	t := &attempt{sent: make(chan struct{}), begun: make(chan struct{}), first: firstStepTimeout}
	if plain {
		t.first = refusalTimeout
	}
	return t
}

// step takes a step. Calls come one after another.
func (t *attempt) step(p client.Progress) {
	switch {
	case p.Stage == client.StageUploaded:
		close(t.sent)
	case p.Stage != client.StageUploading && !isClosed(t.begun):
		close(t.begun)
	}
}

// context returns a context for the work, and what to call when it is over. An
// interrupt ends the work at once, except when the bundle is sent: then the
// server's first step is waited for, and undo (may be nil) is called while the
// work goes on.
func (t *attempt) context(ctx context.Context, undo func(work context.Context)) (context.Context, func()) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended, over := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		if isClosed(t.sent) {
			t.await(ended)
			if undo != nil && !isClosed(ended) {
				undo(work)
			}
		}
		cancel()
	})
	return work, func() {
		close(ended)
		if !stop() {
			<-over // what undo does, and says, comes before the end
		}
		cancel()
	}
}

// await waits for the server's first step or the end of the work.
func (t *attempt) await(ended <-chan struct{}) {
	timer := time.NewTimer(t.first)
	defer timer.Stop()
	select {
	case <-t.begun:
	case <-timer.C:
	case <-ended:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// undo removes the formation of an interrupted deploy. It works on after the
// interrupt; a second one ends the program.
func (a *app) undo(ctx context.Context, s *client.Server, b *bundle, way *attempt) {
	if !isClosed(way.sent) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if !isClosed(way.begun) {
		// Without a step the bundle tells whose formation it is.
		if f, err := s.Get(ctx, b.id); err != nil || f.Version.Current != b.sum {
			a.say("%s may still be deployed: look with `supervisor status %s`", b.id, b.id)
			return
		}
	}
	err := s.Delete(ctx, b.id)
	switch {
	case err == nil:
		a.say("%s is removed again", b.id)
	case client.StatusOf(err) != http.StatusNotFound:
		a.say("%s could not be removed again: %v; try `supervisor delete %s`", b.id, err, b.id)
	}
}

// swap is an update or a rollback: one version takes over from another.
type swap struct {
	id  string
	way *attempt
	do  func(context.Context, func(client.Progress)) (*client.Launched, error)
}

// swapping is a swap under way.
type swapping struct {
	id    string
	s     *client.Server
	view  *progress
	ended chan struct{} // closed when it is over
}

// swap runs one. An interrupt cancels it.
func (a *app) swap(ctx context.Context, s *client.Server, w swap) (*client.Launched, error) {
	on := &swapping{id: w.id, s: s, view: a.newProgress(w.id), ended: make(chan struct{})}
	work, release := w.way.context(ctx, on.cancel)
	launched, err := w.do(work, func(p client.Progress) {
		w.way.step(p)
		on.view.show(w.id, p)
	})
	close(on.ended)
	release()
	on.view.close()
	return launched, err
}

// cancel cancels it and waits for its end, so that the person learns which
// version serves.
func (w *swapping) cancel(work context.Context) {
	ctx, stop := context.WithTimeout(work, undoTimeout)
	defer stop()
	_, err := w.s.CancelUpdate(ctx, w.id)
	switch e := client.StatusOf(err); {
	case err == nil: // said last: steps may be on their way
		defer w.view.say("the update of %s is cancelled: the version before serves on", w.id)
	case isClosed(w.ended): // it was over before: its own result tells
	case e == http.StatusBadRequest:
		w.view.say("the update of %s can no longer be cancelled: look with `supervisor status %s`", w.id, w.id)
	default:
		w.view.say("the update of %s could not be cancelled: %v; try `supervisor cancel-update %s`", w.id, err, w.id)
	}
	select {
	case <-w.ended:
	case <-ctx.Done():
	}
}
