package limits

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/pkg/confine"
	"github.com/agentformation/service/test/testprogram"
)

// tries is a shell function that says whether a command succeeds.
const tries = `try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name: yes"; else echo "$name: no"; fi; }
`

// run runs a script under g to its end and returns what it wrote. As a child, the
// script's shell is taken for the program of the children.
func runScript(t *testing.T, h house, asChild bool, script string) string {
	t.Helper()
	g := h.guard(t)
	args := []string{"/bin/sh", "-c", tries + script}
	if asChild {
		args = append([]string{h.Stage, "child", "exec"}, args...)
	}
	p := launch(t, g, exec.Command(args[0], args[1:]...))
	p.await()
	g.Ended()
	return p.wrote()
}

func (h house) write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// furnish puts files of every kind into the house.
func (h house) furnish(t *testing.T) {
	t.Helper()
	h.write(t, filepath.Join(h.home, "config.yaml"), "secret", 0o600)
	h.write(t, filepath.Join(h.home, "formations/other/state/memory.db"), "secret", 0o600)
	h.write(t, filepath.Join(h.VersionDir, "formation.afs"), "public", 0o600)
	tool := filepath.Join(h.VersionDir, "tools/run")
	err := errors.Join(os.MkdirAll(filepath.Dir(tool), 0o700), testprogram.Write(tool, []byte("#!/bin/sh\nexit 0\n")), os.Chmod(tool, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	h.write(t, filepath.Join(h.StateDir, "deep/memory.db"), "own", 0o600)
	h.write(t, filepath.Join(h.RunDir, "control.pem"), "keys", 0o600)
	h.write(t, filepath.Join(h.RunDir, "launch-1.json"), "record", 0o600)
	h.write(t, filepath.Join(h.CacheDir, "org--model/weights"), "public", 0o600)
}

// doings tries what a formation may do and what it may not.
func (h house) doings() string {
	return `
		try "read the version" cat ` + h.VersionDir + `/formation.afs
		try "run a program of the version" ` + h.VersionDir + `/tools/run
		try "change the version" sh -c "echo x >` + h.VersionDir + `/formation.afs"
		try "change the state" sh -c "echo x >` + h.StateDir + `/deep/memory.db"
		try "rename in the state" mv ` + h.StateDir + `/deep/memory.db ` + h.StateDir + `/memory.db
		try "write a temporary file" sh -c 'echo x >$TMPDIR/x'
		try "read the control keys" cat ` + h.RunDir + `/control.pem
		try "change a run record" sh -c "echo x >` + h.RunDir + `/launch-1.json"
		try "remake a run record" sh -c "rm -f ` + h.RunDir + `/launch-1.json && echo x >` + h.RunDir + `/launch-1.json"
		try "forge a run record" sh -c "echo x >` + h.RunDir + `/launch-2.json"
		try "read a model" cat ` + h.CacheDir + `/org--model/weights
		try "change a model" sh -c "echo x >` + h.CacheDir + `/org--model/weights"
		try "read the settings" cat ` + h.home + `/config.yaml
		try "read another's state" cat ` + h.home + `/formations/other/state/memory.db
		try "read the system's secrets" cat /etc/shadow
		try "write elsewhere" sh -c "echo x >/var/tmp/limits-$$"
		try "resolve names" cat /etc/resolv.conf /etc/hosts
		try "use the null device" sh -c "echo x >/dev/null"
		try "list processes" ls /proc
	`
}

const allowed = `read the version: yes
run a program of the version: yes
change the version: no
change the state: yes
rename in the state: yes
write a temporary file: yes
read the control keys: yes
change a run record: yes
remake a run record: yes
forge a run record: yes
read a model: yes
change a model: no
read the settings: no
read another's state: no
read the system's secrets: no
write elsewhere: no
resolve names: yes
use the null device: yes
list processes: yes
`

func TestGuard_AChildSeesWhatItNeedsAndNoMore(t *testing.T) {
	t.Parallel()
	if confine.LandlockVersion() < 3 {
		t.Skip("this kernel has no Landlock that holds truncation back")
	}
	h := newHouse(t, Limits{})
	h.furnish(t)
	if got := runScript(t, h, true, h.doings()); got != allowed {
		t.Errorf("got\n%s\nwant\n%s", got, allowed)
	}
}

func TestGuard_AChildWithItsOwnUserSeesWhatItNeedsAndNoMore(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for name, noLandlock := range map[string]bool{"and Landlock": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Limits{Pids: 100})
			h.furnish(t)
			h.UID, h.NoLandlock = 200777, noLandlock
			h.Stage = h.copyStage(t)
			want := strings.NewReplacer("change a run record: yes", "change a run record: no", "remake a run record: yes", "remake a run record: no").Replace(allowed)
			if noLandlock { // file modes leave /var/tmp to all
				want = strings.Replace(want, "write elsewhere: no", "write elsewhere: yes", 1)
			}
			got := runScript(t, h, true, h.doings()+`id -u; id -g; id -G; rm -f /var/tmp/limits-*`)
			if want += "200777\n200777\n200777\n"; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// copyStage puts the stage where every user gets at it.
func (h house) copyStage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(h.home, "bin/stage")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", h.Stage, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestGuard_InitWritesItsVersionThatTheChildThenOnlyReads(t *testing.T) {
	t.Parallel()
	for name, uid := range map[string]int{"supervisor's user": 0, "own user": 200778} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, Limits{})
			if uid != 0 {
				needRoot(t)
				h.UID, h.Stage = uid, h.copyStage(t)
			}
			h.furnish(t)
			got := runScript(t, h, false, `try "install" sh -c "mkdir node_modules && echo made >node_modules/made && echo x >formation.afs"
				try "read the settings" cat `+h.home+`/config.yaml`)
			got += runScript(t, h, true, `try "use" cat node_modules/made; try "change" sh -c "echo x >node_modules/made"`)
			if want := "install: yes\nread the settings: no\nuse: yes\nchange: no\n"; got != want && confine.LandlockVersion() >= 3 {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestGuard_TheOperatorOpensFurtherPaths(t *testing.T) {
	t.Parallel()
	if confine.LandlockVersion() < 1 {
		t.Skip("this kernel has no Landlock")
	}
	h := newHouse(t, Limits{})
	shared, inbox, cert := filepath.Join(h.home, "shared"), filepath.Join(h.home, "inbox"), filepath.Join(h.home, "ca.pem")
	h.write(t, filepath.Join(shared, "file"), "", 0o600)
	h.write(t, filepath.Join(inbox, "file"), "", 0o600)
	h.write(t, cert, "", 0o600)
	h.Readable, h.Writable = []string{shared}, []string{inbox}
	got := runScript(t, h, true, `
		try "read" cat `+shared+`/file
		try "write what is to be read" touch `+shared+`/new
		try "write" touch `+inbox+`/new
		try "read a certificate" cat `+cert)
	if want := "read: yes\nwrite what is to be read: no\nwrite: yes\nread a certificate: no\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	g := h.guard(t)
	cmd := exec.Command(h.Stage, "child", "exec", "/bin/cat", cert)
	cmd.Env = []string{"SSL_CERT_FILE=" + cert}
	p := launch(t, g, cmd)
	p.await()
	if !p.cmd.ProcessState.Success() {
		t.Errorf("the certificates that the environment names cannot be read: %s", p.wrote())
	}
}

func TestGuard_ItsOwnUserComesToWhatOthersOwned(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHouse(t, Limits{})
	h.Stage = h.copyStage(t)
	h.furnish(t)
	owners := func() (got [2]int) {
		for i, path := range []string{h.StateDir, filepath.Join(h.StateDir, "deep/memory.db")} {
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = int(info.Sys().(*syscall.Stat_t).Uid) //nolint:forcetypeassert // it is one here
		}
		return got
	}
	for _, uid := range []int{200001, 200002, 0} { // 0: the range was taken out of the settings
		h.UID = uid
		script := `try "write" sh -c "echo x >` + h.StateDir + `/deep/memory.db"
			try "read what the supervisor wrote" cat ` + h.StateDir + `/keys`
		h.write(t, filepath.Join(h.StateDir, "keys"), "keys", 0o600) // by the supervisor
		if got := runScript(t, h, true, script); got != "write: yes\nread what the supervisor wrote: yes\n" {
			t.Errorf("user %d: %s", uid, got)
		}
		if got := owners(); got != [2]int{uid, uid} {
			t.Errorf("user %d: the owners are %v", uid, got)
		}
	}
}

func TestGuard_HandingOverLeavesWhatLinksLeadTo(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHouse(t, Limits{})
	h.Stage = h.copyStage(t)
	h.furnish(t)
	secret := filepath.Join(h.home, "config.yaml")
	if err := os.Symlink(secret, filepath.Join(h.StateDir, "soft")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, filepath.Join(h.StateDir, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(secret), filepath.Join(h.VersionDir, "dir")); err != nil {
		t.Fatal(err)
	}
	h.UID = 200003
	if got := runScript(t, h, true, `try "read" cat `+h.StateDir+`/soft `+h.StateDir+`/hard `+h.VersionDir+`/dir/config.yaml`); got != "read: no\n" {
		t.Error(got)
	}
	info, err := os.Stat(secret)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 0 || s.Gid != 0 || info.Mode().Perm() != 0o600 { //nolint:forcetypeassert // it is one here
		t.Errorf("the settings belong to %d:%d with mode %v", s.Uid, s.Gid, info.Mode())
	}
}

func TestGuard_SaysWhichDirectoryAUserCannotPass(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHouse(t, Limits{})
	h.Stage = h.copyStage(t)
	h.UID, h.Home = 200004, filepath.Join(h.home, "formations")
	err := h.guard(t).Command(exec.Command("/bin/true"))
	if err == nil || !strings.Contains(err.Error(), "cannot pass through "+h.home) {
		t.Errorf("got %v", err)
	}
}

func TestGuard_TwoProcessesOfAnUpdateShareTheRunDirectory(t *testing.T) {
	t.Parallel()
	needRoot(t)
	h := newHouse(t, Limits{})
	h.Stage = h.copyStage(t)
	h.furnish(t)
	h.UID = 200005
	first := start(t, h.guard(t), "wait")
	first.untilOut("ready")
	second := start(t, h.guard(t), "wait")
	second.untilOut("ready")
	if a, b := first.guard.run.tmp, second.guard.run.tmp; a == b || !exists(a) || !exists(b) {
		t.Errorf("their temporary directories are %s and %s", a, b)
	}
}

func TestSpec_LimitsProcessesByUserOnlyWhereTheUserIsTheirOwn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uid   int
		group *group
		want  string
	}{
		"supervisor's user":       {0, nil, ""},
		"own user":                {200006, nil, "200"},
		"own user and own cgroup": {200006, &group{dir: map[string]place{pids: {}}}, ""},
	} {
		h := newHouse(t, Limits{Pids: 100})
		h.UID = c.uid
		got := ""
		if n, ok := h.guard(t).spec(&run{group: c.group}, nil, false).Rlimits["nproc"]; ok {
			got = strconv.FormatUint(n, 10)
		}
		if got != c.want {
			t.Errorf("%s: nproc is %q, want %q", name, got, c.want)
		}
	}
}
