package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// target is a server under load: where it is and what one request looks like.
type target struct {
	addr    string
	pid     int
	request []byte
	done    []byte
}

// plainMessage needs no tool.
const plainMessage = "Tell me in one sentence what a formation is."

// chatRequest builds one POST /v1/chat. Without a session every request is a
// conversation of its own, so that no request is longer than the one before.
func chatRequest(addr, agent string, stream bool, message string) ([]byte, []byte) {
	accept, done := "application/json", []byte(`"success":true`)
	if stream {
		accept, done = "text/event-stream", []byte("event: done")
	}
	body := `{"message":"` + message + `"`
	if agent != "" {
		body += `,"agent_id":"` + agent + `"`
	}
	body += "}"
	return fmt.Appendf(nil, "POST /v1/chat HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: %s\r\n"+
		"X-SVC-Client-Key: %s\r\nX-SVC-User-Id: bench\r\nContent-Length: %d\r\n\r\n%s",
		addr, accept, clientKey, len(body), body), done
}

// load is one bounded load: conc connections, each with one request at a time.
type load struct {
	conc     int
	slice    time.Duration
	requests int
}

// sample is what one or more loads gave.
type sample struct {
	requests, errors int
	lastErr          error
	took, cpu        time.Duration
	latency, first   []time.Duration
}

// add joins another load of the same server.
func (s *sample) add(o sample) {
	s.requests += o.requests
	s.errors += o.errors
	s.lastErr = cmp.Or(s.lastErr, o.lastErr)
	s.took += o.took
	s.cpu += o.cpu
	s.latency = append(s.latency, o.latency...)
	s.first = append(s.first, o.first...)
}

// rate is in requests per second.
func (s *sample) rate() float64 { return float64(s.requests) / s.took.Seconds() }

// cpuPerTurn is the server's processor time per request.
func (s *sample) cpuPerTurn() time.Duration {
	return s.cpu / time.Duration(max(s.requests, 1))
}

// run loads t and reads its processor time before and after.
func (l load) run(ctx context.Context, t target) (sample, error) {
	before, err := cpuTime(t.pid)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	deadline := begin.Add(l.slice)
	var budget atomic.Int64
	budget.Store(int64(l.requests))
	parts := make([]sample, l.conc)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { parts[i] = worker(ctx, t, deadline, &budget) })
	}
	wg.Wait()
	s := sample{}
	for i := range parts {
		s.add(parts[i])
	}
	s.took = time.Since(begin)
	after, err := cpuTime(t.pid)
	if err != nil {
		return sample{}, errors.Join(err, s.lastErr)
	}
	s.cpu = after - before
	return s, ctx.Err()
}

// worker calls until the deadline, the budget or ctx ends it. An error is
// counted and the next request goes over a new connection.
func worker(ctx context.Context, t target, deadline time.Time, budget *atomic.Int64) sample {
	c := caller{addr: t.addr, request: t.request, done: t.done}
	defer c.close()
	var s sample
	for ctx.Err() == nil && budget.Add(-1) >= 0 {
		begin := time.Now()
		if begin.After(deadline) {
			break
		}
		if err := c.call(); err != nil {
			s.errors++
			s.lastErr = err
			if s.errors > 100 {
				break
			}
			continue
		}
		s.requests++
		s.latency = append(s.latency, time.Since(begin))
		if !c.first.IsZero() {
			s.first = append(s.first, c.first.Sub(begin))
		}
	}
	return s
}

// quantile returns the q-th part of d, 0 for none.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
