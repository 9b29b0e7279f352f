package formation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/test/fakellm"
)

// lameDuck is the time that the supervisor gives to clients (childLameDuck).
const lameDuck = 2 * time.Second

func TestUpdate_UnderLoadNothingFailsAndNoStreamIsCut(t *testing.T) {
	w := newWorld(t)
	w.fake.Add(fakellm.Rule{Reply: fakellm.Reply{Text: "one two three four five six", Chunks: 6, DelayMS: 10, ChunkDelayMS: 15}})
	old := w.load(w.config("launch-0"))
	w.check(old.Serve(t.Context()))
	l := w.startLoad(12)
	for i := range 5 {
		next := w.load(w.config(fmt.Sprint("launch-", i+1)))
		w.swap(old, next, fmt.Sprint("launch-", i), lameDuck)
		old = next
	}
	l.stop()
}

func TestPause_ServesOnWhatIsOpenAndLeavesTheRestInTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.load(w.config("launch-1"))
	w.check(f.Serve(t.Context()))
	keep := w.wired()
	if r := w.must(keep, ask{body: `{"message":"one"}`}); r.status != http.StatusOK || r.closed {
		t.Fatalf("%d, closed %v", r.status, r.closed)
	}
	w.check(f.Pause(t.Context()))
	w.check(f.Pause(t.Context())) // twice is no fault
	if h, err := f.Health(t.Context()); err != nil || !h.Ready || h.Serving {
		t.Errorf("paused: %+v, %v", h, err)
	}
	// A new turn on the open connection is answered, and the connection ends.
	if r := w.must(keep, ask{body: `{"message":"two"}`}); r.status != http.StatusOK || !r.closed {
		t.Fatalf("%d, closed %v", r.status, r.closed)
	}
	// A new connection waits for whoever accepts next.
	answered := w.later(w.client(false), ask{body: `{"message":"three"}`})
	select {
	case r := <-answered:
		t.Fatalf("a paused child accepted: %d, %v", r.status, r.err)
	case <-time.After(150 * time.Millisecond):
	}
	w.check(f.Serve(t.Context()))
	if r := w.answer(answered); r.status != http.StatusOK {
		t.Fatalf("status %d", r.status)
	}
	if r := w.must(w.client(true), ask{body: `{"message":"four"}`}); r.status != http.StatusOK || r.closed {
		t.Fatalf("%d, closed %v", r.status, r.closed)
	}
}

func TestDrain_AnswersAConnectionThatHasNotSpokenYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.load(w.config("launch-1"))
	w.check(f.Serve(t.Context()))
	conn, err := net.Dial("tcp", w.addr)
	w.check(err)
	defer conn.Close()
	// The answer to a later connection tells that the first was accepted.
	w.must(w.client(false), ask{method: http.MethodGet, path: "/v1/health"})
	drained := make(chan error, 1)
	go func() {
		_, err := f.Drain(t.Context(), control.DrainRequest{Timeout: patience})
		drained <- err
	}()
	select {
	case err := <-drained:
		t.Fatalf("drained with a silent connection: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if _, err := conn.Write([]byte("GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := conn.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200") {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	w.check(<-drained)
	if err := f.Serve(t.Context()); fault.KindOf(err) != fault.Conflict {
		t.Errorf("serve after the end: %v", err)
	}
}

func TestDrain_APausedChildNeverUnlistensThePort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var closed atomic.Int64
	cfg := w.config("launch-1")
	cfg.CloseSocket = func() error { closed.Add(1); return nil }
	f := w.load(cfg)
	w.check(f.Serve(t.Context()))
	w.check(f.Pause(t.Context()))
	if _, err := f.Drain(t.Context(), control.DrainRequest{Timeout: time.Second, CloseSocket: true}); err != nil {
		t.Fatal(err)
	}
	if closed.Load() != 0 {
		t.Error("the port was closed under the child that serves")
	}
}

