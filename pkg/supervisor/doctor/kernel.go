package doctor

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/confine"
)

// The numbers of open files below which a supervisor is short of them.
const (
	fewFiles = 8192
	noFiles  = 1024
)

// goodLandlock is the version that also keeps files from being cut off.
const goodLandlock = 3

// built is a day before this program was made: a clock before it is wrong.
var built = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// openFiles reads the limit of the supervisor, of this process when none runs.
func openFiles(_ context.Context, h *host) Result {
	pid := "self"
	if h.PID != 0 {
		pid = strconv.Itoa(h.PID)
	}
	text, err := os.ReadFile(filepath.Join(h.Root, "proc", pid, "limits"))
	if err != nil {
		return warn("", "cannot see the limit of open files: %s", err)
	}
	hard := hardLimit(string(text), "Max open files")
	const fix = "LimitNOFILE=65536 in the unit, or ulimit -Hn before the start"
	switch {
	case hard < 0:
		return ok("any number may be open")
	case hard < noFiles:
		return fail(fix, "at most %d may be open", hard)
	case hard < fewFiles:
		return warn(fix, "at most %d may be open: enough for few formations", hard)
	}
	return ok("%d may be open", hard)
}

// hardLimit reads a line of /proc/<pid>/limits; -1 is no limit.
func hardLimit(text, name string) int64 {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name)
		if fields := strings.Fields(rest); found && len(fields) >= 2 {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// pidfd tries what keeps a signal from reaching a stranger.
func pidfd(context.Context, *host) Result {
	const fix = "a kernel of 5.6 or newer; in a container, a seccomp profile that allows pidfd_open and pidfd_getfd"
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fail(fix, "the kernel has no pidfd_open: %s", err)
	}
	defer unix.Close(fd)
	own, err := unix.PidfdGetfd(fd, fd, 0)
	if err != nil {
		return warn(fix, "the kernel refuses pidfd_getfd (%s): a supervisor that was killed takes sockets over in one way only", err)
	}
	return okClosed(own)
}

func okClosed(fd int) Result {
	if err := unix.Close(fd); err != nil {
		return warn("", "close a descriptor: %s", err)
	}
	return ok("processes are held by descriptor, not by number")
}

func landlock(context.Context, *host) Result {
	const fix = "a kernel of 6.2 or newer with Landlock on (lsm=landlock,... on its command line)"
	switch version := confine.LandlockVersion(); {
	case version == 0:
		return warn(fix, "the kernel has none: a formation may read every file that its user may")
	case version < goodLandlock:
		return warn(fix, "version %d: files outside cannot be changed, but cut off", version)
	default:
		return ok("version %d", version)
	}
}

// users tells as whom formations run.
func users(_ context.Context, h *host) Result {
	if uid := h.uid(); uid != 0 {
		name := strconv.Itoa(uid)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		if h.OwnUsers {
			return fail("run the supervisor as root (deploy/systemd/own-users.conf), or remove formations.user_range",
				"%s, which may not run formations as users of their own", name)
		}
		return ok("%s, for formations too", name)
	}
	if !h.OwnUsers {
		return warn("set formations.user_range, or run the supervisor as a user of its own (deploy/install.sh does)",
			"root, and formations would run as root too")
	}
	return ok("root; each formation runs as a user of its own")
}

// uid is the user of the supervisor: that runs, or to whom the home belongs, or
// this one.
func (h *host) uid() int {
	if h.PID != 0 {
		text, err := os.ReadFile(filepath.Join(h.Root, "proc", strconv.Itoa(h.PID), "status"))
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // Uid: real effective saved file-system
			if err == nil && len(fields) >= 3 && fields[0] == "Uid:" {
				if uid, err := strconv.Atoi(fields[2]); err == nil {
					return uid
				}
			}
		}
	}
	var st unix.Stat_t
	if os.Geteuid() == 0 && unix.Stat(h.Home, &st) == nil {
		return int(st.Uid)
	}
	return os.Geteuid()
}

