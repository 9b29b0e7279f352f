package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxProcFile bounds what is read of a file in /proc, in bytes.
const maxProcFile = 1 << 20

// allPids returns the numbers of all processes that can be seen.
func allPids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProcFile))
	return string(text), err
}

func readProc(pid int, name string) (string, error) {
	return readFile("/proc/" + strconv.Itoa(pid) + "/" + name)
}

// environ returns the value of a variable that a process was started with; ""
// when it has none, or is not ours to look at.
func environ(pid int, name string) string {
	text, err := readProc(pid, "environ")
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq([]byte(text), []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// stat is what /proc/<pid>/stat tells.
type stat struct {
	state              byte
	parent, processGrp int
	threads            int
	start              uint64 // clock ticks since boot
}

// parseStat reads the text of /proc/<pid>/stat. The second field is the program's
// name in parentheses, which may hold anything.
func parseStat(text string) (stat, error) {
	const first, parent, group, threads, start = 3, 4, 5, 20, 22 // numbers of fields, from 1
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("no program name in stat")
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) <= start-first || len(fields[0]) != 1 {
		return stat{}, errors.New("too few fields in stat")
	}
	s := stat{state: fields[0][0]}
	var errs [4]error
	s.parent, errs[0] = strconv.Atoi(fields[parent-first])
	s.processGrp, errs[1] = strconv.Atoi(fields[group-first])
	s.threads, errs[2] = strconv.Atoi(fields[threads-first])
	s.start, errs[3] = strconv.ParseUint(fields[start-first], 10, 64)
	return s, errors.Join(errs[:]...)
}

func statOf(pid int) (stat, error) {
	text, err := readProc(pid, "stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// kilobytes returns the sum of the named lines of a text such as
// /proc/<pid>/status, "Name:   12 kB", in bytes.
func kilobytes(text string, names ...string) int64 {
	var sum int64
	for line := range strings.Lines(text) {
		for _, name := range names {
			rest, ok := strings.CutPrefix(line, name+":")
			if !ok {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}

// resident is the memory that a process holds by itself and that no file backs.
// Memory shared with a parent since a fork is counted in both.
func resident(pid int) int64 {
	text, err := readProc(pid, "status")
	if err != nil {
		return 0
	}
	return kilobytes(text, "RssAnon", "RssShmem", "VmSwap")
}

// proportional is resident with shared memory divided among those who share it.
// It costs the kernel a walk over all pages.
func proportional(pid int) (int64, bool) {
	text, err := readProc(pid, "smaps_rollup")
	if err != nil {
		return 0, false
	}
	return kilobytes(text, "Pss_Anon", "Pss_Shmem", "SwapPss"), true
}

// children returns the numbers of a process' children. It returns false when the
// kernel does not tell.
func children(pid int) ([]int, bool) {
	base := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(base)
	if err != nil {
		return nil, errors.Is(err, os.ErrNotExist)
	}
	var pids []int
	for _, task := range tasks {
		text, err := readFile(filepath.Join(base, task.Name(), "children"))
		if errors.Is(err, os.ErrNotExist) && exists(filepath.Join(base, task.Name())) {
			return nil, false // no such file in this kernel
		}
		for word := range strings.FieldsSeq(text) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids, true
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// killIf kills a process unless it has ended or sure says that its number belongs
// to another by now. The process is held while sure looks.
func killIf(pid int, sure func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return fmt.Errorf("hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !sure() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}
