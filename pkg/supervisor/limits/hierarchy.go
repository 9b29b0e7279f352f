package limits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leaf is the cgroup of version 2 that the supervisor itself is in: a cgroup that
// hands controllers on may hold no processes.
const leaf = "supervisor"

// mount is a mounted hierarchy of cgroups.
type mount struct {
	unified     bool
	root, point string   // what of the hierarchy is mounted where
	controllers []string // of version 1
}

// findParents returns by controller the directories in which cgroups can be made:
// beneath the supervisor's own. root is that of the Policy.
func findParents(root string) (map[string]place, error) {
	switch root {
	case "none":
		return nil, nil
	case "":
	default:
		return unifiedParents(root)
	}
	mountText, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	ownText, err := readFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return locate(parseMounts(mountText), parseOwn(ownText))
}

// locate takes version 1 where its controllers are mounted, and version 2 for the
// rest.
func locate(mounts []mount, own map[string]string) (map[string]place, error) {
	parents := make(map[string]place)
	for _, m := range mounts {
		for _, controller := range []string{memory, pids, cpu} {
			if m.unified || !slices.Contains(m.controllers, controller) {
				continue
			}
			if dir, ok := m.dir(own[controller]); ok && writable(dir) {
				parents[controller] = place{path: dir}
			}
		}
	}
	for _, m := range mounts {
		if !m.unified {
			continue
		}
		dir, ok := m.dir(own[""])
		if !ok || !writable(dir) {
			continue
		}
		found, err := unifiedParents(dir)
		if err != nil {
			return parents, err
		}
		for controller, p := range found {
			if _, ok := parents[controller]; !ok {
				parents[controller] = p
			}
		}
	}
	return parents, nil
}

// dir is where the cgroup at path of the hierarchy is mounted.
func (m mount) dir(path string) (string, bool) {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/..") {
		return "", false // in no cgroup, or in one outside of our namespace
	}
	if !beneath(m.root, path) {
		return m.point, m.root != "/" // a container that sees its own cgroup as the root
	}
	rel, err := filepath.Rel(m.root, path)
	return filepath.Join(m.point, rel), err == nil
}

// parseMounts reads /proc/self/mountinfo.
func parseMounts(text string) []mount {
	var mounts []mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		m := mount{root: unescape(fields[3]), point: unescape(fields[4])}
		switch kind[0] {
		case "cgroup2":
			m.unified = true
		case "cgroup":
			m.controllers = strings.Split(kind[2], ",")
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// unescape undoes the octal escapes of mountinfo.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// parseOwn reads /proc/<pid>/cgroup: paths by controller, that of version 2
// under "".
func parseOwn(text string) map[string]string {
	own := make(map[string]string)
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			own[controller] = parts[2]
		}
	}
	return own
}

// unifiedParents prepares a cgroup of version 2 for handing its controllers on,
// and returns it for those that it can hand on.
func unifiedParents(dir string) (map[string]place, error) {
	if filepath.Base(dir) == leaf {
		dir = filepath.Dir(dir)
	}
	offered, err := words(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("look at the cgroup: %w", err)
	}
	offered = slices.DeleteFunc(offered, func(c string) bool { return c != memory && c != pids && c != cpu })
	if len(offered) == 0 || !writable(dir) {
		return nil, nil
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := words(control)
	if err != nil {
		return nil, fmt.Errorf("look at the cgroup: %w", err)
	}
	parents := make(map[string]place)
	for _, controller := range offered {
		if !slices.Contains(enabled, controller) {
			if err := enable(dir, controller); err != nil {
				return parents, err
			}
		}
		parents[controller] = place{path: dir, unified: true}
	}
	return parents, nil
}

// enable hands a controller of dir on to the cgroups in it. The supervisor goes
// out of the way into a leaf, if it must and may.
func enable(dir, controller string) error {
	control := filepath.Join(dir, "cgroup.subtree_control")
	err := os.WriteFile(control, []byte("+"+controller), 0)
	if err == nil || !isBusy(err) {
		return wrap("hand the cgroup's controllers on", err)
	}
	if err := mayMove(dir); err != nil {
		return err
	}
	home := filepath.Join(dir, leaf)
	if err := os.Mkdir(home, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the kernel's own
		return wrap("make a cgroup for the supervisor", err)
	}
	if err := os.WriteFile(filepath.Join(home, "cgroup.procs"), []byte("0"), 0); err != nil {
		return wrap("move the supervisor into a cgroup of its own", err)
	}
	err = os.WriteFile(control, []byte("+"+controller), 0)
	if err != nil { // there are others: back again
		back := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
		err = errors.Join(err, back, os.Remove(home))
	}
	return wrap("hand the cgroup's controllers on", err)
}

// mayMove refuses the cgroup of a systemd unit that does not put the supervisor
// into a leaf by itself. systemd starts the next supervisor in the unit's own
// cgroup, and could not while formations live on in cgroups beneath it.
func mayMove(dir string) error {
	if strings.HasSuffix(dir, ".service") {
		return fmt.Errorf("the unit of cgroup %s needs Delegate=yes and DelegateSubgroup=%s (systemd 254) for its formations to get cgroups", dir, leaf)
	}
	text, err := readFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return wrap("look at the cgroup", err)
	}
	if self := strconv.Itoa(os.Getpid()); !slices.Contains(strings.Fields(text), self) {
		return fmt.Errorf("other processes are in the cgroup %s: it cannot hand its controllers on", dir)
	}
	return nil
}

func isBusy(err error) bool { return errors.Is(err, unix.EBUSY) }

// wrap says what we were doing when err came; nil stays nil.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func words(path string) ([]string, error) {
	text, err := readFile(path)
	return strings.Fields(text), err
}

// adoptGroup finds the cgroup of a process that an earlier supervisor started;
// nil when it is in none of ours.
func adoptGroup(id string, pid int) *group {
	mountText, err := readFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	ownText, err := readProc(pid, "cgroup")
	if err != nil {
		return nil
	}
	return adoptable(id, parseMounts(mountText), parseOwn(ownText))
}

func adoptable(id string, mounts []mount, own map[string]string) *group {
	g := &group{dir: make(map[string]place)}
	for _, m := range mounts {
		for _, controller := range []string{memory, pids, cpu} {
			path, unified := own[controller], false
			if m.unified {
				path, unified = own[""], true
			} else if !slices.Contains(m.controllers, controller) {
				continue
			}
			name, found := strings.CutPrefix(filepath.Base(path), groupPrefix+id+"-")
			dir, ok := m.dir(path)
			if !ok || !found || len(name) != groupDigits || !groupShape.MatchString(filepath.Base(path)) {
				continue
			}
			if unified && !offers(dir, controller) {
				continue
			}
			g.dir[controller] = place{path: dir, unified: unified}
		}
	}
	if len(g.dir) == 0 {
		return nil
	}
	return g
}

// offers tells whether a cgroup of version 2 has a controller.
func offers(dir, controller string) bool {
	have, err := words(filepath.Join(dir, "cgroup.controllers"))
	return err == nil && slices.Contains(have, controller)
}

// writable tells whether this process may make something in dir.
func writable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }
