package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/jobs"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handler is an overlord whose answer is a function.
type handler func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error)

func (h handler) Knows(id string) bool { return id == "writer" }

func (h handler) Handle(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
	return h(ctx, in, sink)
}

// say streams the parts and answers with all of them.
func say(parts ...string) handler {
	return func(_ context.Context, _ overlord.Input, sink chat.Sink) (chat.Answer, error) {
		for _, p := range parts {
			if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: p}); err != nil {
				return chat.Answer{}, err
			}
		}
		return chat.Answer{
			Content: strings.Join(parts, ""), AgentID: "writer", Model: "m-1",
			Usage: chat.Usage{PromptTokens: 3, CompletionTokens: 2, TotalTokens: 5},
		}, nil
	}
}

// process is one life of a formation's turns over a store.
type process struct {
	*turn.Service
	db   *store.DB
	stop func()
}

type options struct {
	fence  []string
	async  manifest.Async
	grace  time.Duration
	noJobs bool // another process works the queue
	hub    *telemetry.Hub
	log    zerolog.Logger // its zero value writes nowhere
	redact func(string) string
}

func start(t *testing.T, path, launch string, h turn.Handler, opt options) *process {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: path, LaunchID: launch, Fence: opt.fence, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if opt.async.Mode == "" {
		opt.async = manifest.Async{Mode: "auto", Threshold: time.Minute, EnableEstimation: true, ResultTTL: time.Hour, OnDisconnect: "continue"}
	}
	var ids atomic.Int64
	newID := func(prefix string) string { return fmt.Sprintf("%s%s-%d", prefix, launch, ids.Add(1)) }
	p := &process{db: db}
	queue, err := jobs.New(t.Context(), jobs.Config{DB: db, Log: zerolog.Nop(), Handlers: map[string]jobs.Handler{
		turn.JobKind: func(ctx context.Context, j jobs.Job) error { return p.RunJob(ctx, j.Key) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.Service = turn.New(t.Context(), turn.Config{
		DB: db, Overlord: h, Jobs: queue, NewID: newID, Async: opt.async, CancelGrace: opt.grace, Telemetry: opt.hub, Log: opt.log, Redact: opt.redact,
		Memory:   memory.New(memory.Config{DB: db, FormationID: "f", BufferSize: 10, NewID: newID}),
		Response: manifest.Response{Format: "markdown", StreamTokens: true, Progress: true},
	})
	if err := queue.ReleaseOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Open()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		if opt.noJobs {
			done <- nil
			return
		}
		done <- queue.Run(ctx)
	}()
	p.stop = sync.OnceFunc(func() {
		p.Stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

func begin(t *testing.T, p *process, r turn.Request) *turn.Handle {
	t.Helper()
	if r.UserID == "" {
		r.UserID = "u1"
	}
	if r.Message == "" {
		r.Message = "hello"
	}
	r.Route = "POST /v1/chat"
	h, err := p.Begin(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func wait(t *testing.T, h *turn.Handle) *turn.Reply {
	t.Helper()
	reply, err := h.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// frames reads a stream to its end as "type[/stage]:content" lines.
func frames(t *testing.T, h *turn.Handle, after uint64) []string {
	t.Helper()
	var out []string
	next := after + 1
	err := h.Frames(t.Context(), after, func(batch []turn.Frame) error {
		for _, f := range batch {
			if f.ID != next {
				t.Errorf("frame id %d, want %d", f.ID, next)
			}
			next++
			out = append(out, describe(t, f))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func describe(t *testing.T, f turn.Frame) string {
	t.Helper()
	if f.Event != "" {
		return f.Event + " " + string(f.Data)
	}
	var token struct {
		Type, Stage, Content string
		Discontinuity        bool `json:"stream_discontinuity"`
	}
	if err := json.Unmarshal(f.Data, &token); err != nil {
		t.Fatalf("frame %s: %v", f.Data, err)
	}
	s := token.Type
	if token.Stage != "" {
		s += "/" + token.Stage
	}
	if token.Type == "content" || token.Type == "completed" {
		s += ":" + token.Content
	}
	if token.Discontinuity {
		s += " (discontinuity)"
	}
	return s
}

func TestBegin_AnswersAndRemembersInOneCommit(t *testing.T) {
	t.Parallel()
	var history [][]chat.Message
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		history = append(history, in.History)
		return say("hi ", in.Message)(ctx, in, sink)
	}), options{})
	h := begin(t, p, turn.Request{Message: "one", SessionID: "s"})
	reply := wait(t, h)
	if reply.Response != "hi one" || reply.Agent != "writer" || reply.Usage.TotalTokens != 5 || reply.Status != request.Completed {
		t.Fatalf("reply = %+v", reply)
	}
	wait(t, begin(t, p, turn.Request{Message: "two", SessionID: "s"}))
	want := []chat.Message{{Role: chat.User, Content: "one"}, {Role: chat.Assistant, Content: "hi one"}}
	if diff := cmp.Diff(want, history[1]); diff != "" {
		t.Errorf("history of the second turn: %s", diff)
	}
	var events int
	if err := p.db.QueryRow(t.Context(), `SELECT COUNT(*) FROM memory_events WHERE event_type = 'interaction.turn' AND request_id = ?`, []any{h.ID}, &events); err != nil || events != 1 {
		t.Fatalf("events = %d, %v", events, err)
	}
}

func TestBegin_StreamsFramesInOrderAndReplaysThemFromTheStore(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("Hel", "lo \"you\"\n"), options{})
	h := begin(t, p, turn.Request{Stream: true})
	want := []string{
		"progress/init", "content/response_generation:Hel", "content/response_generation:lo \"you\"\n",
		"completed:Hello \"you\"\n", `done {"finished":true}`,
	}
	if diff := cmp.Diff(want, frames(t, h, 0)); diff != "" {
		t.Fatal(diff)
	}
	wait(t, h)
	again, err := p.Find(t.Context(), "u1", h.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[2:], frames(t, again, 2)); diff != "" {
		t.Fatal(diff)
	}
}

func TestFrames_AnIDBeyondTheEndWaitsForTheEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		<-release
		return say("x")(ctx, in, sink)
	}), options{})
	h := begin(t, p, turn.Request{Stream: true})
	time.AfterFunc(10*time.Millisecond, func() { close(release) })
	if err := h.Frames(t.Context(), 1<<64-1, func(fs []turn.Frame) error { return fmt.Errorf("got %d frames", len(fs)) }); err != nil {
		t.Fatal(err)
	}
}

func TestBegin_FiftyDuplicatesAtOnceRunOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		runs.Add(1)
		return say("once")(ctx, in, sink)
	}), options{})
	ids := make(chan string, 50)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			h, err := p.Begin(t.Context(), turn.Request{UserID: "u", Message: "m", IdempotencyKey: "k", Route: "POST /v1/chat", BodyHash: [32]byte{1}})
			if err != nil {
				t.Error(err)
				return
			}
			reply, err := h.Wait(t.Context())
			if err != nil || reply.Response != "once" {
				t.Errorf("reply %+v, %v", reply, err)
			}
			ids <- h.ID
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Fatalf("ids %s and %s", first, id)
		}
	}
	if runs.Load() != 1 {
		t.Fatalf("ran %d times", runs.Load())
	}
	_, err := p.Begin(t.Context(), turn.Request{UserID: "u", Message: "other", IdempotencyKey: "k", Route: "POST /v1/chat", BodyHash: [32]byte{2}})
	if fault.KindOf(err) != fault.Conflict {
		t.Fatalf("another body under the same key: %v", err)
	}
}

