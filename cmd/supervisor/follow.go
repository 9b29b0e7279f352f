package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/client"
)

// followTries is how many looks in a row at a supervisor that does not answer
// end the following of logs; they are a.pause apart.
const followTries = 15

// follower follows the logs of formations at once. A stream that breaks, as at
// a reload of the supervisor, is taken up again while its formation is there.
type follower struct {
	r      *reader
	wanted map[string]bool // true while its stream is open
	ended  chan streamEnd
	failed int // looks in a row
	wg     sync.WaitGroup
}

// streamEnd tells that the stream of a formation's log has ended.
type streamEnd struct {
	id  string
	err error
}

// follow prints new lines until ctx ends or there is no formation to follow.
func (r *reader) follow(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{r: r, wanted: map[string]bool{}, ended: make(chan streamEnd)}
	defer f.wg.Wait()
	defer cancel()
	for _, id := range ids {
		f.open(ctx, id)
	}
	tick := time.NewTicker(r.a.pause)
	defer tick.Stop()
	for len(f.wanted) > 0 || r.every {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case end := <-f.ended:
			err = f.end(end)
		case <-tick.C:
			err = f.look(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open begins to follow one formation.
func (f *follower) open(ctx context.Context, id string) {
	f.r.meet(id)
	f.wanted[id] = true
	f.wg.Go(func() {
		err := f.r.s.FollowLogs(ctx, id, client.LogsRequest{Stream: f.r.req.Stream}, f.r.printLine)
		select {
		case f.ended <- streamEnd{id, err}:
		case <-ctx.Done():
		}
	})
}

// end decides what the end of a stream means: a deleted formation is followed
// no longer, a broken stream is taken up at the next look.
func (f *follower) end(end streamEnd) error {
	e, ok := errors.AsType[*client.Error](end.err)
	switch {
	case !ok:
		return end.err
	case e.Status == http.StatusNotFound:
		f.r.a.say("%s was deleted: its log ends here", end.id)
		delete(f.wanted, end.id)
	case lost(e):
		f.wanted[end.id] = false
	default:
		return e
	}
	return nil
}

// lost tells whether an error means that the supervisor went away for now.
func lost(e *client.Error) bool {
	return e.Name == client.NameBrokenStream || e.Name == client.NameUnreachable ||
		e.Status == http.StatusServiceUnavailable || e.Status == http.StatusBadGateway
}

// look takes up what has broken, and what is new when every formation is
// wanted.
func (f *follower) look(ctx context.Context) error {
	broken := f.r.every
	for _, open := range f.wanted {
		broken = broken || !open
	}
	if !broken {
		return nil
	}
	list, err := f.r.s.List(ctx, "")
	if e, ok := errors.AsType[*client.Error](err); ok && lost(e) && f.failed < followTries {
		f.failed++
		return nil
	}
	if err != nil {
		return err
	}
	f.failed = 0
	there := map[string]bool{}
	for _, info := range list {
		there[info.ID] = true
		open, known := f.wanted[info.ID]
		if (known && !open) || (!known && f.r.every) {
			if known {
				f.r.a.say("the log of %s broke off and is followed again", info.ID)
			}
			f.open(ctx, info.ID)
		}
	}
	for id, open := range f.wanted {
		if !open && !there[id] {
			f.r.a.say("%s was deleted: its log ends here", id)
			delete(f.wanted, id)
		}
	}
	return nil
}
