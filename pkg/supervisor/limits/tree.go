package limits

import "time"

// tree is a process and all that it started, followed without a cgroup. A member
// stays one when its parent dies: it was seen before. What escapes the looks in
// between is found by the full ones: it carries the process group, or the
// temporary directory in its environment.
type tree struct {
	root    int
	tmp     string         // of the launch, "" when not known
	members map[int]uint64 // number to start time
}

func newTree(root int, tmp string) *tree {
	t := &tree{root: root, tmp: tmp, members: make(map[int]uint64)}
	if s, err := statOf(root); err == nil {
		t.members[root] = s.start
	}
	return t
}

// alive tells whether pid is still the member that it was.
func (t *tree) alive(pid int) bool {
	s, err := statOf(pid)
	return err == nil && s.start == t.members[pid] && s.state != 'Z' && s.state != 'X'
}

// look forgets members that have ended and finds new ones. full also finds those
// whose parents were gone before anyone looked.
func (t *tree) look(full bool) {
	for pid := range t.members {
		if s, err := statOf(pid); err != nil || s.start != t.members[pid] {
			delete(t.members, pid)
		}
	}
	told := t.descend()
	if full || !told {
		t.scan()
	}
}

// descend finds the children of members. It returns false when the kernel does
// not tell who they are.
func (t *tree) descend() bool {
	queue := make([]int, 0, len(t.members))
	for pid := range t.members {
		queue = append(queue, pid)
	}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		found, told := children(pid)
		if !told {
			return false
		}
		for _, child := range found {
			if t.add(child) {
				queue = append(queue, child)
			}
		}
	}
	return true
}

// add takes a process in unless it is one already.
func (t *tree) add(pid int) bool {
	if _, ok := t.members[pid]; ok {
		return false
	}
	s, err := statOf(pid)
	if err != nil {
		return false
	}
	t.members[pid] = s.start
	return true
}

// scan looks at every process of the machine.
func (t *tree) scan() {
	parents := make(map[int][]int)
	stats := make(map[int]stat)
	for _, pid := range allPids() {
		s, err := statOf(pid)
		if err != nil {
			continue
		}
		stats[pid] = s
		parents[s.parent] = append(parents[s.parent], pid)
	}
	rootStart, rootLives := t.members[t.root]
	queue := make([]int, 0, len(t.members))
	for pid, s := range stats {
		// The group's number is the root's: it is not given to another while the
		// root lives.
		inGroup := rootLives && s.processGrp == t.root && s.start >= rootStart
		if _, ok := t.members[pid]; ok || inGroup || t.marked(pid) {
			t.members[pid] = s.start
			queue = append(queue, pid)
		}
	}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		for _, child := range parents[pid] {
			if _, ok := t.members[child]; !ok {
				t.members[child] = stats[child].start
				queue = append(queue, child)
			}
		}
	}
}

// marked tells whether a process that lost its parent was started by this launch.
func (t *tree) marked(pid int) bool {
	return t.tmp != "" && environ(pid, "TMPDIR") == t.tmp
}

// tasks is how many processes and threads the tree has.
func (t *tree) tasks() int {
	n := 0
	for pid := range t.members {
		if s, err := statOf(pid); err == nil && s.state != 'Z' {
			n += s.threads
		}
	}
	return n
}

// memory is what the tree holds, in bytes. When the cheap sum is over the limit
// and may have counted shared memory twice, the exact one decides.
func (t *tree) memory(limit int64) int64 {
	var sum int64
	for pid := range t.members {
		sum += resident(pid)
	}
	if sum <= limit || len(t.members) == 1 {
		return sum
	}
	var exact int64
	for pid := range t.members {
		n, ok := proportional(pid)
		if !ok {
			n = resident(pid)
		}
		exact += n
	}
	return exact
}

// How long, how often and how many times at least kill looks for what is left.
const (
	treeKillTime  = 5 * time.Second
	treeKillEvery = 2 * time.Millisecond
	treeKillLooks = 100
)

// kill kills the members until none is left: between two looks they may start
// others.
func (t *tree) kill() {
	ticker := time.NewTicker(treeKillEvery)
	defer ticker.Stop()
	end := time.Now().Add(treeKillTime)
	for looks := 1; ; looks++ {
		t.look(true)
		left := false
		for pid := range t.members {
			if t.alive(pid) {
				left = true
				_ = killIf(pid, func() bool { return t.alive(pid) })
			}
		}
		if !left || looks >= treeKillLooks && time.Now().After(end) {
			return
		}
		<-ticker.C
	}
}
