package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// chatCase is one way to load a chat.
type chatCase struct {
	conc   int
	stream bool
	routed bool // without agent_id: the overlord asks the model who answers
}

func (c chatCase) String() string {
	form := "JSON"
	if c.stream {
		form = "SSE"
	}
	if c.routed {
		form += ", routed"
	}
	return fmt.Sprintf("chat %s, concurrency %d", form, c.conc)
}

var chatCases = []chatCase{
	{conc: 1},
	{conc: 16},
	{conc: 64},
	{conc: 1, stream: true},
	{conc: 16, stream: true},
	{conc: 64, stream: true},
	{conc: 16, routed: true},
}

// chatResult holds both servers' samples of one case.
type chatResult struct {
	chatCase
	ours, limit sample
}

// measureChat loads a formation and the limit handler in turns.
func measureChat(ctx context.Context, p plan, dir, model string, r *report) error {
	limit, err := startLimit(ctx, filepath.Join(dir, "limit"), model)
	if err != nil {
		return err
	}
	defer limit.stop()
	formation := filepath.Join(dir, "formation")
	if err := writeFormation(formation, "bench-chat", model); err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	ours, err := startRuntime(ctx, p.bin, formation, port)
	if err != nil {
		return err
	}
	defer ours.stop()
	if err := ours.answers(ctx); err != nil {
		return err
	}
	for _, c := range chatCases {
		res := chatResult{chatCase: c}
		for range p.rounds {
			if err := loadOnce(ctx, p, limit, c, &res.limit); err != nil {
				return fmt.Errorf("%s, limit handler: %w", c, err)
			}
			if err := loadOnce(ctx, p, ours, c, &res.ours); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
		}
		r.chat = append(r.chat, res)
	}
	r.loaded, err = readMemory(ours.pid)
	return err
}

// loadOnce warms the server up for a tenth of the slice, then measures it.
func loadOnce(ctx context.Context, p plan, server *process, c chatCase, into *sample) error {
	agent := firstAgent
	if c.routed {
		agent = ""
	}
	t := target{addr: server.addr, pid: server.pid}
	t.request, t.done = chatRequest(server.addr, agent, c.stream, plainMessage)
	warm := load{conc: c.conc, slice: p.slice / 10, requests: p.requests}
	if _, err := warm.run(ctx, t); err != nil {
		return err
	}
	s, err := load{conc: c.conc, slice: p.slice, requests: p.requests}.run(ctx, t)
	if err != nil {
		return err
	}
	if s.requests == 0 {
		return fmt.Errorf("no request succeeded: %w", s.lastErr)
	}
	into.add(s)
	return nil
}

// startResult holds how long it took from a start to the first answer.
type startResult struct {
	fresh, again, killed, limit []time.Duration
}

// measureStarts times a formation from exec to its first answered chat: with
// an empty state, with the state of the run before, and the limit handler.
func measureStarts(ctx context.Context, p plan, dir, model string, r *report) error {
	for i := range p.starts {
		formation := filepath.Join(dir, fmt.Sprint(i), "formation")
		if err := writeFormation(formation, "bench-start", model); err != nil {
			return err
		}
		for _, into := range []*[]time.Duration{&r.starts.fresh, &r.starts.again} {
			took, err := timeRuntime(ctx, p, formation)
			if err != nil {
				return err
			}
			*into = append(*into, took)
		}
		begin := time.Now()
		limit, err := startLimit(ctx, filepath.Join(dir, fmt.Sprint(i), "limit"), model)
		if err != nil {
			return err
		}
		err = limit.answers(ctx)
		r.starts.limit = append(r.starts.limit, time.Since(begin))
		limit.kill()
		if err != nil {
			return err
		}
	}
	return nil
}

// timeRuntime starts a formation, waits for its first answer and kills it.
func timeRuntime(ctx context.Context, p plan, formation string) (time.Duration, error) {
	port, err := freePort(ctx)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	ours, err := startRuntime(ctx, p.bin, formation, port)
	if err != nil {
		return 0, err
	}
	defer ours.kill()
	err = ours.answers(ctx)
	return time.Since(begin), err
}
