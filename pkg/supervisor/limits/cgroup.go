package limits

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The controllers that limits are set by.
const (
	memory = "memory"
	pids   = "pids"
	cpu    = "cpu"
)

// cpuPeriod is the time in which the share of the processors is dealt out, in
// microseconds; the kernel's own default.
const cpuPeriod = 100_000

// groupPrefix begins the name of a cgroup: formation-<id>-<16 hex>. The first eight
// digits stand for the state directory, so that a host's supervisors keep off
// each other's formations of the same id, and drafts off what is deployed. The
// next four stand for the supervisor's process, the last tell its launches apart.
const groupPrefix = "formation-"

var groupShape = regexp.MustCompile(`^formation-.+-[0-9a-f]{16}$`)

// groupDigits is how many digits end the name of a cgroup.
const groupDigits = 16

// group is the cgroup of one process and all that it starts. In version 1 it is
// one directory per controller, in version 2 one directory.
type group struct {
	dir map[string]place // by controller; those that no cgroup could be made for are missing
}

// place is a directory of a cgroup.
type place struct {
	path    string
	unified bool // version 2
}

// makeGroup makes the cgroup of r as far as there can be one, sets the limits,
// and leaves the rest to the watcher.
func (g *Guard) makeGroup(r *run) error {
	parents, err := findParents(g.cfg.CgroupRoot)
	if err != nil {
		g.log.Warn().Err(err).Msg("no cgroups: limits are held by a watcher")
	}
	if len(parents) == 0 {
		g.warnUnheld(nil)
		return nil
	}
	prefix, mark := groupPrefix+g.cfg.ID+"-"+digits(g.cfg.StateDir, 8), selfMark()
	for _, p := range parents {
		sweepGroups(p.path, prefix, mark)
	}
	name := freshGroup(parents, prefix+mark)
	r.group = &group{dir: make(map[string]place, len(parents))}
	for controller, p := range parents {
		p.path = filepath.Join(p.path, name)
		if err := os.Mkdir(p.path, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // a formation of another user reads its limits
			g.log.Debug().Err(err).Str("controller", controller).Msg("cannot make a cgroup")
			continue
		}
		r.group.dir[controller] = p
	}
	if len(r.group.dir) == 0 {
		r.group = nil
	}
	g.warnUnheld(r.group)
	return r.group.set(g.cfg.Limits)
}

// digits stands for text in the name of a cgroup.
func digits(text string, n int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:n]
}

// selfMark tells this process from those that had its number before.
func selfMark() string {
	self, _ := statOf(os.Getpid()) // zero is a mark, too
	return digits(fmt.Sprint(os.Getpid(), self.start), 4)
}

// freshGroup returns a name with a prefix that no parent has a cgroup of.
func freshGroup(parents map[string]place, prefix string) string {
	for {
		var suffix [2]byte
		_, _ = rand.Read(suffix[:]) // never fails
		name := prefix + hex.EncodeToString(suffix[:])
		taken := false
		for _, p := range parents {
			_, err := os.Lstat(filepath.Join(p.path, name))
			taken = taken || err == nil
		}
		if !taken {
			return name
		}
	}
}

// warnUnheld tells about limits that are held less well, or not at all.
func (g *Guard) warnUnheld(have *group) {
	if g.cfg.Limits.CPU > 0 && !have.has(cpu) {
		g.log.Warn().Float64("cpu", g.cfg.Limits.CPU).Msg("no cgroup for cpu: the limit is not held")
	}
	for controller, limit := range map[string]int64{memory: g.cfg.Limits.Memory, pids: int64(g.cfg.Limits.Pids)} {
		if limit > 0 && !have.has(controller) {
			g.log.Debug().Str("limit", controller).Msg("no cgroup: a watcher holds the limit")
		}
	}
}

// has tells whether the group holds this controller's limit.
func (g *group) has(controller string) bool {
	if g == nil {
		return false
	}
	_, ok := g.dir[controller]
	return ok
}

