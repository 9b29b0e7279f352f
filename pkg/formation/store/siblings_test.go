package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/store"
)

// The test program is also the second process of a store: helpers by name, and
// the variable that asks for one.
const helperEnv = "STORE_TEST_HELPER"

func TestMain(m *testing.M) {
	if line := os.Getenv(helperEnv); line != "" {
		args := strings.Split(line, "\n")
		run := map[string]func(context.Context, *store.DB) error{"write": helpWrite, "hold": helpHold, "full": helpFull}[args[0]]
		if err := runHelper(run, args[1], args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func runHelper(run func(context.Context, *store.DB) error, path, launch string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Config{Path: path, LaunchID: launch, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	fmt.Println("open")
	return errors.Join(run(ctx, db), db.Close())
}

// other is a second process on a store.
type other struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// helper starts a second process and returns when it has opened the store.
func helper(t *testing.T, name, path, launch string) *other {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), exe)
	cmd.Env = append(os.Environ(), helperEnv+"="+strings.Join([]string{name, path, launch}, "\n"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &other{Cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(o.kill)
	o.line(t)
	return o
}

func (o *other) line(t *testing.T) string {
	t.Helper()
	if !o.out.Scan() {
		t.Fatal("the other process ended")
	}
	return o.out.Text()
}

func (o *other) kill() {
	_ = o.Process.Kill()
	_ = o.Wait()
}

// blows is what a hammer did.
type blows struct {
	commits int
	longest time.Duration // that one commit took
	still   time.Duration // that the process did not run at all: then nobody gets on
}

// standstill measures how long this process stands still until stop is called.
func standstill() (stop func() time.Duration) {
	const pace, usual = 10 * time.Millisecond, 100 * time.Millisecond
	end, total := make(chan struct{}), make(chan time.Duration)
	begin := time.Now()
	go func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		var sum time.Duration
		for last, ended := begin, false; !ended; {
			select {
			case <-ticker.C:
			case <-end:
				ended = true
			}
			now := time.Now()
			if gap := now.Sub(last); gap > usual {
				sum += gap
			}
			last = now
		}
		total <- sum
	}()
	return func() time.Duration {
		close(end)
		return <-total
	}
}

// hammer writes from many goroutines for a while.
func hammer(ctx context.Context, db *store.DB, d time.Duration) (b blows, err error) {
	stop := standstill()
	defer func() { b.still = stop() }()
	end := time.Now().Add(d)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				begin := time.Now()
				e := db.Write(ctx, insertJournal(fmt.Sprint(db.LaunchID(), g), fmt.Sprint(i)))
				mu.Lock()
				b.commits++
				b.longest, err = max(b.longest, time.Since(begin)), errors.Join(err, e)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return b, err
}

const hammerTime = 1500 * time.Millisecond

func helpWrite(ctx context.Context, db *store.DB) error {
	b, err := hammer(ctx, db, hammerTime)
	fmt.Println(b.commits, b.longest.Milliseconds(), b.still.Milliseconds())
	return err
}

// helpHold keeps the store open until it is told to go on.
func helpHold(context.Context, *store.DB) error {
	_, err := os.Stdin.Read(make([]byte, 1))
	return err
}

func TestWrite_TwoProcessesAtFullSpeedBothGetOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	db := open(t, path, nil)
	o := helper(t, "write", path, "launch-2")
	ctx, cancel := context.WithCancel(t.Context())
	engine := make(chan error, 1)
	go func() { // the job engine's way to the store, twenty times a second
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			<-ticker.C
			if _, err := db.Pool().ExecContext(t.Context(), `UPDATE journal SET payload = x'01' WHERE step = '0'`); err != nil {
				engine <- err
				return
			}
		}
		engine <- nil
	}()
	ours, err := hammer(t.Context(), db, hammerTime)
	cancel()
	if err := errors.Join(err, <-engine); err != nil {
		t.Fatal(err)
	}
	var theirs blows
	var longest, still int64
	if _, err := fmt.Sscan(o.line(t), &theirs.commits, &longest, &still); err != nil {
		t.Fatal(err)
	}
	theirs.longest, theirs.still = time.Duration(longest)*time.Millisecond, time.Duration(still)*time.Millisecond
	t.Logf("here %+v; there %+v", ours, theirs)
	if rows := countJournal(t, db); rows != ours.commits+theirs.commits {
		t.Errorf("%d rows of %d commits", rows, ours.commits+theirs.commits)
	}
	// A bound far above what is measured (0.1 s): it is for a writer that waits
	// for a gap which never comes.
	if bound := 2*time.Second + ours.still + theirs.still; max(ours.longest, theirs.longest) > bound {
		t.Error("a writer starved")
	}
	// Who did not run for most of the time is no measure.
	kept := func(a, b blows) bool { return a.commits > 20*b.commits && b.still < hammerTime/2 }
	if kept(ours, theirs) || kept(theirs, ours) {
		t.Error("one writer kept the store for itself")
	}
}

func TestPool_AnOpenTransactionOfAFencedLaunchIsNotCommitted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	old := open(t, path, nil)
	fresh := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	conn, err := old.Pool().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) error {
		_, err := conn.ExecContext(t.Context(), sql)
		return err
	}
	// Deferred, since one that holds the write lock already can't be fenced
	// before it ends: the fence is a write too.
	if err := exec("BEGIN DEFERRED"); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Fence(t.Context(), []string{"launch-1"}); err != nil {
		t.Fatal(err)
	}
	if err := exec(`INSERT INTO journal (request_id, step, payload) VALUES ('late', 's', x'00')`); err != nil {
		t.Fatalf("the transaction could not even write: %v", err)
	}
	if err := exec("COMMIT"); err == nil {
		t.Fatal("a fenced launch committed")
	}
	select {
	case <-old.Fenced():
	default:
		t.Error("the refusal was not told")
	}
	if err := exec(`INSERT INTO journal (request_id, step, payload) VALUES ('later', 's', x'00')`); err == nil {
		t.Fatal("a fenced launch committed a single statement")
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if n := countJournal(t, fresh); n != 0 {
		t.Fatalf("%d rows of a fenced launch", n)
	}
}

func TestFence_NothingIsCommittedOnceItHasReturned(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	old := open(t, path, nil)
	fresh := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	inside, goOn := make(chan struct{}), make(chan struct{})
	written, fenced := make(chan error, 1), make(chan error, 1)
	go func() {
		written <- old.Write(t.Context(), func(tx *store.Tx) error {
			close(inside)
			<-goOn
			return insertJournal("r", "before")(tx)
		})
	}()
	<-inside
	go func() { fenced <- fresh.Fence(t.Context(), []string{"launch-1"}) }()
	select {
	case err := <-fenced:
		t.Fatalf("fenced in the middle of a commit: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	if err := errors.Join(<-written, <-fenced); err != nil {
		t.Fatal(err)
	}
	if err := old.Write(t.Context(), insertJournal("r", "after")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("err = %v", err)
	}
}

func TestSurvey_KnowsTheDeadFromTheStopped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	db := open(t, path, nil)
	o := helper(t, "hold", path, "launch-2")
	alive := func() []string {
		t.Helper()
		ids, err := db.Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if err := o.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if ids := alive(); len(ids) != 1 || !db.Siblings() {
		t.Fatalf("a stopped process counts as dead: %v", ids)
	}
	select {
	case <-db.Met():
	default:
		t.Error("a sibling came and nobody was told")
	}
	o.kill()
	if ids := alive(); len(ids) != 0 || db.Siblings() {
		t.Fatalf("alive = %v", ids)
	}
	if _, err := store.Open(t.Context(), store.Config{Path: path, LaunchID: "launch-1", Log: zerolog.Nop()}); err == nil {
		t.Fatal("one launch was opened twice")
	}
}

func TestOpen_FencesLaunchesWhoseProcessHasEnded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	o := helper(t, "hold", path, "launch-2")
	o.kill()
	db := open(t, path, nil)
	if db.Siblings() {
		t.Fatal("a dead launch counts as a sibling")
	}
	late := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	if err := late.Write(t.Context(), insertJournal("r", "s")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("err = %v", err)
	}
}

func TestRetire_IsTheLastWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	db := open(t, path, nil)
	other := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	if err := db.Retire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), insertJournal("r", "s")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("err = %v", err)
	}
	if err := other.Look(t.Context()); err != nil || other.Siblings() {
		t.Fatalf("siblings = %v, %v", other.Siblings(), err)
	}
}

func TestLease_HasOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	a := open(t, path, nil)
	b := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	take := func(db *store.DB, want int64) {
		t.Helper()
		token, held, err := db.TakeLease(t.Context(), "work")
		if err != nil || held != (want > 0) || token != want {
			t.Fatalf("token = %d, held %v, %v; want token %d", token, held, err, want)
		}
	}
	take(a, 1)
	take(b, 0)
	take(a, 2) // its own it may have again
	if err := a.ReleaseLease(t.Context(), "work", 1); err != nil {
		t.Fatal(err)
	}
	take(b, 0) // that was an old one
	if err := a.ReleaseLease(t.Context(), "work", 2); err != nil {
		t.Fatal(err)
	}
	take(b, 3)
	take(a, 0)
	if err := a.Fence(t.Context(), []string{"launch-2", "launch-1"}); err != nil { // its own id is passed over
		t.Fatal(err)
	}
	take(a, 4)
	if _, _, err := b.TakeLease(t.Context(), "work"); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("err = %v", err)
	}
}
