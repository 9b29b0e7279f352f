package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// clockTicks is USER_HZ, which Linux fixes at 100 for every program.
const clockTicks = 100

// cpuTime is the user and system time that a process has used, to 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	// The name stands in brackets and may hold spaces; utime is field 14.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read processor time of %d: %d fields", pid, len(fields))
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time of %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
}

// memory is in bytes. PSS counts shared pages in parts; private counts what
// would come back if the process ended; anon is what the process made itself,
// without pages of files.
type memory struct {
	pss, private, anon int64
}

func (m memory) add(o memory) memory {
	return memory{m.pss + o.pss, m.private + o.private, m.anon + o.anon}
}

func readMemory(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	var m memory
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("read memory of %d: %w", pid, err)
		}
		switch f[0] {
		case "Pss:":
			m.pss = n << 10
		case "Private_Clean:", "Private_Dirty:":
			m.private += n << 10
		case "Anonymous:":
			m.anon = n << 10
		}
	}
	return m, lines.Err()
}

// openFiles counts the descriptors of a process.
func openFiles(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	return len(entries), nil
}

// children counts the processes that a process started and that are there.
func children(pid int) (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(tasks) == 0 {
		return 0, errors.Join(fmt.Errorf("count the children of %d", pid), err)
	}
	n := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		n += len(strings.Fields(string(text)))
	}
	return n, nil
}

// machine describes the host in one line.
func machine() string {
	name := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	mem := "unknown memory"
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int64
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kb); err == nil {
			mem = fmt.Sprintf("%.1f GiB", float64(kb)/(1<<20))
		}
	}
	return fmt.Sprintf("%s, %d cores, %s, %s, %s", name, runtime.NumCPU(), mem, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version())
}
