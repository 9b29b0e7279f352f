package limits

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestGuard_AFormationThatAllocatesWithoutEndDiesAloneAndSaysWhy(t *testing.T) {
	t.Parallel()
	both(t, memory, func(t *testing.T, root string) {
		h := newHouse(t, Limits{Memory: 64 << 20})
		h.CgroupRoot = root
		other := newHouse(t, Limits{Memory: 64 << 20})
		other.CgroupRoot = root
		bystander := start(t, other.guard(t), "wait")
		bystander.untilOut("ready")
		p := start(t, h.guard(t), "allocate")
		p.await()
		if got, want := p.guard.Ended(), "out of memory, limit 64 MiB"; got != want || !p.wasKilled() {
			t.Errorf("it ended with %v for %q, want %q", p.cmd.ProcessState, got, want)
		}
		if !living(bystander.cmd.Process.Pid) {
			t.Error("another formation died as well")
		}
	})
}

func TestGuard_WatcherCountsTheMemoryOfTools(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Memory: 64 << 20})
	h.CgroupRoot = "none"
	p := start(t, h.guard(t), "allocate-in-tools")
	p.await()
	if got := p.guard.Ended(); got != "out of memory, limit 64 MiB" {
		t.Errorf("ended for %q", got)
	}
	if left := h.processes(); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

