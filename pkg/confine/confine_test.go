package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that is started with Env becomes a stage, as formation-runtime does.
func TestMain(m *testing.M) {
	if _, staged, err := FromEnv(); staged || err != nil {
		if err == nil {
			err = Stage(os.Args[1:])
		}
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
	if _, started := os.LookupEnv(EnvRest); started {
		settled()
	}
	os.Exit(m.Run())
}

// staged runs a shell script behind a stage with s and returns what it wrote.
func staged(t *testing.T, s *Spec, script string, files ...*os.File) string {
	t.Helper()
	out, err := tryStaged(t, s, script, files...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(out)
}

func tryStaged(t *testing.T, s *Spec, script string, files ...*os.File) (string, error) {
	t.Helper()
	entry, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "/bin/sh", "-c", script, "sh")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "KEPT=kept", entry}
	cmd.ExtraFiles = files
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// keep is a Spec that takes nothing on.
func keep() *Spec { return &Spec{UID: -1, GID: -1} }

// system is what a shell needs to run.
func system() []string {
	return []string{"/usr", "/bin", "/lib", "/lib64", "/proc", "/etc/ld.so.cache"}
}

func needLandlock(t *testing.T) {
	t.Helper()
	if LandlockVersion() < 1 {
		t.Skip("this kernel has no Landlock")
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changing the user takes root")
	}
}

func TestStage_BecomesTheProgramWithItsArgumentsDirectoryAndDescriptors(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := staged(t, keep(), `echo "$KEPT $PWD"; echo through >&3; echo through >&4`, w, w)
	w.Close()
	if got != "kept /" {
		t.Errorf("the program saw %q", got)
	}
	through := make([]byte, 64)
	n, _ := r.Read(through)
	if string(through[:n]) != "through\nthrough\n" {
		t.Errorf("descriptors 3 and 4 carried %q", through[:n])
	}
}

func TestStage_LeavesNothingOfItselfInTheEnvironment(t *testing.T) {
	t.Parallel()
	s := keep()
	s.Memory = 64 << 20
	if got := staged(t, s, `tr '\0' '\n' </proc/$$/environ | sort`); got != "KEPT=kept\nPATH=/usr/bin:/bin" {
		t.Errorf("the environment is\n%s", got)
	}
}

func TestStage_SetsResourceLimitsThatCannotBeRaised(t *testing.T) {
	t.Parallel()
	s := keep()
	s.Rlimits = map[string]uint64{"nofile": 123, "core": 0, "fsize": 1 << 20}
	if got := staged(t, s, `ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc`); got != "123\n123\n0\n0" {
		t.Errorf("limits are %q", got)
	}
	path := filepath.Join(t.TempDir(), "large")
	out, err := tryStaged(t, s, "trap '' XFSZ; head -c 3000000 /dev/zero >"+path)
	if info, serr := os.Stat(path); serr != nil || info.Size() != 1<<20 {
		t.Errorf("a file grew to %v bytes (%v, %v): %s", info.Size(), serr, err, out)
	}
}

func TestStage_KeepsALowerResourceLimit(t *testing.T) {
	t.Parallel()
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	s := keep()
	s.Rlimits = map[string]uint64{"nofile": now.Max * 2}
	if got := staged(t, s, `ulimit -Hn`); got != strconv.FormatUint(now.Max, 10) {
		t.Errorf("the limit is %s, was %d", got, now.Max)
	}
}

func TestStage_TakesPrivilegesAway(t *testing.T) {
	t.Parallel()
	s := keep()
	s.NoNewPrivs = true
	if got := staged(t, s, `grep NoNewPrivs /proc/self/status`); got != "NoNewPrivs:\t1" {
		t.Errorf("status says %q", got)
	}
}

func TestStage_GivesUpCapabilitiesForGood(t *testing.T) {
	t.Parallel()
	s := keep()
	s.NoNewPrivs, s.NoCapabilities = true, true
	got := staged(t, s, `sh -c 'grep -E "^Cap(Inh|Prm|Eff|Amb):" /proc/self/status' | grep -v 0000000000000000`+"; true")
	if got != "" {
		t.Errorf("left are\n%s", got)
	}
}

func TestStage_BecomesAnotherUserForGood(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := &Spec{UID: 200123, GID: 200124, Groups: []int{200125}, NoNewPrivs: true}
	got := staged(t, s, `grep -E '^(Uid|Gid|Groups|CapEff|CapPrm):' /proc/self/status`)
	want := "Uid:\t200123\t200123\t200123\t200123\nGid:\t200124\t200124\t200124\t200124\n" +
		"Groups:\t200125 \nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000"
	if got != want {
		t.Errorf("status says\n%s\nwant\n%s", got, want)
	}
}

func TestStage_LandlockLeavesOnlyWhatIsNamed(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	dir := t.TempDir()
	for _, name := range []string{"read", "write", "closed"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "file"), []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	s := keep()
	s.ReadOnly = append(system(), dir+"/read", dir+"/missing", dir+"/read/file/missing")
	s.ReadWrite = []string{dir + "/write", "/dev/null"}
	// The inner shell is a tool process: it inherits everything.
	out, _ := tryStaged(t, s, `cd `+dir+` && sh -c '
		try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name: yes"; else echo "$name: no"; fi; }
		try "read" cat read/file
		try "write what is to be read" sh -c "echo x >read/file"
		try "make beside what is to be read" touch read/new
		try "read what is to be written" cat write/file
		try "write" sh -c "echo x >write/file"
		try "make a directory" mkdir write/dir
		try "rename between directories" mv write/file write/dir/file
		try "remove" rm write/dir/file
		try "read what is closed" cat closed/file
		try "list what is closed" ls closed
		try "list above" ls .
	'`)
	want := `read: yes
write what is to be read: no
make beside what is to be read: no
read what is to be written: yes
write: yes
make a directory: yes
rename between directories: yes
remove: yes
read what is closed: no
list what is closed: no
list above: no
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

func TestStage_LandlockKeepsProcessesOutsideApart(t *testing.T) {
	t.Parallel()
	needLandlock(t)
	other := exec.CommandContext(t.Context(), "/bin/sleep", "600")
	other.Env = []string{"SECRET=secret"}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	s := keep()
	s.NoCapabilities = true
	s.ReadOnly, s.ReadWrite = system(), []string{"/dev/null"}
	pid := strconv.Itoa(other.Process.Pid)
	out, _ := tryStaged(t, s, `cat /proc/`+pid+`/environ 2>/dev/null; cat /proc/`+pid+`/cmdline | tr '\0' ' '`)
	if strings.Contains(out, "secret") || !strings.Contains(out, "sleep 600") {
		t.Errorf("of another process one sees %q", out)
	}
	if LandlockVersion() < 6 {
		return // signals are not held back by this kernel
	}
	if out, err := tryStaged(t, s, `kill -9 `+pid); err == nil {
		t.Errorf("the process outside was signalled: %s", out)
	}
	if err := other.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the process outside is gone: %v", err)
	}
	if got := staged(t, s, `sleep 60 & kill -9 $! && echo own`); got != "own" {
		t.Errorf("a process of its own could not be signalled: %s", got)
	}
}

func TestStage_JoinsItsCgroupFirst(t *testing.T) {
	t.Parallel()
	dir := cgroup(t)
	s := keep()
	s.Cgroups = []string{dir}
	if got := staged(t, s, `cat /proc/self/cgroup`); !strings.Contains(got, "/"+filepath.Base(dir)+"\n") &&
		!strings.HasSuffix(got, "/"+filepath.Base(dir)) {
		t.Errorf("the program is in\n%s", got)
	}
}

// cgroup makes a cgroup in any hierarchy that can be written.
func cgroup(t *testing.T) string {
	t.Helper()
	for _, parent := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir := filepath.Join(parent, "confine-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() {
			// A process can still be in it for a moment after it was reaped.
			var err error
			until(t, "nothing is left in the cgroup", func() bool {
				err = os.Remove(dir)
				return !errors.Is(err, unix.EBUSY)
			})
			if err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	t.Skip("there is no cgroup to write")
	return ""
}

func TestStage_StopsAtTheFirstThingThatCannotBeDone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec Spec
		want string
	}{
		"no such cgroup": {Spec{UID: -1, GID: -1, Cgroups: []string{"/sys/fs/cgroup/there-is-none"}}, "join the cgroup"},
		"unknown limit":  {Spec{UID: -1, GID: -1, Rlimits: map[string]uint64{"as": 1}}, `unknown rlimit "as"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := tryStaged(t, &c.spec, `echo ran`)
			if err == nil || strings.Contains(out, "ran") || !strings.Contains(out, c.want) {
				t.Errorf("got %v, %q; want a failure that says %q", err, out, c.want)
			}
		})
	}
}

