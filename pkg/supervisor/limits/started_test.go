package limits

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// inside tells whether a process is in every part of the cgroup.
func (g *group) inside(pid int) bool {
	for _, dir := range g.dirs() {
		text, err := readFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || !slices.Contains(strings.Fields(text), strconv.Itoa(pid)) {
			return false
		}
	}
	return len(g.dirs()) > 0
}

func TestGuard_AChildIsInItsCgroupWithWhatItStartedMeanwhile(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	h := newHouse(t, Limits{})
	g := h.guard(t)
	p := begin(t, g, exec.Command(h.Stage, "child", "exec", "/bin/sh", "-c", "sleep 60 & (sleep 60; true) & echo ready; wait"))
	p.untilOut("ready")
	before := func() []int { return append(h.processes(), p.cmd.Process.Pid) }
	until(t, "its tools run", func() bool { return len(before()) == 5 }) // the shell counts twice
	if err := g.Started(p.cmd.Process.Pid, p.kill); err != nil {
		t.Fatal(err)
	}
	for _, pid := range before() {
		if !g.run.group.inside(pid) {
			t.Errorf("process %d is outside", pid)
		}
	}
}

func TestGuard_StartedSaysThatAChildIsNotInItsCgroup(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	h := newHouse(t, Limits{})
	g := h.guard(t)
	p := begin(t, g, exec.Command(h.Stage, "child", "wait"))
	p.untilOut("ready")
	for _, dir := range g.run.group.dirs() {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Started(p.cmd.Process.Pid, p.kill); err == nil || !strings.Contains(err.Error(), "cgroup") {
		t.Errorf("started says %v", err)
	}
}

func TestGuard_StartedTakesAChildThatHasEndedAlready(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{})
	g := h.guard(t)
	p := begin(t, g, exec.Command(h.Stage, "child", "told"))
	p.await()
	if err := g.Started(p.cmd.Process.Pid, p.kill); err != nil {
		t.Error(err)
	}
}

func TestGuard_StartRefusesWhatCommandHasNotPrepared(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{})
	cmd := exec.Command(h.Stage, "child", "wait")
	if err := h.guard(t).Start(cmd); err == nil || cmd.Process != nil {
		t.Errorf("an unguarded process was started: %v", err)
	}
}

// An init command is no program of ours: it is inside before its first
// instruction.
func TestGuard_AnInitCommandBeginsInItsCgroup(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	h := newHouse(t, Limits{})
	g := h.guard(t)
	p := begin(t, g, exec.Command("/bin/sh", "-c", "cat /proc/self/cgroup"))
	name := filepath.Base(g.run.group.dirs()[0])
	p.await()
	if !strings.Contains(p.wrote(), name) {
		t.Errorf("it is not in %s:\n%s", name, p.wrote())
	}
}

func TestGuard_AChildHasTheLimitsAndNoPrivilegeFromItsStart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Files: 100, Memory: 128 << 20, CPU: 1})
	got := runScript(t, h, true, `ulimit -n; ulimit -Hn; ulimit -Hc; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status; env | grep CONFINE`)
	want := "100\n100\n0\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestGuard_TellsAChildItsLimits(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Limits{Memory: 128 << 20, CPU: 1.5})
	p := start(t, h.guard(t), "told")
	p.await()
	if got := p.wrote(); got != "134217728 1.5\n" {
		t.Errorf("it was told %q", got)
	}
}