// processes are those that were started in this house.
func (h house) processes() []int {
	var found []int
	for _, pid := range allPids() {
		if tmpOf(pid, h.RunDir) != "" && living(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func TestGuard_AForkBombStaysInsideAndLeavesNothing(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	h := newHouse(t, Limits{Pids: 40})
	// Bounded, should the limit not hold; every process forks on.
	script := `trap "" TERM; n=0; while [ $n -lt 300 ]; do (setsid sleep 30 & sleep 30) 2>/dev/null & n=$((n+1)); done; echo done; wait`
	p := launch(t, h.guard(t), exec.Command("/bin/sh", "-c", script))
	p.await() // the shell gives up when it is refused a process
	// How many are there is theirs to settle: one that is refused a process ends.
	if n := len(h.processes()); n > 40 || n == 0 {
		t.Errorf("there are %d processes, limit 40", n)
	}
	if got := p.guard.Ended(); got != "too many processes, limit 40" {
		t.Errorf("ended for %q", got)
	}
	if left := h.processes(); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestGuard_WatcherEndsAForkBomb(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Pids: 40})
	h.CgroupRoot = "none"
	script := `n=0; while [ $n -lt 100 ]; do (setsid sleep 30 & sleep 30) & n=$((n+1)); done; wait`
	p := launch(t, h.guard(t), exec.Command("/bin/sh", "-c", script))
	p.await()
	if got := p.guard.Ended(); got != "too many processes, limit 40" {
		t.Errorf("ended for %q: %s", got, p.wrote())
	}
	if left := h.processes(); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestGuard_HoldsTheNumberOfOpenFiles(t *testing.T) {
	t.Parallel()
	p := start(t, newHouse(t, Limits{Files: 100}).guard(t), "open")
	p.await()
	n, err := strconv.Atoi(strings.TrimSpace(p.wrote()))
	if err != nil || n < 50 || n >= 100 {
		t.Errorf("it opened %d files (%v), limit 100: %s", n, err, p.wrote())
	}
	if got := p.guard.Ended(); got != "" {
		t.Errorf("ended for %q", got)
	}
}

func TestGuard_HoldsTheShareOfTheProcessors(t *testing.T) {
	t.Parallel()
	needCgroup(t, cpu)
	// So little that the share is reached also where others want the processors.
	p := start(t, newHouse(t, Limits{CPU: 0.05}).guard(t), "spin")
	p.untilOut("ready")
	held := func() uint64 {
		text, err := readFile(filepath.Join(p.guard.run.group.dir[cpu].path, "cpu.stat"))
		if err != nil {
			t.Fatal(err)
		}
		return counted(text, "nr_throttled")
	}
	// What it used before it was in its group is not limited.
	begin, before, times := time.Now(), p.used(t), held()
	if _, err := p.in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	until(t, "it was held back", func() bool { return held() > times+10 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.await()
	used, all := p.cmd.ProcessState.UserTime()+p.cmd.ProcessState.SystemTime()-before, time.Since(begin)
	if used > all/20+100*time.Millisecond { // the kernel deals out in slices
		t.Errorf("it used %v of %v, the limit is a twentieth", used, all)
	}
}

// used is the time of the processors that the process has used so far.
func (p *process) used(t *testing.T) time.Duration {
	t.Helper()
	text, err := readProc(p.cmd.Process.Pid, "stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, ") ")
	const user, system, tick = 11, 12, 10 * time.Millisecond // fields from the state on; USER_HZ
	var ticks int
	for _, field := range []int{user, system} {
		n, err := strconv.Atoi(strings.Fields(rest)[field])
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

func TestGuard_EndsAFormationOverItsDiskAndRefusesToLaunchIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Disk: 2 << 20})
	h.DiskEvery = 20 * time.Millisecond
	g := h.guard(t)
	script := `i=0; while [ $i -lt 8 ]; do head -c 500000 /dev/zero >` + h.StateDir + `/$i; i=$((i+1)); done; sleep 60`
	p := launch(t, g, exec.Command("/bin/sh", "-c", script))
	p.await()
	if got := g.Ended(); !strings.HasPrefix(got, "disk use ") || !strings.HasSuffix(got, ", limit 2 MiB") {
		t.Errorf("ended for %q: %s", got, p.wrote())
	}
	err := g.Command(exec.Command("/bin/true"))
	if err == nil || !strings.Contains(err.Error(), "limit 2 MiB") {
		t.Errorf("launched again: %v", err)
	}
	for i := range 4 {
		if err := os.Remove(filepath.Join(h.StateDir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Command(exec.Command("/bin/true")); err != nil {
		t.Errorf("not launched although there is room again: %v", err)
	}
	g.Ended()
}

func TestGuard_NoFileOutgrowsTheDiskLimit(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Disk: 2 << 20})
	p := launch(t, h.guard(t), exec.Command("/bin/sh", "-c", `head -c 9000000 /dev/zero >$TMPDIR/large`))
	p.await()
	if p.cmd.ProcessState.Success() {
		t.Error("it was written")
	}
}

func TestGuard_ANormalEndHasNoReasonAndLeavesNothing(t *testing.T) {
	t.Parallel()
	both(t, memory, func(t *testing.T, root string) {
		h := newHouse(t, Limits{Memory: 128 << 20, Pids: 100, CPU: 1, Files: 100, Disk: 1 << 30})
		h.CgroupRoot = root
		g := h.guard(t)
		for range 3 { // one process after the other
			p := start(t, g, "wait")
			p.untilOut("ready")
			dirs := []string{g.run.tmp}
			if g.run.group != nil {
				dirs = append(dirs, g.run.group.dirs()...)
			}
			p.in.Close()
			p.await()
			if got := g.Ended(); got != "" || !p.cmd.ProcessState.Success() {
				t.Errorf("%v for %q", p.cmd.ProcessState, got)
			}
			for _, dir := range dirs {
				if exists(dir) {
					t.Errorf("%s is left", dir)
				}
			}
		}
	})
}

func TestGuard_KillsWhatAProcessLeavesInItsCgroup(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	h := newHouse(t, Limits{})
	p := launch(t, h.guard(t), exec.Command("/bin/sh", "-c", `setsid sleep 60 >/dev/null 2>&1 & exit 0`))
	p.await()
	until(t, "it left a process", func() bool { return len(h.processes()) == 1 })
	p.guard.Ended()
	if left := h.processes(); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}

// Without a cgroup what is left is known by the directory that it was started
// with, or because the watcher has seen whose it is.
func TestGuard_KillsWhatAProcessLeavesWithoutACgroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits Limits
		script string
	}{
		"without limits":      {Limits{}, `setsid sleep 60 >/dev/null 2>&1 & echo $!; exit 0`},
		"of a limit":          {Limits{Memory: 64 << 20}, `setsid sleep 60 >/dev/null 2>&1 & echo $!; exit 0`},
		"with a bare environ": {Limits{Memory: 64 << 20}, `env -i setsid sleep 60 >/dev/null 2>&1 & echo $!; read go`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, c.limits)
			h.CgroupRoot = "none"
			p := launch(t, h.guard(t), exec.Command("/bin/sh", "-c", c.script))
			p.untilOut("\n")
			left, err := strconv.Atoi(strings.TrimSpace(p.wrote()))
			if err != nil {
				t.Fatal(err)
			}
			until(t, "it sleeps apart", func() bool {
				s, err := statOf(left)
				return err == nil && s.processGrp == left
			})
			watch := p.guard.run.watch
			watch.stop() // until then the tree is the watcher's own
			if watch.tree != nil {
				watch.tree.look(true) // as it does now and then
			}
			_ = p.in.Close()
			p.await()
			p.guard.Ended()
			if living(left) {
				t.Error("the process is left")
			}
		})
	}
}

func TestGuard_FreesEverythingOfACommandThatNeverStarts(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Memory: 64 << 20})
	g := h.guard(t)
	if err := g.Command(exec.Command("/bin/true")); err != nil {
		t.Fatal(err)
	}
	r := g.run
	if got := g.Ended(); got != "" {
		t.Errorf("ended for %q", got)
	}
	if exists(r.tmp) || r.group != nil && exists(r.group.dirs()[0]) {
		t.Error("something is left")
	}
	if got := g.Ended(); got != "" {
		t.Errorf("a second end has reason %q", got)
	}
}