// mayWrite tells whether a user may make something in a directory.
func mayWrite(dir string, uid int) bool {
	if uid == os.Geteuid() {
		return unix.Access(dir, unix.W_OK) == nil
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return false
	}
	return uid == 0 || int(st.Uid) == uid && st.Mode&0o200 != 0 || st.Mode&0o002 != 0
}

func systemd(_ context.Context, h *host) Result {
	if _, err := os.Stat(filepath.Join(h.Root, "run/systemd/system")); err != nil {
		return warn("let whatever starts services here start `supervisor serve`, and start it again when it ends",
			"this host does not run systemd")
	}
	return ok("it runs this host; deploy/install.sh makes the unit")
}

// clock asks the kernel whether something keeps the clock right.
func clock(context.Context, *host) Result {
	const fix = "timedatectl set-ntp true, or run chrony"
	now := time.Now()
	if now.Before(built) {
		return fail(fix, "it is %s here, which cannot be", now.Format(time.DateTime))
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil || state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0 {
		return warn(fix, "nothing keeps it right (%s): signatures that are 300 s off are refused", now.UTC().Format(time.RFC3339))
	}
	return ok("kept right, to %s", time.Duration(t.Maxerror)*time.Microsecond)
}

// controllers are what limits are held by.
var controllers = [...]string{"memory", "pids", "cpu"}

// cgroups looks whether the supervisor's own cgroup lets it make others.
func cgroups(_ context.Context, h *host) Result {
	const fix = "Delegate=yes in the unit (deploy/systemd has it); without, memory and pids are held by a watcher, cpu is not held"
	pid := "self"
	if h.PID != 0 {
		pid = strconv.Itoa(h.PID)
	}
	own, err := os.ReadFile(filepath.Join(h.Root, "proc", pid, "cgroup"))
	if err != nil {
		return warn(fix, "cannot see the cgroup: %s", err)
	}
	found, unified := ownCgroups(h.Root, string(own))
	var missing []string
	uid := h.uid()
	for _, c := range controllers {
		if found[c] == "" || !mayWrite(found[c], uid) {
			missing = append(missing, c)
		}
	}
	version := "1"
	if unified {
		version = "2"
	}
	switch {
	case len(found) == 0:
		return warn(fix, "no cgroups are mounted")
	case len(missing) > 0 && h.Limits:
		return warn(fix, "version %s, not ours to divide: %s", version, strings.Join(missing, ", "))
	case len(missing) > 0:
		return ok("version %s, not ours to divide (%s); no limits are set either", version, strings.Join(missing, ", "))
	}
	return ok("version %s: %s can be limited", version, strings.Join(controllers[:], ", "))
}

// ownCgroups returns by controller the directory of a process's cgroup, and
// whether one of those that limits need is of version 2.
func ownCgroups(root, own string) (found map[string]string, unified bool) {
	base := filepath.Join(root, "sys/fs/cgroup")
	found = map[string]string{}
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[1] == "" {
			for _, mount := range []string{base, filepath.Join(base, "unified")} {
				offered, err := os.ReadFile(filepath.Join(mount, parts[2], "cgroup.controllers"))
				if err != nil {
					continue
				}
				for name := range strings.FieldsSeq(string(offered)) {
					if found[name] == "" && slices.Contains(controllers[:], name) {
						found[name], unified = filepath.Join(mount, parts[2]), true
					}
				}
			}
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			if dir, err := hierarchy(base, name, parts[1], parts[2]); err == nil {
				found[name] = dir
			}
		}
	}
	return found, unified
}

// hierarchy returns the directory of a cgroup of version 1; its mount has the
// name of one controller or of all that share it.
func hierarchy(base, name, shared, path string) (string, error) {
	for _, mount := range []string{name, shared} {
		dir := filepath.Join(base, mount, path)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no mount of %s", name)
}
