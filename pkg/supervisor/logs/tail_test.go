package logs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func tail(t testing.TB, path string, n int) logs.Text {
	t.Helper()
	text, err := logs.Tail(t.Context(), path, n)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTail_ReturnsTheLastLinesAndCountsAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	var text strings.Builder
	for i := range 30000 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	long := strings.Repeat("x", 100<<10)
	exact := strings.Repeat("y", logs.MaxLine)
	write(t, path, text.String()+long+"\r\n\n"+exact+"\nbad \xff byte\nunfinished")
	want := logs.Text{
		Lines: []string{"line 29999", long[:logs.MaxLine], long[logs.MaxLine:], "", exact, "bad \uFFFD byte", "unfinished"}, Total: 30006,
	}
	if diff := cmp.Diff(want, tail(t, path, 7)); diff != "" {
		t.Errorf("tail (-want +got):\n%.2000s", diff)
	}
	if got := tail(t, path, 1<<30); len(got.Lines) != logs.MaxLines {
		t.Errorf("%d lines; want at most %d", len(got.Lines), logs.MaxLines)
	}
	if got := tail(t, path, 0); len(got.Lines) != 1 {
		t.Errorf("%d lines; want at least one", len(got.Lines))
	}
	if err := logs.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := tail(t, path, 6); got.Total != 0 || got.Lines != nil {
		t.Errorf("without a file: %+v", got)
	}
}

// However a text is spread over the parts, it reads as if it were one file.
func TestTail_ReadsOnInTheRotatedParts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("z", logs.MaxLine+10)
	text := "one\ntwo\n" + long + "\n\nthree\nfour"
	whole := filepath.Join(t.TempDir(), "whole.log")
	write(t, whole, text)
	for i := 0; i <= len(text); i += 1 + len(text)/200 {
		for _, j := range []int{i, (i + len(text)) / 2, len(text)} {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.log")
			write(t, path+".2", text[:i])
			write(t, path+".1", text[i:j])
			write(t, path, text[j:])
			for _, n := range []int{1, 2, 3, 4, 5, 100} {
				if diff := cmp.Diff(tail(t, whole, n), tail(t, path, n)); diff != "" {
					t.Fatalf("%d lines, cut at %d and %d (-want +got):\n%.1000s", n, i, j, diff)
				}
			}
		}
	}
}

func TestTail_RefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	if _, err := logs.Tail(t.Context(), t.TempDir(), 1); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a directory: %v", err)
	}
}

func FuzzTail(f *testing.F) {
	f.Add("a\nb\r\n\n\xffc", 2, 2)
	f.Fuzz(func(t *testing.T, text string, at, n int) {
		dir := t.TempDir()
		whole, parts := filepath.Join(dir, "a.log"), filepath.Join(dir, "b.log")
		at = min(max(0, at), len(text))
		write(t, whole, text)
		write(t, parts+".1", text[:at])
		write(t, parts, text[at:])
		want := tail(t, whole, n)
		if diff := cmp.Diff(want, tail(t, parts, n)); diff != "" {
			t.Error(diff)
		}
		if len(want.Lines) > want.Total || want.Total > 0 && len(want.Lines) == 0 {
			t.Errorf("%d lines of %d", len(want.Lines), want.Total)
		}
	})
}