func TestGuard_HoldsTheLimitsOfAnAdoptedProcess(t *testing.T) {
	t.Parallel()
	both(t, memory, func(t *testing.T, root string) {
		h := newHouse(t, Limits{Memory: 64 << 20})
		h.CgroupRoot = root
		first := h.guard(t)
		p := launch(t, first, exec.Command("/bin/sh", "-c", "read line; exec "+h.Stage+" child allocate"))
		until(t, "it is past the stage", func() bool {
			// In this order: for a moment between two programs there is no environment.
			return environ(p.cmd.Process.Pid, "SVC_CONFINE") == "" && tmpOf(p.cmd.Process.Pid, h.RunDir) != ""
		})
		tmp := first.run.tmp
		first.Detach()

		second := h.guard(t)
		if err := second.Started(p.cmd.Process.Pid, p.kill); err != nil {
			t.Fatal(err)
		}
		if second.run.tmp != tmp {
			t.Errorf("its temporary directory is %q, was %q", second.run.tmp, tmp)
		}
		if (second.run.group != nil) != (root == "") {
			t.Errorf("its cgroup is %+v", second.run.group)
		}
		if _, err := p.in.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
		p.await()
		if got := second.Ended(); got != "out of memory, limit 64 MiB" {
			t.Errorf("ended for %q", got)
		}
		if exists(tmp) {
			t.Error("its temporary directory is left")
		}
	})
}

func TestGuard_SweepsTemporaryDirectoriesOfTheDeadOnly(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{})
	living := start(t, h.guard(t), "wait")
	living.untilOut("ready")
	kept := living.guard.run.tmp
	stale := filepath.Join(h.RunDir, tmpPrefix+"dead")
	if err := os.MkdirAll(filepath.Join(stale, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(stale, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	other := start(t, h.guard(t), "wait") // as in an update
	other.untilOut("ready")
	if exists(stale) {
		t.Error("the directory of a dead process is left")
	}
	if !exists(kept) {
		t.Error("the directory of a living process was removed")
	}
}

func TestNewGuard_RefusesWhatCannotBeGuarded(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*GuardConfig){
		"relative state":   func(c *GuardConfig) { c.StateDir = "state" },
		"no run directory": func(c *GuardConfig) { c.RunDir = "" },
		"no stage":         func(c *GuardConfig) { c.Stage = "" },
		"no id":            func(c *GuardConfig) { c.ID = "" },
		"id with a path":   func(c *GuardConfig) { c.ID = "../other" },
		"little memory":    func(c *GuardConfig) { c.Limits.Memory = 1 << 20 },
	} {
		h := newHouse(t, Limits{})
		change(&h.GuardConfig)
		if _, err := NewGuard(h.GuardConfig); err == nil {
			t.Errorf("%s: made", name)
		}
	}
}

// Who asks for the reason may come late; what a process has outlived did not end it.
func TestWatch_TheKernelsKillIsTheReasonHoweverLateItIsAskedFor(t *testing.T) {
	t.Parallel()
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pid    int
		before string // how many were killed when the watching began
		fresh  bool   // its cgroup was made for it
		want   string
	}{
		"ended":                      {ended.Process.Pid, "1", false, "out of memory, limit 64 MiB"},
		"ended before it is watched": {ended.Process.Pid, "2", true, "out of memory, limit 64 MiB"},
		"before it was taken over":   {ended.Process.Pid, "2", false, ""},
		"outlived":                   {os.Getpid(), "1", false, ""},
	} {
		dir := t.TempDir()
		events := filepath.Join(dir, "memory.events")
		kills := func(n string) {
			if err := os.WriteFile(events, []byte("oom_kill "+n+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		kills(c.before)
		h := newHouse(t, Limits{Memory: 64 << 20})
		r := &run{group: &group{dir: map[string]place{memory: {path: dir, unified: true}}}, adopted: !c.fresh}
		w := h.guard(t).newWatch(c.pid, r, nil)
		w.start()
		w.halting.Do(func() { close(w.halt) })
		<-w.done
		kills("2")
		w.lookEvents(time.Now().Add(-time.Minute)) // as the watcher saw it then
		if got := w.stop(); got != c.want {
			t.Errorf("%s: the reason is %q, want %q", name, got, c.want)
		}
	}
}
