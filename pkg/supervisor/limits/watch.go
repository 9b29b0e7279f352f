package limits

import (
	"fmt"
	"sync"
	"time"
)

// How often a watcher looks.
const (
	// slow and fast bound the time between two looks at a process tree.
	slow = 200 * time.Millisecond
	fast = 20 * time.Millisecond
	// growth is how fast a tree is expected to take memory at most, in bytes per
	// second: the next look comes before it could reach the limit.
	growth = 512 << 20
	// fullEvery is the time between two looks at all processes of the machine.
	fullEvery = 10 * time.Second
	// eventsEvery is the time between two looks at the counters of a cgroup.
	eventsEvery = time.Second
	// recent is how long a process that ends of a counter's step may take: one that
	// is seen alive later has outlived it.
	recent = 3 * time.Second
	// diskEvery is the least time between two sums of the disk in use; a sum may
	// take one diskShare-th of the time.
	diskEvery = 30 * time.Second
	diskShare = 100
)

// watch follows one process in a goroutine until stop.
type watch struct {
	g    *Guard
	pid  int
	run  *run
	kill func(reason string)

	diskEvery time.Duration

	halt, done chan struct{}
	halting    sync.Once

	oomKills, refused *tally

	// Owned by the goroutine until done is closed.
	reason       string // why the watcher ended the process
	tree         *tree  // nil when the kernel holds the limits
	oom, forks   uint64
	oomAt, forkd time.Time // when the counters last stepped; zero when the process has outlived it
	began        uint64    // start time of the process
}

func (g *Guard) newWatch(pid int, r *run, kill func(string)) *watch {
	every := g.cfg.DiskEvery
	if every == 0 {
		every = diskEvery
	}
	return &watch{
		g: g, pid: pid, run: r, kill: kill, diskEvery: every,
		halt: make(chan struct{}), done: make(chan struct{}),
	}
}

func (w *watch) start() {
	w.oomKills, w.refused = w.run.group.oomKills(), w.run.group.refusedForks()
	if w.run.adopted { // what has just been launched may have met its limits already
		w.oom, w.forks = w.oomKills.read(), w.refused.read()
	}
	if s, err := statOf(w.pid); err == nil {
		w.began = s.start
	}
	go w.loop()
}

// stop ends the watching and returns the limit that ended the process.
func (w *watch) stop() string {
	w.halting.Do(func() { close(w.halt) })
	<-w.done
	defer w.oomKills.close()
	defer w.refused.close()
	if w.reason != "" {
		return w.reason
	}
	w.lookEvents(time.Now())
	switch { // whoever asks may come late
	case !w.oomAt.IsZero():
		return memoryReason(w.g.cfg.Limits.Memory)
	case !w.forkd.IsZero():
		return pidsReason(w.g.cfg.Limits.Pids)
	}
	return ""
}

func within(at, now time.Time) bool { return !at.IsZero() && now.Sub(at) < recent }

func memoryReason(limit int64) string {
	if limit == 0 {
		return "out of memory"
	}
	return "out of memory, limit " + FormatBytes(limit)
}

func pidsReason(limit int) string { return fmt.Sprintf("too many processes, limit %d", limit) }

// look is something to look at from time to time: it returns the time until the
// next look.
type look struct {
	due  time.Time
	look func(now time.Time) time.Duration
}

