package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/store"
)

func open(t *testing.T, path string, change func(*store.Config)) *store.DB {
	t.Helper()
	cfg := store.Config{Path: path, LaunchID: "launch-1", Log: zerolog.Nop()}
	if change != nil {
		change(&cfg)
	}
	db, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func insertJournal(id, step string) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO journal (request_id, step, payload) VALUES (?, ?, x'00')`, id, step)
		return err
	}
}

func countJournal(t *testing.T, db *store.DB) int {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), `SELECT COUNT(*) FROM journal`, nil, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWrite_IsDurableWhenItReturns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a b?c#d.db")
	db := open(t, path, nil)
	if err := db.Write(t.Context(), insertJournal("r", "s")); err != nil {
		t.Fatal(err)
	}
	// A second handle sees it without the first being closed.
	other := open(t, path, func(c *store.Config) { c.LaunchID = "launch-2" })
	if n := countJournal(t, other); n != 1 {
		t.Fatalf("journal rows = %d, want 1", n)
	}
}

func TestWrite_OneFailureInAGroupDoesNotTouchTheOthers(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "s.db"), nil)
	// Hold the writer, so that the rest is gathered into one group.
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			once.Do(func() { close(entered); <-release })
			return insertJournal("hold", "s")(tx)
		}); err != nil {
			t.Error(err)
		}
	})
	<-entered
	boom := errors.New("boom")
	results := make([]chan error, 20)
	for i := range results {
		results[i] = make(chan error, 1)
		db.Submit(func(tx *store.Tx) error {
			if err := insertJournal("r", fmt.Sprint(i))(tx); err != nil {
				return err
			}
			if i == 7 {
				return boom
			}
			return nil
		}, func(err error) { results[i] <- err })
	}
	close(release)
	wg.Wait()
	for i, ch := range results {
		err := <-ch
		if (i == 7) != errors.Is(err, boom) {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if n := countJournal(t, db); n != 20 {
		t.Fatalf("journal rows = %d, want 20", n)
	}
}

func TestWrite_PanicFailsOnlyItself(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "s.db"), nil)
	if err := db.Write(t.Context(), func(*store.Tx) error { panic("no") }); err == nil {
		t.Fatal("a panicking write reported success")
	}
	if err := db.Write(t.Context(), insertJournal("r", "s")); err != nil {
		t.Fatalf("write after a panic: %v", err)
	}
}

func TestWrite_IsRefusedOnceTheLaunchIsFenced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	old := open(t, path, nil)
	if err := old.Write(t.Context(), insertJournal("r", "before")); err != nil {
		t.Fatal(err)
	}
	fresh := open(t, path, func(c *store.Config) { c.LaunchID, c.Fence = "launch-2", []string{"launch-1", "never-seen"} })
	if err := old.Write(t.Context(), insertJournal("r", "after")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("fenced launch wrote: %v", err)
	}
	if err := fresh.Write(t.Context(), insertJournal("r", "new")); err != nil {
		t.Fatal(err)
	}
	if n := countJournal(t, fresh); n != 2 {
		t.Fatalf("journal rows = %d, want 2", n)
	}
}

func TestOpen_FencesLaunchesThatComeLater(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	open(t, path, func(c *store.Config) { c.LaunchID, c.Fence = "launch-2", []string{"late"} })
	late := open(t, path, func(c *store.Config) { c.LaunchID = "late" })
	if err := late.Write(t.Context(), insertJournal("r", "s")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("late launch wrote: %v", err)
	}
}

func TestOpen_RefusesAStoreOfANewerBuild(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	db := open(t, path, nil)
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`PRAGMA user_version = 9999`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	migrations, err := filepath.Glob("migrations/sqlite/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	last := filepath.Base(slices.Max(migrations))
	known := strings.TrimLeft(last[:strings.IndexByte(last, '_')], "0")
	_, err = store.Open(t.Context(), store.Config{Path: path, LaunchID: "x", Log: zerolog.Nop()})
	if fault.NameOf(err) != "HealthCheckFailed" || !strings.Contains(err.Error(), "the store has schema 9999, this runtime knows "+known+": roll forward") {
		t.Fatalf("err = %v", err)
	}
}

func TestClose_CommitsWhatWasQueuedAndRefusesMore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	db, err := store.Open(t.Context(), store.Config{Path: path, LaunchID: "a", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 50)
	for i := range 50 {
		db.Submit(insertJournal("r", fmt.Sprint(i)), func(err error) { results <- err })
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Write(t.Context(), insertJournal("r", "late")); !errors.Is(err, store.ErrClosed) {
		t.Fatalf("write after close: %v", err)
	}
	if n := countJournal(t, open(t, path, func(c *store.Config) { c.LaunchID = "b" })); n != 50 {
		t.Fatalf("journal rows = %d, want 50", n)
	}
}

func TestWrite_FromManyGoroutinesLosesNothing(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "s.db"), nil)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 50 {
				if err := db.Write(t.Context(), insertJournal(fmt.Sprint(g), fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := countJournal(t, db); n != 800 {
		t.Fatalf("journal rows = %d, want 800", n)
	}
}

func TestWrite_CancelledContextIsNotQueued(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "s.db"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Write(ctx, insertJournal("r", "s")); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	db, err := store.Open(b.Context(), store.Config{Path: filepath.Join(b.TempDir(), "s.db"), LaunchID: "a", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	n := 0
	for b.Loop() {
		n++
		if err := db.Write(b.Context(), insertJournal("r", fmt.Sprint(n))); err != nil {
			b.Fatal(err)
		}
	}
}