// dirs are the directories to join, each once.
func (g *group) dirs() []string {
	if g == nil {
		return nil
	}
	var dirs []string
	for _, p := range g.dir {
		if !slices.Contains(dirs, p.path) {
			dirs = append(dirs, p.path)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// take moves a process that has just begun into the group, with what it may have
// started meanwhile. The kernel lets the writer wait for up to 20 ms when nothing
// has moved for a while; the process runs on, so that this takes no time from its
// start. One that has ended already needs no group.
func (g *group) take(pid int) error {
	if g == nil {
		return nil
	}
	queue := []int{pid}
	for len(queue) > 0 {
		pid, queue = queue[0], queue[1:]
		for _, dir := range g.dirs() {
			err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
			if errors.Is(err, unix.ESRCH) {
				break
			}
			if err != nil {
				return fmt.Errorf("put the process into its cgroup: %w", err)
			}
		}
		// What it starts from now on is inside from its beginning.
		before, _ := children(pid)
		queue = append(queue, before...)
	}
	return nil
}

// set writes the limits down.
func (g *group) set(l Limits) error {
	if g == nil {
		return nil
	}
	for _, s := range g.settings(l) {
		err := os.WriteFile(s.path, []byte(s.value), 0)
		if errors.Is(err, os.ErrNotExist) && s.optional {
			continue // a kernel without accounting of swap
		}
		if err != nil {
			return fmt.Errorf("set a limit: %w", err)
		}
	}
	return nil
}

type setting struct {
	path, value string
	optional    bool
}

// settings are the files to write, in order.
func (g *group) settings(l Limits) []setting {
	var all []setting
	add := func(controller, file, value string, optional bool) {
		all = append(all, setting{filepath.Join(g.dir[controller].path, file), value, optional})
	}
	if l.Memory > 0 && g.has(memory) {
		limit := strconv.FormatInt(l.Memory, 10)
		if g.dir[memory].unified {
			add(memory, "memory.max", limit, false)
			add(memory, "memory.swap.max", "0", true)
			add(memory, "memory.oom.group", "1", true)
		} else {
			add(memory, "memory.limit_in_bytes", limit, false)
			add(memory, "memory.memsw.limit_in_bytes", limit, true) // with swap; may not be below the first
		}
	}
	if l.Pids > 0 && g.has(pids) {
		add(pids, "pids.max", strconv.Itoa(l.Pids), false)
	}
	if l.CPU > 0 && g.has(cpu) {
		quota := strconv.FormatInt(int64(l.CPU*cpuPeriod), 10)
		if g.dir[cpu].unified {
			add(cpu, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod), false)
		} else {
			add(cpu, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod), false)
			add(cpu, "cpu.cfs_quota_us", quota, false)
		}
	}
	return all
}

// oomKills is how many processes of the group the kernel killed for want of
// memory.
func (g *group) oomKills() *tally {
	switch {
	case !g.has(memory):
		return nil
	case g.dir[memory].unified:
		return openTally(filepath.Join(g.dir[memory].path, "memory.events"), "oom_kill")
	}
	return openTally(filepath.Join(g.dir[memory].path, "memory.oom_control"), "oom_kill")
}

// refusedForks is how many processes and threads the pids limit refused.
func (g *group) refusedForks() *tally {
	if !g.has(pids) {
		return nil
	}
	return openTally(filepath.Join(g.dir[pids].path, "pids.events"), "max")
}

// tally is a counter of the kernel that is read again and again: its file stays
// open. A nil one counts nothing.
type tally struct {
	file *os.File
	name string
	buf  [1024]byte // more than any of these files has
}

// openTally opens the counter with a name in a file of lines "name 12"; nil when
// there is no such file.
func openTally(path, name string) *tally {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	return &tally{file: f, name: name}
}

func (t *tally) read() uint64 {
	if t == nil {
		return 0
	}
	n, err := t.file.ReadAt(t.buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	return counted(string(t.buf[:n]), t.name)
}

func (t *tally) close() {
	if t != nil {
		_ = t.file.Close() // it was only read
	}
}

// counted reads "name 12" from such lines; 0 when it is not there.
func counted(text, name string) uint64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// procs returns the processes in the group.
func (g *group) procs() []int {
	var all []int
	for _, dir := range g.dirs() {
		text, err := readFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(text) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 && !slices.Contains(all, pid) {
				all = append(all, pid)
			}
		}
	}
	return all
}

// How long, how often and how many times at least remove looks for the killed to
// be gone: where nothing gets a processor for a while, the time alone says little.
const (
	removeTime  = 2 * time.Second
	removeEvery = 2 * time.Millisecond
	removeLooks = 100
)

// remove kills what is left in the group and removes it.
func (g *group) remove() error {
	if g.gone() {
		return nil
	}
	if g.has(pids) { // nothing new from here on
		_ = os.WriteFile(filepath.Join(g.dir[pids].path, "pids.max"), []byte("0"), 0)
	}
	ticker := time.NewTicker(removeEvery)
	defer ticker.Stop()
	end := time.Now().Add(removeTime)
	for looks := 1; ; looks++ {
		err := g.kill()
		if g.gone() {
			return nil
		}
		if looks >= removeLooks && time.Now().After(end) {
			return errors.Join(fmt.Errorf("remove the cgroup: processes %v are still in it", g.procs()), err)
		}
		<-ticker.C
	}
}

// gone removes the directories and tells whether none is left.
func (g *group) gone() bool {
	all := true
	for _, dir := range g.dirs() {
		if err := os.Remove(dir); ignoreMissing(err) != nil {
			all = false
		}
	}
	return all
}

// kill kills every process in the group.
func (g *group) kill() error {
	var errs []error
	for _, dir := range g.dirs() {
		// Version 2 since Linux 5.14 does it at one stroke.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	}
	for _, pid := range g.procs() {
		errs = append(errs, killIf(pid, func() bool { return slices.Contains(g.procs(), pid) }))
	}
	return errors.Join(errs...)
}

// sweepGroups removes the cgroups that earlier supervisors left of a formation:
// their names are the prefix and eight digits. Those with living processes in them
// refuse. Those of the supervisor with this mark stay: one without a process
// belongs to a launch in progress, beside which an update may begin.
func sweepGroups(parent, prefix, mark string) {
	stale, err := filepath.Glob(filepath.Join(parent, escapeGlob(prefix)+"????????"))
	if err != nil {
		return
	}
	for _, dir := range stale {
		name := filepath.Base(dir)
		if groupShape.MatchString(name) && !strings.HasPrefix(name, prefix+mark) {
			_ = os.Remove(dir)
		}
	}
}

// escapeGlob makes a name of its own match alone.
func escapeGlob(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}