func TestBegin_FailedRequestRunsAgainUnderItsKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		if runs.Add(1) == 1 {
			return chat.Answer{}, fault.New(fault.Failed, "", "the model is out")
		}
		return say("better")(ctx, in, sink)
	}), options{})
	first := begin(t, p, turn.Request{IdempotencyKey: "k"})
	if _, err := first.Wait(t.Context()); err == nil || err.Error() != "the model is out" {
		t.Fatalf("err = %v", err)
	}
	rec, err := request.Get(t.Context(), p.db, first.ID)
	if err != nil || rec.Status != request.Failed || rec.ErrorCode != "INTERNAL_ERROR" || rec.Error != "the model is out" {
		t.Fatalf("record = %+v, %v", rec, err)
	}
	if reply := wait(t, begin(t, p, turn.Request{IdempotencyKey: "k"})); reply.Response != "better" {
		t.Fatalf("reply = %+v", reply)
	}
}

func TestBegin_RefusesARequestIDInUseAndAnUnknownAgent(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("x"), options{})
	wait(t, begin(t, p, turn.Request{ID: "mine"}))
	if _, err := p.Begin(t.Context(), turn.Request{ID: "mine", UserID: "u", Message: "m"}); fault.NameOf(err) != "CONFLICT" {
		t.Fatalf("err = %v", err)
	}
	if _, err := p.Begin(t.Context(), turn.Request{AgentID: "nobody", Message: "m"}); fault.NameOf(err) != "AGENT_NOT_FOUND" {
		t.Fatalf("err = %v", err)
	}
}

