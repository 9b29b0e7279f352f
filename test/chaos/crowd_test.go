package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
)

// crowdText is what the model says to everybody.
const crowdText = "one two three four five six"

// crowd sends chats to one formation whose process is killed again and again. A
// connection that is cut is asked again with the same idempotency key, as a
// careful client does; every request is a session of its own, so that its
// transcript tells whether the turn ran once.
type crowd struct {
	t *testing.T
	f *harness.Formation

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu           sync.Mutex // guards what follows
	acknowledged []promised
	cut          int // connections that broke
	faults       []string

	once    sync.Once // the verdict is found once
	lost    int
	doubled int
}

// promised is a request that was accepted or answered.
type promised struct{ session, request string }

// gather starts workers: a third ask for JSON, a third for a stream, a third
// for an answer in the background.
func gather(t *testing.T, f *harness.Formation, workers int) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{t: t, f: f, stop: cancel}
	for i := range workers {
		c.wg.Go(func() {
			client := harness.Fresh(t)
			for n := 0; ctx.Err() == nil; n++ {
				c.ask(client, i, fmt.Sprintf("%s-%d-%d", f.ID, i, n))
			}
		})
	}
	t.Cleanup(c.finish)
	return c
}

func (c *crowd) finish() {
	c.stop()
	c.wg.Wait()
}

// ask sends one request until it is acknowledged.
func (c *crowd) ask(client *harness.Client, worker int, name string) {
	body := harness.Chat{"message": "tell me", "agent_id": "poet", "session_id": "s-" + name}
	r := c.f.Request(body)
	send := c.whole
	switch worker % 3 {
	case 1:
		r.Header["Accept"] = "text/event-stream"
		body["request_id"] = "r-" + name
		send = c.stream
	case 2:
		body["use_async"] = true
		send = c.accepted
	}
	r.Header["X-SVC-Idempotency-Key"] = "k-" + name
	if worker%4 == 3 {
		r.URL = c.f.Through() + "/v1/chat"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), harness.Patience)
	defer cancel()
	var last error // before the one that ended the patience
	for {
		id, err := send(ctx, client, r)
		c.mu.Lock()
		if err == nil {
			c.acknowledged = append(c.acknowledged, promised{"s-" + name, id})
			c.mu.Unlock()
			return
		}
		c.cut++
		if ctx.Err() != nil {
			c.faults = append(c.faults, fmt.Sprintf("%s was never answered: %v, after %v", name, err, last))
			c.mu.Unlock()
			return
		}
		last = err
		c.mu.Unlock()
		if worker%4 == 3 { // the supervisor may be back at another address
			r.URL = c.f.Through() + "/v1/chat"
		}
	}
}

// whole expects the answer as JSON.
func (c *crowd) whole(ctx context.Context, client *harness.Client, r harness.Request) (string, error) {
	reply, err := client.Do(ctx, r)
	switch {
	case err != nil:
		return "", err
	case reply.Status != http.StatusOK || reply.Text("data.response") != crowdText:
		return "", c.fault(reply)
	}
	return reply.Text("data.request_id"), nil
}

// accepted expects a request in the background.
func (c *crowd) accepted(ctx context.Context, client *harness.Client, r harness.Request) (string, error) {
	reply, err := client.Do(ctx, r)
	switch {
	case err != nil:
		return "", err
	case reply.Status != http.StatusAccepted:
		return "", c.fault(reply)
	}
	return reply.Text("data.request_id"), nil
}

// stream expects a whole stream. One that was cut, but whose request had been
// accepted, is continued from its first frame.
func (c *crowd) stream(ctx context.Context, client *harness.Client, r harness.Request) (string, error) {
	s, err := client.Stream(ctx, r)
	if status, ok := errors.AsType[*harness.StatusError](err); ok && status.Status == http.StatusConflict {
		r.Header["Last-Event-ID"] = "0"
		s, err = client.Stream(ctx, r)
	}
	if err != nil {
		return "", err
	}
	defer s.Close()
	frames, err := s.Rest()
	if err != nil {
		return "", err
	}
	if n := len(frames); n < 2 || frames[n-1].Event != "done" || frames[n-2].Text("token.content") != crowdText {
		return "", fmt.Errorf("a stream of %d frames without its end", n)
	}
	body, _ := r.Body.(harness.Chat)
	id, _ := body["request_id"].(string)
	return id, nil
}

// fault tells an answer that is none. Those of a service that is about to come
// back are expected; any other is a fault of its own.
func (c *crowd) fault(reply harness.Reply) error {
	err := fmt.Errorf("%d %s", reply.Status, reply.Body)
	if reply.Status < http.StatusInternalServerError {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faults = append(c.faults, err.Error())
	}
	return err
}

// verdict reads the transcript of every acknowledged request.
func (c *crowd) verdict() (lost, doubled int) {
	c.once.Do(func() {
		client := harness.NewClient(c.t)
		for _, p := range c.acknowledged {
			c.f.UntilEnded(harness.Context(c.t), p.request)
			reply := client.Must(c.f.Read("/v1/sessions/" + p.session + "/messages"))
			switch n := reply.Int("data.count"); {
			case n < 2 || reply.Text("data.messages.1.content") != crowdText:
				c.lost++
				c.faults = append(c.faults, fmt.Sprintf("%s has %d messages: %s", p.session, n, reply.Body))
			case n > 2:
				c.doubled++
				c.faults = append(c.faults, fmt.Sprintf("%s has %d messages", p.session, n))
			}
		}
	})
	return c.lost, c.doubled
}

func (c *crowd) check() {
	c.t.Helper()
	if len(c.acknowledged) < 50 {
		c.t.Errorf("%s: only %d requests were acknowledged", c.f.ID, len(c.acknowledged))
	}
	for i, f := range c.faults {
		if i == 10 {
			c.t.Errorf("and %d more", len(c.faults)-10)
			return
		}
		c.t.Error(f)
	}
}