// loop looks at what the kernel does not hold by itself.
func (w *watch) loop() {
	defer close(w.done)
	looks := w.looks(time.Now())
	if len(looks) == 0 {
		<-w.halt
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for w.reason == "" {
		select {
		case <-w.halt:
			return
		case now := <-timer.C:
			next := now.Add(diskEvery)
			for i := range looks {
				l := &looks[i]
				if !l.due.After(now) && w.reason == "" {
					l.due = time.Now().Add(l.look(now))
				}
				if l.due.Before(next) {
					next = l.due
				}
			}
			timer.Reset(time.Until(next))
		}
	}
}

// looks are those that the limits and the cgroup make necessary.
func (w *watch) looks(now time.Time) []look {
	l, group := w.g.cfg.Limits, w.run.group
	var all []look
	if l.Memory > 0 && !group.has(memory) || l.Pids > 0 && !group.has(pids) {
		w.tree = newTree(w.pid, w.run.tmp)
		all = append(all, look{now, w.lookTree(w.tree)})
	}
	if group.has(memory) || group.has(pids) {
		all = append(all, look{now.Add(untilTick(now)), w.lookEvents})
	}
	if l.Disk > 0 {
		all = append(all, look{now.Add(w.diskEvery), w.lookDisk})
	}
	return all
}

// lookTree holds the limits of memory and processes over a tree.
func (w *watch) lookTree(t *tree) func(time.Time) time.Duration {
	limits, group := w.g.cfg.Limits, w.run.group
	if group.has(memory) {
		limits.Memory = 0
	}
	if group.has(pids) {
		limits.Pids = 0
	}
	var fullAt, walkedAt time.Time
	return func(now time.Time) time.Duration {
		if full := now.Sub(fullAt) >= fullEvery; full || now.Sub(walkedAt) >= slow/2 {
			t.look(full)
			walkedAt = now
			if full {
				fullAt = now
			}
		}
		wait := slow
		if limits.Memory > 0 {
			used := t.memory(limits.Memory)
			if used > limits.Memory {
				w.end(memoryReason(limits.Memory), t)
			}
			wait = min(wait, time.Duration(float64(limits.Memory-used)/growth*float64(time.Second)))
		}
		if limits.Pids > 0 {
			tasks := t.tasks()
			if tasks > limits.Pids {
				w.end(pidsReason(limits.Pids), t)
			}
			if tasks > limits.Pids/2 {
				wait = fast
			}
		}
		return max(fast, wait)
	}
}

// lookEvents notes what the kernel did at a cgroup's limits.
func (w *watch) lookEvents(now time.Time) time.Duration {
	l := w.g.cfg.Limits
	if n := w.oomKills.read(); n > w.oom {
		w.oom, w.oomAt = n, now
		w.g.log.Warn().Int("pid", w.pid).Str("limit", FormatBytes(l.Memory)).Msg("a process of the formation was killed: out of memory")
	}
	if n := w.refused.read(); n > w.forks {
		if !within(w.forkd, now) {
			w.g.log.Warn().Int("pid", w.pid).Int("limit", l.Pids).Msg("the formation is refused further processes")
		}
		w.forks, w.forkd = n, now
	}
	w.outlive(now)
	return untilTick(time.Now())
}

// outlive forgets the steps of counters that the process did not end of.
func (w *watch) outlive(now time.Time) {
	for _, at := range []*time.Time{&w.oomAt, &w.forkd} {
		if at.IsZero() || within(*at, now) {
			continue
		}
		if s, err := statOf(w.pid); err == nil && s.start == w.began && s.state != 'Z' && s.state != 'X' {
			*at = time.Time{}
		}
	}
}

// untilTick is the time until the next look at counters. All watchers look at
// the same moments, so that a supervisor at rest wakes once for all. A timer may
// be a little early for the clock; then the moment has been.
func untilTick(now time.Time) time.Duration {
	d := eventsEvery - time.Duration(now.UnixNano()%int64(eventsEvery))
	if d < eventsEvery/10 {
		d += eventsEvery
	}
	return d
}

// lookDisk holds the limit of the disk. A file system that could refuse a write
// at the limit is not given, so the formation is ended.
func (w *watch) lookDisk(now time.Time) time.Duration {
	limit := w.g.cfg.Limits.Disk
	if used := diskUse(w.g.cfg.StateDir, w.run.tmp); used > limit {
		w.end(diskReason(used, limit), nil)
	}
	return max(w.diskEvery, diskShare*time.Since(now))
}

// end kills the process and what it started.
func (w *watch) end(reason string, t *tree) {
	if w.reason != "" {
		return
	}
	w.reason = reason
	w.g.log.Error().Int("pid", w.pid).Str("reason", reason).Msg("the formation is ended at a limit")
	if t == nil {
		t = newTree(w.pid, w.run.tmp)
		t.look(true)
	}
	w.kill(reason)
	t.kill()
}
