package turn_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
)

// gated answers each message once it is released, and shows that it has begun.
type gated struct {
	begun   chan string
	release chan struct{}
}

func newGated() *gated {
	return &gated{begun: make(chan string, 100), release: make(chan struct{})}
}

func (g *gated) handler(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
	if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: "re: "}); err != nil {
		return chat.Answer{}, err
	}
	g.begun <- in.Message
	select {
	case <-g.release:
	case <-ctx.Done():
		return chat.Answer{}, context.Cause(ctx)
	}
	if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: in.Message}); err != nil {
		return chat.Answer{}, err
	}
	return chat.Answer{Content: "re: " + in.Message, AgentID: "writer", Model: "m-1"}, nil
}

// siblings starts two processes on one store. The second works no jobs, as the
// one without the lease does.
func siblings(t *testing.T, a, b turn.Handler, opt options) (first, second *process, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s.db")
	first = start(t, path, "a", a, opt)
	opt.noJobs = true
	second = start(t, path, "b", b, opt)
	for _, p := range []*process{first, second} {
		heed(t, p)
	}
	return first, second, path
}

// heed looks for signals as often as a formation with siblings does.
func heed(t *testing.T, p *process) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := p.Heed(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func find(t *testing.T, p *process, id string) *turn.Handle {
	t.Helper()
	h, err := p.Find(t.Context(), "u1", id, false)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func refuse(t *testing.T) handler {
	return func(context.Context, overlord.Input, chat.Sink) (chat.Answer, error) {
		t.Error("the turn ran a second time")
		return chat.Answer{}, errors.New("ran twice")
	}
}

func TestRemote_ADuplicateWaitsForTheTurnInTheOtherProcess(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), refuse(t), options{})
	first := begin(t, a, turn.Request{IdempotencyKey: "k"})
	<-g.begun
	again := begin(t, b, turn.Request{IdempotencyKey: "k"})
	if !again.Replayed || again.ID != first.ID {
		t.Fatalf("replayed %v, id %s of %s", again.Replayed, again.ID, first.ID)
	}
	threshold := time.Millisecond
	if _, err := begin(t, b, turn.Request{IdempotencyKey: "k", Threshold: &threshold}).Wait(t.Context()); !errors.Is(err, turn.ErrContinues) {
		t.Fatalf("over the threshold: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(g.release) })
	if diff := cmp.Diff(wait(t, first), wait(t, again)); diff != "" {
		t.Fatal(diff)
	}
	if _, err := b.Begin(t.Context(), turn.Request{UserID: "u1", Message: "other", IdempotencyKey: "k", Route: "POST /v1/chat", BodyHash: [32]byte{9}}); fault.KindOf(err) != fault.Conflict {
		t.Fatalf("another body under the same key: %v", err)
	}
}

func TestRemote_DuplicatesAtBothProcessesAtOnceRunOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	once := handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		runs.Add(1)
		return say("once")(ctx, in, sink)
	})
	a, b, _ := siblings(t, once, once, options{})
	var wg sync.WaitGroup
	for i := range 40 {
		p := []*process{a, b}[i%2]
		wg.Go(func() {
			h, err := p.Begin(t.Context(), turn.Request{UserID: "u", Message: "m", IdempotencyKey: "k", Route: "POST /v1/chat"})
			if err != nil {
				t.Error(err)
				return
			}
			if reply, err := h.Wait(t.Context()); err != nil || reply.Response != "once" {
				t.Errorf("reply %+v, %v", reply, err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Fatalf("ran %d times", runs.Load())
	}
}

func TestRemote_AStreamIsFollowedWhileTheOtherProcessTellsIt(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), refuse(t), options{})
	h := begin(t, a, turn.Request{Stream: true, Message: "hello"})
	var got []string
	remote := find(t, b, h.ID)
	if err := remote.Frames(t.Context(), 0, func(batch []turn.Frame) error {
		for _, f := range batch {
			if got = append(got, describe(t, f)); len(got) == 2 {
				close(g.release) // the start was shown before the end exists
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"progress/init", "content/response_generation:re: ", "content/response_generation:hello",
		"completed:re: hello", `done {"finished":true}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if remote.Stopped() {
		t.Error("a complete stream counts as cut")
	}
	if diff := cmp.Diff(want[3:], frames(t, find(t, b, h.ID), 3)); diff != "" {
		t.Fatal(diff)
	}
}

func TestRemote_AStreamGoesOnHereWhenTheOtherProcessDies(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), say("re: ", "hello"), options{})
	h := begin(t, a, turn.Request{Stream: true, Message: "hello", SessionID: "s"})
	<-g.begun
	read, got := make(chan []string, 1), make(chan struct{}, 10)
	go func() {
		var list []string
		if err := find(t, b, h.ID).Frames(t.Context(), 0, func(batch []turn.Frame) error {
			for _, f := range batch {
				list = append(list, describe(t, f))
				got <- struct{}{}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		read <- list
	}()
	<-got
	<-got
	if err := b.db.Fence(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Recover(t.Context()); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	want := []string{
		"progress/init", "content/response_generation:re: ", "content/response_generation:hello",
		"completed:re: hello", `done {"finished":true}`,
	}
	if diff := cmp.Diff(want, <-read); diff != "" {
		t.Fatal(diff)
	}
}

func TestRemote_AFollowedStreamOfAProcessThatStopsIsCutNotEnded(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), refuse(t), options{})
	h := begin(t, a, turn.Request{Stream: true})
	<-g.begun
	remote := find(t, b, h.ID)
	if err := remote.Frames(t.Context(), 0, func([]turn.Frame) error {
		go b.Stop()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !remote.Stopped() {
		t.Error("the reader was told that the stream is complete")
	}
	if _, err := find(t, b, h.ID).Wait(t.Context()); fault.NameOf(err) != "SERVICE_UNAVAILABLE" {
		t.Errorf("err = %v", err)
	}
	close(g.release)
}

func TestRemote_CancelEndsTheTurnInTheOtherProcess(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), refuse(t), options{})
	h := begin(t, a, turn.Request{Stream: true})
	<-g.begun
	if _, err := b.Cancel(t.Context(), "u2", h.ID, false); fault.KindOf(err) != fault.Forbidden {
		t.Fatalf("another user's: %v", err)
	}
	for range 2 { // twice is no fault
		if how, err := b.Cancel(t.Context(), "u1", h.ID, false); how != turn.Cooperative || err != nil {
			t.Fatalf("%s, %v", how, err)
		}
	}
	if reply := wait(t, find(t, b, h.ID)); reply.Status != request.Cancelled {
		t.Fatalf("reply = %+v", reply)
	}
	// The reader over here sees the closing frames that the other one makes.
	if got := frames(t, find(t, b, h.ID), 2); !cmp.Equal(got, []string{"completed: (discontinuity)", `done {"finished":true}`}) {
		t.Fatal(got)
	}
	if reply := wait(t, h); reply.Status != request.Cancelled {
		t.Fatalf("reply there = %+v", reply)
	}
	done := begin(t, a, turn.Request{Message: "free"})
	close(g.release)
	wait(t, done)
	if _, err := b.Cancel(t.Context(), "u1", done.ID, false); fault.NameOf(err) != "OPERATION_FAILED" {
		t.Fatalf("cancel of a completed turn: %v", err)
	}
}

func TestRemote_ASessionHasOneTurnAtATimeOverBothProcesses(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	var mu sync.Mutex
	var order []string
	h := handler(func(_ context.Context, in overlord.Input, _ chat.Sink) (chat.Answer, error) {
		now := running.Add(1)
		defer running.Add(-1)
		mu.Lock()
		most.Store(max(most.Load(), now))
		order = append(order, in.Message)
		mu.Unlock()
		if len(in.History) != 2*(len(order)-1) {
			return chat.Answer{}, fmt.Errorf("%s sees %d messages, want %d", in.Message, len(in.History), 2*(len(order)-1))
		}
		return chat.Answer{Content: "ok", AgentID: "writer"}, nil
	})
	a, b, _ := siblings(t, h, h, options{})
	handles := make([]*turn.Handle, 5) // five exchanges fill the window of the test's memory
	want := make([]string, len(handles))
	for i := range handles {
		want[i] = fmt.Sprint("m", i)
		handles[i] = begin(t, []*process{a, b}[i%2], turn.Request{SessionID: "s", Message: want[i]})
	}
	for _, h := range handles {
		wait(t, h)
	}
	if most.Load() != 1 {
		t.Errorf("%d turns of one session at once", most.Load())
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
}

func TestRemote_ManySessionsOverBothProcessesNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	open := make(map[string]int)
	h := handler(func(_ context.Context, in overlord.Input, _ chat.Sink) (chat.Answer, error) {
		mu.Lock()
		open[in.Message]++
		if open[in.Message] > 1 {
			t.Errorf("two turns of session %s at once", in.Message)
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			open[in.Message]--
		}()
		return chat.Answer{Content: "ok", AgentID: "writer"}, nil
	})
	a, b, _ := siblings(t, h, h, options{})
	var wg sync.WaitGroup
	for i := range 120 {
		p, session, mode := []*process{a, b}[i%2], fmt.Sprint("s", i%7), []string{turn.Sync, turn.Async}[i/2%2]
		wg.Go(func() {
			handle, err := p.Begin(t.Context(), turn.Request{UserID: "u1", SessionID: session, Message: session, Mode: mode, Route: "POST /v1/chat"})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := handle.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestRemote_OneOfTwoProcessesTakesOverWhatADeadOneLeft(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	g := newGated()
	dead := start(t, path, "dead", handler(g.handler), options{noJobs: true})
	const left = 20
	for i := range left {
		begin(t, dead, turn.Request{ID: fmt.Sprint("left-", i)})
	}
	var runs atomic.Int64
	count := handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		runs.Add(1)
		return say("taken over")(ctx, in, sink)
	})
	a := start(t, path, "a", count, options{noJobs: true})
	b := start(t, path, "b", count, options{noJobs: true})
	if _, err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs.Load() != 0 {
		t.Fatal("the turns of a living process were taken over")
	}
	if err := a.db.Fence(t.Context(), []string{"dead"}); err != nil {
		t.Fatal(err)
	}
	var taken atomic.Int64
	var wg sync.WaitGroup
	for _, p := range []*process{a, b, a, b} {
		wg.Go(func() {
			n, err := p.Recover(t.Context())
			if err != nil {
				t.Error(err)
			}
			taken.Add(int64(n))
		})
	}
	wg.Wait()
	for i := range left {
		if reply := wait(t, find(t, b, fmt.Sprint("left-", i))); reply.Response != "taken over" {
			t.Fatalf("reply = %+v", reply)
		}
	}
	if taken.Load() != left || runs.Load() != left {
		t.Fatalf("%d taken, %d run; want %d", taken.Load(), runs.Load(), left)
	}
}

func TestRemote_ATurnThatEndsWithItsReadersHasThoseOfTheOtherProcessToo(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(g.handler), refuse(t), options{grace: 50 * time.Millisecond})
	h := begin(t, a, turn.Request{Stream: true, OnDisconnect: "cancel"})
	<-g.begun
	there, leaveThere := context.WithCancel(t.Context())
	here, leaveHere := context.WithCancel(t.Context())
	defer leaveThere()
	defer leaveHere()
	read := func(ctx context.Context, h *turn.Handle) chan error {
		done, reading := make(chan error, 1), make(chan struct{})
		begun := sync.OnceFunc(func() { close(reading) })
		go func() {
			done <- h.Frames(ctx, 0, func([]turn.Frame) error {
				begun()
				return nil
			})
		}()
		<-reading
		return done
	}
	thereEnded, hereEnded := read(there, h), read(here, find(t, b, h.ID))
	leaveThere()
	if err := <-thereEnded; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select { // several graces
	case err := <-hereEnded:
		t.Fatalf("the turn ended although it is read here: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	leaveHere()
	if err := <-hereEnded; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if reply := wait(t, h); reply.Status != request.Cancelled {
		t.Fatalf("reply = %+v", reply)
	}
}

func TestAsync_MoreThanThereArePlacesForRunWithoutTheQueue(t *testing.T) {
	t.Parallel()
	g := newGated()
	_, b, _ := siblings(t, refuse(t), handler(g.handler), options{}) // b works no jobs
	const turns, places = 20, 16
	handles := make(map[string]*turn.Handle)
	for i := range turns {
		handles[fmt.Sprint(i)] = begin(t, b, turn.Request{Mode: turn.Async, Message: fmt.Sprint(i)})
	}
	running := make(map[string]bool)
	for range places {
		running[<-g.begun] = true
	}
	select {
	case m := <-g.begun:
		t.Errorf("turn %s has no place and runs", m)
	case <-time.After(50 * time.Millisecond):
	}
	cancelled := ""
	for m, h := range handles {
		if running[m] {
			continue
		}
		if how, err := b.Cancel(t.Context(), "u1", h.ID, false); how != turn.Immediate || err != nil {
			t.Errorf("cancel of a waiting turn: %s, %v", how, err)
		}
		cancelled = m
		break
	}
	close(g.release)
	for m, h := range handles {
		want := request.Completed
		if m == cancelled {
			want = request.Cancelled
		}
		if reply := wait(t, h); reply.Status != want {
			t.Errorf("turn %s: %+v, want %s", m, reply, want)
		}
	}
}