func TestUpdate_WhatIsAskedOfOneChildIsAnsweredByTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(
		fakellm.Rule{User: "slow", Reply: fakellm.Reply{Text: "a b c d", Chunks: 4, Gate: "slow", GateAfter: 2}},
		fakellm.Rule{User: "endless", Reply: fakellm.Reply{Gate: "never"}},
	)
	old := w.load(w.config("old"))
	w.check(old.Serve(t.Context()))
	slow := `{"message":"slow","stream":true,"session_id":"sess_1","request_id":"req_slow"}`
	first := w.open(w.client(false), ask{body: slow, stream: true, header: map[string]string{"X-SVC-Idempotency-Key": "k"}})
	first.skipTo(t, "response_generation")
	endless := w.later(w.client(false), ask{body: `{"message":"endless","request_id":"req_endless"}`})
	w.check(w.fake.WaitActive(t.Context(), 2))

	fresh := w.load(w.config("new"))
	w.check(fresh.Serve(t.Context()))
	w.check(old.Pause(t.Context()))
	c := w.client(false) // connections to the new child from here on

	get := ask{method: http.MethodGet, path: "/v1/requests/req_slow", header: map[string]string{"X-SVC-User-Id": "0"}}
	if e := w.must(c, get).envelope(t); e.Data.Status != "processing" {
		t.Errorf("status of the other's turn: %+v", e)
	}
	joined := w.open(c, ask{body: slow, stream: true, header: map[string]string{"Last-Event-ID": "0"}})
	joined.skipTo(t, "response_generation")
	replayed := w.open(c, ask{body: slow, stream: true, header: map[string]string{"X-SVC-Idempotency-Key": "k"}})
	replayed.skipTo(t, "response_generation")
	watched := w.open(c, ask{method: http.MethodGet, path: "/v1/events/sess_1/req_slow", header: map[string]string{"X-SVC-User-Id": "0"}})
	watched.skipTo(t, "response_generation")
	// The next turn of the session waits for the one that the old child has.
	next := w.later(c, ask{body: `{"message":"next","session_id":"sess_1"}`})

	cancel := ask{method: http.MethodDelete, path: "/v1/requests/req_endless", header: map[string]string{"X-SVC-User-Id": "0"}}
	if r := w.must(c, cancel); r.status != http.StatusOK {
		t.Errorf("cancel: %d %s", r.status, r.body)
	}
	if e := w.answer(endless).envelope(t); e.Data.Status != "cancelled" {
		t.Errorf("the caller of the cancelled turn got %+v", e)
	}
	select {
	case r := <-next:
		t.Errorf("two turns of a session at once: %s, %v", r.body, r.err)
	case <-time.After(200 * time.Millisecond):
	}
	w.fake.Release("slow")
	for name, e := range map[string]*events{"first": first, "joined": joined, "replayed": replayed} {
		e.skipTo(t, `"type":"completed"`)
		e.skipTo(t, "event: done")
		_ = name
	}
	watched.skipTo(t, "stream_completed")
	if r := w.answer(next); r.status != http.StatusOK {
		t.Errorf("the next turn: %d %s", r.status, r.body)
	}
}

func TestUpdate_TheLeaseOnBackgroundWorkMovesWithServing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.load(w.config("old"))
	w.check(old.Serve(t.Context()))
	observer, err := store.Open(t.Context(), store.Config{Path: filepath.Join(w.state, "memory.db"), LaunchID: "observer", Log: zerolog.Nop()})
	w.check(err)
	defer observer.Close()
	holder := func() (id string) {
		_ = observer.QueryRow(t.Context(), `SELECT launch_id FROM leases WHERE name = 'background'`, nil, &id)
		return id
	}
	until(t, "the old child works", func() bool { return holder() == "old" })
	fresh := w.load(w.config("new"))
	w.check(fresh.Serve(t.Context()))
	// More background turns than have a place of their own run although the
	// other child holds the queue.
	c := w.client(true)
	var ids []string
	for range 20 {
		e := w.must(c, ask{body: `{"message":"later","mode":"async"}`}).envelope(t)
		ids = append(ids, e.Data.RequestID)
	}
	for _, id := range ids {
		until(t, "a background turn", func() bool {
			return w.must(c, ask{method: http.MethodGet, path: "/v1/requests/" + id}).envelope(t).Data.Status == "completed"
		})
	}
	if id := holder(); id != "old" {
		t.Errorf("the work moved to %q before the pause", id)
	}
	began := time.Now()
	w.check(old.Pause(t.Context()))
	// It waits for that only so long (releaseTimeout).
	if took := time.Since(began); holder() == "old" && took < 2*time.Second {
		t.Errorf("the lease was not given up by the pause of %v", took)
	}
	until(t, "the new child works", func() bool { return holder() == "new" })
	w.check(fresh.Pause(t.Context()))
	w.check(old.Serve(t.Context()))
	until(t, "the old child works again", func() bool { return holder() == "old" })
	w.check(old.Stop(t.Context()))
	w.check(fresh.Serve(t.Context()))
	until(t, "the new child works again", func() bool { return holder() == "new" })
}

// follow collects the records that a child tells.
func follow(t *testing.T, f interface {
	Records(context.Context, uint64, func(control.Record) error) error
}, sink func(control.Record) error,
) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Records(ctx, 0, sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRecords_OfBothChildrenComeFromEither(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.load(w.config("old"))
	w.check(old.Serve(t.Context()))
	admin, err := secretfile.LoadKeys(filepath.Join(w.state, "keys"))
	w.check(err)
	asAdmin := map[string]string{"X-SVC-Admin-Key": admin.Admin}
	toOld := w.wired()
	w.must(toOld, ask{body: `{"message":"x","request_id":"req_x"}`}) // keeps a connection to the old child

	fresh := w.load(w.config("new"))
	w.check(fresh.Serve(t.Context()))
	var mu sync.Mutex
	var got []control.Record
	follow(t, fresh, func(r control.Record) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r)
		return nil
	})
	actions := func() (list []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range got {
			list = append(list, r.Action+" "+r.Result)
		}
		return list
	}
	until(t, "the record of the load", func() bool { return slices.Contains(actions(), "keys.generated ok") })
	if r := w.must(toOld, ask{method: http.MethodDelete, path: "/v1/requests/req_x", header: asAdmin}); r.status != http.StatusBadRequest {
		t.Fatalf("cancel of an ended request: %d %s", r.status, r.body)
	}
	until(t, "the record of the old child", func() bool { return slices.Contains(actions(), "request.cancel OPERATION_FAILED") })
	mu.Lock()
	defer mu.Unlock()
	last := got[slices.IndexFunc(got, func(r control.Record) bool { return r.Action == "request.cancel" })]
	var detail map[string]string
	if err := json.Unmarshal(last.Detail, &detail); err != nil || last.Actor != "admin" || detail["subject"] != "req_x" ||
		detail["from"] != "127.0.0.1" || !strings.HasPrefix(detail["request_id"], "req_") {
		t.Errorf("record %+v, detail %s", last, last.Detail)
	}
}