func TestAsync_RunsAsAJobAndIsFoundByItsID(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("later"), options{})
	h := begin(t, p, turn.Request{Mode: turn.Async})
	if !h.Async {
		t.Fatal("not accepted for the background")
	}
	reply := wait(t, h)
	if reply.Response != "later" || reply.ProcessingMode != "async" {
		t.Fatalf("reply = %+v", reply)
	}
}

func TestAsync_MoreThanBeginAtOnceAllEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		<-release
		return say("later")(ctx, in, sink)
	}), options{})
	handles := make([]*turn.Handle, 40)
	for i := range handles {
		handles[i] = begin(t, p, turn.Request{Mode: turn.Async})
	}
	close(release)
	for _, h := range handles {
		wait(t, h)
	}
}

func TestWait_PastTheThresholdTheTurnContinues(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		<-release
		return say("slow")(ctx, in, sink)
	}), options{})
	short := time.Millisecond
	h := begin(t, p, turn.Request{Threshold: &short})
	if _, err := h.Wait(t.Context()); !errors.Is(err, turn.ErrContinues) {
		t.Fatalf("err = %v", err)
	}
	close(release)
	again, err := p.Find(t.Context(), "u1", h.ID, false)
	if err != nil {
		t.Fatal(err)
	}
	if reply := wait(t, again); reply.Response != "slow" {
		t.Fatalf("reply = %+v", reply)
	}
}

func TestSession_TurnsRunOneAtATimeInOrder(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		return say(fmt.Sprint(len(in.History)/2))(ctx, in, sink)
	}), options{})
	var wg sync.WaitGroup
	seen := make([]string, 12)
	for i := range seen {
		wg.Go(func() { seen[i] = wait(t, begin(t, p, turn.Request{SessionID: "s"})).Response })
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Fatalf("%d turns of one session ran at once", most.Load())
	}
}

func TestCancel_EndsARunningTurnForGood(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
		close(entered)
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{})
	h := begin(t, p, turn.Request{Stream: true})
	<-entered
	if _, err := p.Cancel(t.Context(), "u2", h.ID, false); fault.NameOf(err) != "FORBIDDEN" {
		t.Fatalf("another user: %v", err)
	}
	how, err := p.Cancel(t.Context(), "u1", h.ID, false)
	if err != nil || how != turn.Cooperative {
		t.Fatalf("cancel: %s, %v", how, err)
	}
	want := []string{"progress/init", "completed:", `done {"finished":true}`}
	if diff := cmp.Diff(want, frames(t, h, 0)); diff != "" {
		t.Fatal(diff)
	}
	if reply := wait(t, h); reply.Status != request.Cancelled || reply.Response != "" {
		t.Fatalf("reply = %+v", reply)
	}
	if _, err := p.Cancel(t.Context(), "u1", h.ID, false); err != nil {
		t.Fatalf("cancel again: %v", err)
	}
	if _, err := p.Cancel(t.Context(), "u1", "nothing", false); fault.NameOf(err) != "NOT_FOUND" {
		t.Fatalf("unknown: %v", err)
	}
}

func TestCancel_OfACompletedTurnIsRefused(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("x"), options{})
	h := begin(t, p, turn.Request{})
	wait(t, h)
	if _, err := p.Cancel(t.Context(), "u1", h.ID, false); fault.NameOf(err) != "OPERATION_FAILED" {
		t.Fatalf("err = %v", err)
	}
}

func TestStream_EndsWithItsLastReaderWhenItShould(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{grace: time.Millisecond})
	h := begin(t, p, turn.Request{Stream: true, OnDisconnect: "cancel"})
	ctx, cancel := context.WithCancel(t.Context())
	_ = h.Frames(ctx, 0, func([]turn.Frame) error { cancel(); return nil })
	if reply := wait(t, h); reply.Status != request.Cancelled {
		t.Fatalf("reply = %+v", reply)
	}
}