func TestStage_RefusesWhatIsNoProgram(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := keep().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"sh"}, {"/nowhere/sh"}} {
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Env = []string{entry}
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

func TestParse_RefusesWhatItWouldNotDo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                                 "EOF",
		`{"uid":-2}`:                       "uid and gid",
		`{"gid":-7}`:                       "uid and gid",
		`{"cage":true}`:                    "unknown field",
		`{"rlimits":{"as":1}}`:             "unknown rlimit",
		`{"rlimits":{"core":-1}}`:          "cannot unmarshal",
		`{"read_only":["usr"]}`:            "no absolute path",
		`{"cgroups":["/a\u0000b"]}`:        "no absolute path",
		`{"memory":-1}`:                    "memory, cpu and parent are 0 or more",
		`{"cpu":-0.5}`:                     "memory, cpu and parent are 0 or more",
		strings.Repeat(" ", maxEnv) + `{}`: "at most",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%.40q) = %v, want an error with %q", text, err, want)
		}
	}
}

func TestEncode_RefusesWhatAStageWouldNotRead(t *testing.T) {
	t.Parallel()
	s := keep()
	s.ReadOnly = []string{"/" + strings.Repeat("a", maxEnv)}
	if _, err := s.Encode(); err == nil {
		t.Error("encoded")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"uid":1,"gid":2,"groups":[3],"rlimits":{"nofile":4},"read_only":["/a"],"no_new_privs":true,"cgroups":["/b"]}`)
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(string(again)); err != nil {
			t.Errorf("what was read is refused when written: %s: %v", again, err)
		}
	})
}
