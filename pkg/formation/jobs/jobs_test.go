package jobs_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/jobs"
	"github.com/agentformation/service/pkg/formation/store"
)

// hangingEnv asks the test program to be a process that hangs in a job.
const hangingEnv = "JOBS_TEST_HANG"

func TestMain(m *testing.M) {
	if path := os.Getenv(hangingEnv); path != "" {
		fmt.Fprintln(os.Stderr, hang(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func openStore(t *testing.T, path, launch string, fence ...string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: path, LaunchID: launch, Fence: fence, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// start runs a queue until the returned function is called.
func start(t *testing.T, db *store.DB, handlers map[string]jobs.Handler) (*jobs.Queue, func()) {
	t.Helper()
	q, err := jobs.New(t.Context(), jobs.Config{DB: db, Handlers: handlers, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.ReleaseOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	return q, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func enqueue(t *testing.T, db *store.DB, q *jobs.Queue, kind, key string) {
	t.Helper()
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		return q.EnqueueTx(t.Context(), tx, kind, key)
	}); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

func TestQueue_RunsAJobOnceItsCommitIsDurable(t *testing.T) {
	t.Parallel()
	db := openStore(t, filepath.Join(t.TempDir(), "s.db"), "a")
	defer db.Close()
	got := make(chan jobs.Job, 1)
	q, stop := start(t, db, map[string]jobs.Handler{"turn": func(_ context.Context, j jobs.Job) error {
		got <- j
		return nil
	}})
	defer stop()
	enqueue(t, db, q, "turn", "req_1")
	if j := receive(t, got); j != (jobs.Job{Kind: "turn", Key: "req_1", Attempt: 1}) {
		t.Fatalf("job = %+v", j)
	}
}

func TestQueue_WithoutJobsStartsNoEngine(t *testing.T) {
	t.Parallel()
	db := openStore(t, filepath.Join(t.TempDir(), "s.db"), "a")
	defer db.Close()
	_, stop := start(t, db, map[string]jobs.Handler{"turn": func(context.Context, jobs.Job) error { return nil }})
	stop()
	var queues int // a running engine registers its queue first of all
	if err := db.QueryRow(t.Context(), `SELECT COUNT(*) FROM river_queue`, nil, &queues); err != nil || queues != 0 {
		t.Fatalf("queues = %d, %v", queues, err)
	}
}

func TestQueue_ReleasesTheJobsOfADeadLaunchAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dead := exec.CommandContext(t.Context(), exe)
	dead.Env = append(os.Environ(), hangingEnv+"="+path)
	dead.Stderr = os.Stderr
	out, err := dead.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = dead.Process.Kill()
	_ = dead.Wait()

	fresh := openStore(t, path, "fresh", "dead")
	defer fresh.Close()
	got := make(chan jobs.Job, 1)
	_, stop := start(t, fresh, map[string]jobs.Handler{"turn": func(_ context.Context, j jobs.Job) error {
		got <- j
		return nil
	}})
	defer stop()
	if j := receive(t, got); j.Key != "req_1" || j.Attempt != 2 {
		t.Fatalf("job = %+v", j)
	}
}

// hang is a process that is killed while it runs a job.
func hang(path string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Config{Path: path, LaunchID: "dead", Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	q, err := jobs.New(ctx, jobs.Config{DB: db, Log: zerolog.Nop(), Handlers: map[string]jobs.Handler{
		"turn": func(ctx context.Context, _ jobs.Job) error {
			fmt.Println("running")
			<-ctx.Done()
			return ctx.Err()
		},
	}})
	if err != nil {
		return err
	}
	if err := db.Write(ctx, func(tx *store.Tx) error { return q.EnqueueTx(ctx, tx, "turn", "req_1") }); err != nil {
		return err
	}
	return q.Run(ctx)
}

func TestQueue_RunsAgainAfterItWasPaused(t *testing.T) {
	t.Parallel()
	db := openStore(t, filepath.Join(t.TempDir(), "s.db"), "a")
	defer db.Close()
	got := make(chan string, 1)
	q, err := jobs.New(t.Context(), jobs.Config{DB: db, Log: zerolog.Nop(), Handlers: map[string]jobs.Handler{
		"turn": func(_ context.Context, j jobs.Job) error {
			got <- j.Key
			return nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		key := fmt.Sprint("req_", i)
		enqueue(t, db, q, "turn", key) // while nobody works
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		if ran := receive(t, got); ran != key {
			t.Errorf("ran %q, want %q", ran, key)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueue_StopCancelsRunningJobsAndTheyRunAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	first := openStore(t, path, "first")
	entered := make(chan struct{})
	q, stopFirst := start(t, first, map[string]jobs.Handler{"turn": func(ctx context.Context, _ jobs.Job) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}})
	enqueue(t, first, q, "turn", "req_1")
	receive(t, entered)
	stopFirst()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openStore(t, path, "second", "first")
	defer second.Close()
	got := make(chan jobs.Job, 1)
	_, stop := start(t, second, map[string]jobs.Handler{"turn": func(_ context.Context, j jobs.Job) error {
		got <- j
		return nil
	}})
	defer stop()
	if j := receive(t, got); j.Key != "req_1" {
		t.Fatalf("job = %+v", j)
	}
}

func TestQueue_AJobOfAFailedCommitDoesNotExist(t *testing.T) {
	t.Parallel()
	db := openStore(t, filepath.Join(t.TempDir(), "s.db"), "a")
	defer db.Close()
	got := make(chan string, 4)
	q, stop := start(t, db, map[string]jobs.Handler{"turn": func(_ context.Context, j jobs.Job) error {
		got <- j.Key
		return nil
	}})
	defer stop()
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		if err := q.EnqueueTx(t.Context(), tx, "turn", "never"); err != nil {
			return err
		}
		return context.Canceled
	})
	if err == nil {
		t.Fatal("the commit was meant to fail")
	}
	enqueue(t, db, q, "turn", "after")
	if key := receive(t, got); key != "after" {
		t.Fatalf("ran %q", key)
	}
}
