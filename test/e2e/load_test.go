package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
)

// outcome is how one request of the load ended.
type outcome struct {
	after bool // it began when the process was dead already
	err   error
}

// load sends chats all the time, each on a connection of its own.
type load struct {
	after atomic.Bool // requests that begin now begin after the death

	cancel context.CancelFunc
	wg     sync.WaitGroup
	count  atomic.Int64

	mu       sync.Mutex // guards outcomes
	outcomes []outcome
}

// begin starts workers: half of them ask base for JSON, half for a stream.
func begin(t *testing.T, workers int, f *harness.Formation, base string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	client := harness.Fresh(t)
	for i := range workers {
		r := f.Request(harness.Chat{"message": fmt.Sprintf("load %d", i), "agent_id": "poet"})
		r.URL = base + "/v1/chat"
		ask := askJSON
		if i%2 == 1 {
			r.Header["Accept"] = "text/event-stream"
			ask = askStream
		}
		l.wg.Go(func() {
			for ctx.Err() == nil {
				o := outcome{after: l.after.Load()}
				o.err = ask(context.WithoutCancel(ctx), client, r)
				l.count.Add(1)
				l.mu.Lock()
				l.outcomes = append(l.outcomes, o)
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// more waits for n further requests to end.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	from := l.count.Load()
	harness.Until(t, fmt.Sprintf("%d more requests of the load have ended", n), func() bool { return l.count.Load() >= from+n })
}

// end lets the requests that are open end and starts no more.
func (l *load) end() {
	l.cancel()
	l.wg.Wait()
}

// check fails the test for every outcome that must not be. A request that was
// open when the process died may have lost its connection; any other error,
// and any error of a later request, is a fault.
func (l *load) check(t *testing.T, name string, mayBreak bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	later, broken := 0, 0
	for _, o := range l.outcomes {
		if o.after {
			later++
		}
		switch {
		case o.err == nil:
		case mayBreak && !o.after && !errors.Is(o.err, syscall.ECONNREFUSED) && !strings.Contains(o.err.Error(), "Timeout"):
			broken++
		default:
			t.Errorf("%s: begun after the death %t: %v", name, o.after, o.err)
		}
	}
	t.Logf("%s: %d requests, %d of them after the death, %d broken by it", name, len(l.outcomes), later, broken)
	if later < 20 {
		t.Errorf("%s: only %d requests after the death", name, later)
	}
}

func askJSON(ctx context.Context, c *harness.Client, r harness.Request) error {
	reply, err := c.Do(ctx, r)
	if err == nil && (reply.Status != http.StatusOK || reply.Text("data.status") != "completed") {
		return fmt.Errorf("%d %s", reply.Status, reply.Body)
	}
	return err
}

func askStream(ctx context.Context, c *harness.Client, r harness.Request) error {
	s, err := c.Stream(ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	frames, err := s.Rest()
	if err != nil {
		return err
	}
	if n := len(frames); n < 2 || frames[n-1].Event != "done" || frames[n-2].Text("token.type") != "completed" {
		return fmt.Errorf("a stream of %d frames without its end", n)
	}
	return nil
}