func TestKeys_ARotationNeedsNoRestartAndOverlaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.load(w.config("launch-1"))
	w.check(f.Serve(t.Context()))
	path := filepath.Join(w.state, "keys")
	before, err := secretfile.LoadKeys(path)
	w.check(err)
	c := w.client(true)
	opens := func(key string) bool {
		return w.must(c, ask{method: http.MethodGet, path: "/v1/status", header: map[string]string{"X-SVC-Admin-Key": key, "X-SVC-Client-Key": ""}}).status == http.StatusOK
	}
	if !opens(before.Admin) || opens("fma_wrong") {
		t.Fatal("the generated key does not open, or any does")
	}
	after, err := secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		return k.Rotate(time.Now(), time.Hour), true
	})
	w.check(err)
	until(t, "the new key", func() bool { return opens(after.Admin) })
	if !opens(before.Admin) {
		t.Error("the old key ended before its overlap")
	}
	_, err = secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		k.Previous[0].ValidUntil = time.Now().Add(2 * time.Second) // it ends by the clock
		return k, true
	})
	w.check(err)
	until(t, "the end of the old key", func() bool { return !opens(before.Admin) })
	if !opens(after.Admin) {
		t.Error("the new key ended")
	}
}

func TestFence_OfTheNewChildGivesItsTurnsToTheOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Add(fakellm.Rule{User: "held", Times: 1, Reply: fakellm.Reply{Gate: "never"}})
	old := w.load(w.config("old"))
	w.check(old.Serve(t.Context()))
	fatal := make(chan error, 1)
	cfg := w.config("new")
	cfg.Fatal = func(err error) {
		select {
		case fatal <- err:
		default:
		}
	}
	fresh := w.load(cfg)
	w.check(old.Pause(t.Context()))
	w.check(fresh.Serve(t.Context()))
	answered := w.later(w.client(false), ask{body: `{"message":"held","request_id":"req_held"}`})
	w.check(w.fake.WaitActive(t.Context(), 1))
	w.check(old.Serve(t.Context()))
	// Its own id is passed over. It looks after its siblings by itself, too, and
	// may have taken the turn in hand before this could.
	n, err := old.Fence(t.Context(), []string{"new", "old"})
	if n > 1 || err != nil {
		t.Fatalf("resumed %d, %v", n, err)
	}
	get := ask{method: http.MethodGet, path: "/v1/requests/req_held"}
	if err := fresh.Pause(t.Context()); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a fenced child paused: %v", err)
	}
	until(t, "the turn", func() bool { return w.must(w.client(false), get).envelope(t).Data.Status == "completed" })
	// The fenced one notices, ends by itself, and told nobody that it answered.
	if err := <-fatal; !errors.Is(err, store.ErrFenced) {
		t.Errorf("fatal: %v", err)
	}
	began := time.Now()
	w.check(fresh.Stop(t.Context()))
	took := time.Since(began)
	// A stop waits for answers to leave only so long (farewellTime).
	if r := <-answered; r.status != http.StatusServiceUnavailable && (r.err == nil || took < 500*time.Millisecond) {
		t.Errorf("the caller of the fenced child got %d %s, %v after %v", r.status, r.body, r.err, took)
	}
}

func TestUpdate_WhatAProcessLeftThatNobodyMetIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.load(w.config("one"))
	w.check(f.Serve(t.Context()))
	// Another process comes, accepts a request and dies before this one looks.
	other, err := store.Open(t.Context(), store.Config{Path: filepath.Join(w.state, "memory.db"), LaunchID: "unmet", Log: zerolog.Nop()})
	w.check(err)
	w.check(other.Write(t.Context(), func(tx *store.Tx) error {
		_, err := request.Accept(tx, request.Record{
			ID: "req_left", UserID: "0", SessionID: "sess_1", Status: request.Processing, Mode: request.ModeAsync,
			Message: "hello", LaunchID: "unmet", CreatedAt: time.Now(),
		}, nil)
		return err
	}))
	w.check(other.Close())
	get := ask{method: http.MethodGet, path: "/v1/requests/req_left"}
	until(t, "the end of what was left", func() bool { return w.must(w.client(false), get).envelope(t).Data.Status == "completed" })
}
