package logs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

// collapses tells whether the file system of the tests can take a range out of
// a file.
func collapses(t testing.TB) bool {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, 64<<10) == nil
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func names(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestRotate_NumbersThePartsAndKeepsSoMany(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.log")
	rotate(t, path, 3) // not there: nothing happens
	out := openAppender(t, path)
	rotate(t, path, 3) // empty: nothing happens
	for i := range 6 {
		out.add(fmt.Sprintf("%d\n", i))
		rotate(t, path, 3)
	}
	out.add("now\n")
	if got := names(t, dir); got != "x.log x.log.1 x.log.2 x.log.3" {
		t.Errorf("files: %s", got)
	}
	if got := read(t, path+".3") + read(t, path+".2") + read(t, path+".1") + read(t, path); got != "3\n4\n5\nnow\n" {
		t.Errorf("text: %q", got)
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v; want that of the log", info.Mode(), err)
	}
	rotate(t, path, 1) // fewer from now on
	if got := names(t, dir); got != "x.log x.log.1" {
		t.Errorf("files: %s", got)
	}
	if err := logs.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

// What a process that died in the middle of a rotation leaves behind.
func TestRotate_FinishesWhatWasBegun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ making, log, want string }{
		"half copied":         {"one\nt", "one\ntwo\n", "one\ntwo\n"},
		"copied":              {"one\ntwo\n", "one\ntwo\nthree\n", "one\ntwo\nthree\n"},
		"nothing copied":      {"", "one\n", "one\n"},
		"taken out":           {"one\ntwo\n", "three\n", "one\ntwo\nthree\n"},
		"taken out, no more":  {"one\ntwo\n", "", "one\ntwo\n"},
		"taken out, and long": {"one\ntwo\n", strings.Repeat("three\n", 9000), "one\ntwo\n" + strings.Repeat("three\n", 9000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "x.log")
			write(t, path+".rotating", tc.making)
			write(t, path, tc.log)
			rotate(t, path, 5)
			var got string
			for i := 5; i >= 1; i-- {
				text, _ := os.ReadFile(fmt.Sprintf("%s.%d", path, i))
				got += string(text)
			}
			if got += read(t, path); got != tc.want {
				t.Errorf("got %.100q, want %.100q", got, tc.want)
			}
			if _, err := os.Stat(path + ".rotating"); err == nil {
				t.Error("the unfinished part is still there")
			}
		})
	}
}

func TestRotator_RotatesWhatHasGrownAndTellsAFaultOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	big, small, bad := filepath.Join(dir, "big.log"), filepath.Join(dir, "small.log"), filepath.Join(dir, "bad.log")
	write(t, big, strings.Repeat("x", 100))
	write(t, small, "x")
	write(t, bad, strings.Repeat("x", 100))
	if err := os.Mkdir(bad+".rotating", 0o700); err != nil { // where the part would be made
		t.Fatal(err)
	}
	var log bytes.Buffer
	looks := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	r := &logs.Rotator{Log: zerolog.New(&log), MaxSize: 100, MaxFiles: 2, Every: time.Millisecond, Paths: func() []string {
		select {
		case looks <- struct{}{}:
		case <-ctx.Done():
		}
		return []string{big, small, bad, filepath.Join(dir, "none.log")}
	}}
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	for range 4 {
		<-looks
	}
	cancel()
	<-done
	if got := names(t, dir); got != "bad.log bad.log.rotating big.log big.log.1 small.log" {
		t.Errorf("files: %s", got)
	}
	if got := strings.Count(log.String(), "not rotated"); got != 1 {
		t.Errorf("told %d times:\n%s", got, log.String())
	}
}

// fullDiskEnv makes the test binary run one of the scenarios below in a mount
// namespace of its own, with a small disk.
const fullDiskEnv = "LOGS_TEST_FULL_DISK"

func TestRotate_OnAFullDiskLosesNothingAndRecovers(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fullDiskEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.Process == nil {
		t.Skipf("this system allows no mount namespace: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func onFullDisk(dir string) int {
	if err := fullDisk(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fullDisk rotates on a disk of 1 MiB, whose file system cannot collapse.
func fullDisk(dir string) error {
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	path := filepath.Join(dir, "x.log")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	defer out.Close()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o600); err != nil {
		return err
	}
	text := strings.Repeat("some line\n", 30<<10)
	if _, err := out.WriteString(text); err != nil {
		return err
	}
	if err := logs.Rotate(path, 3); err == nil || !strings.Contains(err.Error(), "no space left") {
		return fmt.Errorf("on a full disk: %w", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		return fmt.Errorf("the log holds %d bytes, want %d: %w", len(got), len(text), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		return fmt.Errorf("left behind: %v", entries)
	}
	// Space is freed: the next attempt works, and the writer goes on.
	if err := os.Remove(ballast); err != nil {
		return err
	}
	if err := logs.Rotate(path, 3); err != nil {
		return fmt.Errorf("with space: %w", err)
	}
	if _, err := out.WriteString(text); err != nil {
		return err
	}
	// Full again: the oldest part makes room for the youngest.
	if err := os.WriteFile(ballast, make([]byte, 300<<10), 0o600); err != nil {
		return err
	}
	if err := logs.Rotate(path, 3); err != nil {
		return fmt.Errorf("with a part to give up: %w", err)
	}
	if got, err := os.ReadFile(path + ".1"); err != nil || string(got) != text {
		return fmt.Errorf("part 1 holds %d bytes, want %d: %w", len(got), len(text), err)
	}
	if _, err := os.Stat(path + ".2"); err == nil {
		return fmt.Errorf("the oldest part is still there")
	}
	return nil
}
