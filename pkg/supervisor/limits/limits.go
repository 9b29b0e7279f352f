// Package limits keeps each formation within what the operator's policy grants:
// memory, processor time, processes, open files and disk. What the kernel can
// hold by itself goes into a cgroup (version 2 where it is delegated, version 1
// where it is writable) and resource limits; where there is no cgroup, a watcher
// of the process tree ends the formation at the same limit with the same words.
// It also prepares what a child confines itself by (see confine): its own user,
// the directories that stay open, its private temporary directory.
//
// Promise: an author can raise none of it, one formation's end touches no other,
// and no process is killed that is not proven to be the formation's.
//
// The use cases make a Guard per formation; the process room drives it.
package limits

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Limits are what one formation may use. 0 is no limit.
type Limits struct {
	Memory int64   // bytes, of all its processes together
	CPU    float64 // processors
	Pids   int     // processes and threads
	Files  int     // open descriptors, of each process
	Disk   int64   // bytes in its state and temporary directories
}

// Policy is the operator's grant.
type Policy struct {
	// Default is for every formation; ByID replaces what is not 0 in it.
	Default Limits
	ByID    map[string]Limits
	// MaxMemory caps the memory of every formation, in bytes; 0 is no cap.
	MaxMemory int64
	// CgroupRoot is the directory to make cgroups of version 2 in, "none" for no
	// cgroups; "" finds where this process may.
	CgroupRoot string
	// Users is the range of users that formations run as, one each, when the
	// supervisor is root. Nil leaves them the supervisor's own.
	Users *UserRange
	// NoLandlock leaves children the whole file system that their user has.
	NoLandlock bool
	// Readable and Writable are further paths that Landlock leaves open, absolute.
	Readable, Writable []string
}

// For returns the limits of one formation.
func (p Policy) For(id string) Limits {
	l, own := p.Default, p.ByID[id]
	if own.Memory != 0 {
		l.Memory = own.Memory
	}
	if own.CPU != 0 {
		l.CPU = own.CPU
	}
	if own.Pids != 0 {
		l.Pids = own.Pids
	}
	if own.Files != 0 {
		l.Files = own.Files
	}
	if own.Disk != 0 {
		l.Disk = own.Disk
	}
	if p.MaxMemory > 0 && (l.Memory == 0 || l.Memory > p.MaxMemory) {
		l.Memory = p.MaxMemory
	}
	return l
}

// The least that a formation can run with. Less is a mistake in the settings, not
// a wish.
const (
	minMemory = 32 << 20
	minCPU    = 0.05
	minPids   = 32
	minFiles  = 64
	minDisk   = 1 << 20
)

// Check refuses limits under which no formation could start.
func (l Limits) Check() error {
	switch {
	case l.Memory != 0 && l.Memory < minMemory:
		return fmt.Errorf("memory: %s is too little, the least is %s", FormatBytes(l.Memory), FormatBytes(minMemory))
	case l.CPU != 0 && (l.CPU < minCPU || math.IsNaN(l.CPU) || math.IsInf(l.CPU, 0)):
		return fmt.Errorf("cpu: %v is too little, the least is %v", l.CPU, minCPU)
	case l.Pids != 0 && l.Pids < minPids:
		return fmt.Errorf("pids: %d is too little, the least is %d", l.Pids, minPids)
	case l.Files != 0 && l.Files < minFiles:
		return fmt.Errorf("files: %d is too little, the least is %d", l.Files, minFiles)
	case l.Disk != 0 && l.Disk < minDisk:
		return fmt.Errorf("disk: %s is too little, the least is %s", FormatBytes(l.Disk), FormatBytes(minDisk))
	}
	return nil
}

// UserRange is a range of user ids, First to Last.
type UserRange struct{ First, Last int }

var rangeShape = regexp.MustCompile(`^\s*(\d{1,10})\s*-\s*(\d{1,10})\s*$`)

// Bounds of the ids that a range may hold: below are people's and the system's,
// above the kernel's own meanings begin.
const (
	minUser = 1000
	maxUser = math.MaxInt32 - 1
)

// ParseUserRange reads "200000-200999".
func ParseUserRange(text string) (*UserRange, error) {
	m := rangeShape.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("%q is no range of user ids: want FIRST-LAST, such as 200000-200999", text)
	}
	first, _ := strconv.Atoi(m[1]) // ten digits at most
	last, _ := strconv.Atoi(m[2])
	if first < minUser || last > maxUser || last < first {
		return nil, fmt.Errorf("%q is no range of user ids: want FIRST-LAST between %d and %d", text, minUser, maxUser)
	}
	return &UserRange{First: first, Last: last}, nil
}

// String is the text that ParseUserRange reads.
func (r *UserRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// UID returns the user of index, from 0. An index that is unique and stable per
// formation is its port less the first port.
func (r *UserRange) UID(index int) (int, error) {
	if index < 0 || index > r.Last-r.First {
		return -1, fmt.Errorf("the user range %s has no user number %d: make it as long as the range of ports", r, index+1)
	}
	return r.First + index, nil
}

// ParseCPU reads a number of processors: "1.5", "2", "500m" (thousandths).
func ParseCPU(text string) (float64, error) {
	number, milli := strings.CutSuffix(strings.TrimSpace(text), "m")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, fmt.Errorf("%q is no number of processors: want a number such as 1.5, or thousandths such as 500m", text)
	}
	if milli {
		v /= 1000
	}
	return v, nil
}

// FormatBytes writes a number of bytes for people: "512 MiB", "1.2 GiB".
func FormatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < len("KMGTPE")-1 {
		v /= unit
		i++
	}
	text := strconv.FormatFloat(v, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + " " + "KMGTPE"[i:i+1] + "iB"
}
