package logs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

// appender writes to a log as a child does.
type appender struct {
	t testing.TB
	f *os.File
}

func openAppender(t testing.TB, path string) *appender {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &appender{t, f}
}

func (a *appender) add(text string) {
	if _, err := a.f.WriteString(text); err != nil {
		a.t.Error(err)
	}
}

// watcher collects what a Follower finds.
type watcher struct {
	t testing.TB
	f *logs.Follower
}

func watch(t testing.TB, paths ...string) *watcher {
	t.Helper()
	var sources []logs.Source
	for _, p := range paths {
		sources = append(sources, logs.Source{Name: strings.TrimSuffix(filepath.Base(p), ".log"), Path: p})
	}
	f, err := logs.NewFollower(sources)
	if err != nil {
		t.Fatal(err)
	}
	return &watcher{t, f}
}

func (w *watcher) poll() (lines []string) {
	w.t.Helper()
	err := w.f.Poll(func(name, line string) error {
		lines = append(lines, name+" "+line)
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	return lines
}

func (w *watcher) want(lines ...string) {
	w.t.Helper()
	if diff := cmp.Diff(lines, w.poll()); diff != "" {
		w.t.Errorf("lines (-want +got):\n%.1000s", diff)
	}
}

func rotate(t testing.TB, path string, keep int) {
	t.Helper()
	if err := logs.Rotate(path, keep); err != nil {
		t.Fatal(err)
	}
}

func TestFollow_SendsNewLinesOfAllFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.log"), filepath.Join(dir, "b.log")
	out := openAppender(t, a)
	out.add("old\nbegun ")
	w := watch(t, a, b)
	w.want()
	out.add("before\nnew\npart")
	openAppender(t, b).add("made since\n")
	w.want("a before", "a new", "b made since")
	out.add("ial\n")
	w.want("a partial")
}

func TestFollow_BeginsAnewWhenSomebodyEmptiesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.log")
	out := openAppender(t, path)
	out.add("one\n")
	w := watch(t, path)
	out.add("two\npart")
	w.want("a two")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	out.add("short\n")
	w.want("a short")
	// It has grown past the former end before it is looked at again.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	out.add("longer than it was\n")
	w.want("a longer than it was")
	// Another file under the name, as other rotators do it.
	if err := os.Rename(path, path+".gz"); err != nil {
		t.Fatal(err)
	}
	w.want()
	openAppender(t, path).add("in a new file, longer than the former\n")
	w.want("a in a new file, longer than the former")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.want()
}

// The two ways to rotate: with and without a rest in the file.
func sizes(block string) map[string]string {
	return map[string]string{"less than a block": "", "some blocks": strings.Repeat(block, 300)}
}

func TestFollow_GoesOnOverRotations(t *testing.T) {
	t.Parallel()
	for name, filler := range sizes("0123456789abcdef 0123456789abcdef 0123456789abcdef\n") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.log")
			out := openAppender(t, path)
			out.add(filler + "old\n")
			w := watch(t, path)
			rotate(t, path, 5) // right behind the position
			w.want()
			out.add("1\n")
			rotate(t, path, 5)
			out.add("2\nhal")
			rotate(t, path, 5)
			out.add("f\n")
			w.want("a 1", "a 2", "a half")
			out.add(filler + "3\n")
			rotate(t, path, 5)
			if got := w.poll(); len(got) != strings.Count(filler, "\n")+1 || got[len(got)-1] != "a 3" {
				t.Errorf("%d lines: %.200q", len(got), got)
			}
			for i := range 9 { // more often than parts are kept
				out.add(fmt.Sprintf("%d\n", i+4))
				rotate(t, path, 5)
			}
			out.add("end\n")
			if got := w.poll(); len(got) < 6 || got[len(got)-1] != "a end" || got[len(got)-6] != "a 8" {
				t.Errorf("after falling behind: %q", got)
			}
		})
	}
}

func TestFollow_OneKeptPartDoublesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.log")
	out := openAppender(t, path)
	w := watch(t, path)
	for i := range 20 {
		out.add(fmt.Sprintf("%d\n", i))
		w.want(fmt.Sprintf("a %d", i))
		rotate(t, path, 1)
		if i%2 == 0 {
			w.want()
		}
	}
}

// A writer that never pauses, a rotation whenever nobody reads, and readers that
// see every line once. Where the file system cannot collapse, some microseconds'
// worth of lines may be missing, and none may come twice.
func TestFollowAndTail_UnderAWriterThatNeverPauses(t *testing.T) {
	t.Parallel()
	const lines, width = 60000, 57
	path := filepath.Join(t.TempDir(), "a.log")
	out := openAppender(t, path)
	w := watch(t, path)
	var writing sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	writing.Go(func() {
		defer cancel()
		for i := range lines {
			out.add(fmt.Sprintf("%06d %s\n", i, strings.Repeat("x", 50)))
		}
	})
	writing.Go(func() {
		for ctx.Err() == nil {
			if info, err := os.Stat(path); err == nil && info.Size() < 100<<10 {
				continue
			}
			_ = logs.Rotate(path, 100) // the error says that it is being read
		}
	})
	var got []string
	for ctx.Err() == nil {
		got = append(got, w.poll()...)
		seen := tail(t, path, 100).Lines
		if n := len(seen); n > 0 && len(seen[n-1]) < width {
			seen = seen[:n-1] // a write across two pages becomes visible in two steps
		}
		for i := 1; i < len(seen); i++ {
			if seen[i] <= seen[i-1] {
				t.Fatalf("tail from %.6s on is out of order at %.6s", seen[0], seen[i])
			}
		}
	}
	writing.Wait()
	got = append(got, w.poll()...)
	exact := collapses(t)
	if exact && len(got) != lines {
		t.Errorf("%d lines followed, want %d", len(got), lines)
	}
	for i, last := 0, -1; i < len(got); i++ {
		var n int
		if _, err := fmt.Sscanf(got[i], "a %d ", &n); err != nil || n <= last || exact && n != last+1 || !strings.HasSuffix(got[i], " "+strings.Repeat("x", 50)) {
			t.Fatalf("after line %d: %q", last, got[i])
		}
		last = n
	}
	if total := tail(t, path, 1).Total; total != len(got) {
		t.Errorf("the parts hold %d lines, %d were followed", total, len(got))
	}
}

func TestFollow_EndsWithItsContextAndWithItsSink(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.log")
	out := openAppender(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source := []logs.Source{{Name: "a", Path: path}}
	if err := logs.Follow(ctx, source, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("end of the context: %v", err)
	}
	stop := errors.New("enough")
	done := make(chan error, 1)
	seen := make(chan string, 1)
	go func() {
		done <- logs.Follow(t.Context(), source, func(_, line string) error {
			seen <- line
			return stop
		})
	}()
	for i := 0; ; i++ {
		select {
		case line := <-seen:
			if err := <-done; !errors.Is(err, stop) || !strings.HasPrefix(line, "line ") {
				t.Errorf("end of the sink: %v after %q", err, line)
			}
			return
		default:
			// Of this length no line lies across two pages, which would become visible
			// in two steps, so that the following may begin between them.
			out.add(fmt.Sprintf("line %010d\n", i))
		}
	}
}
