package ports

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder says in words which process listens on port, as far as /proc shows it
// to this user.
func holder(port int) string {
	inodes := listeners(port)
	if len(inodes) == 0 {
		return "another program"
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return "another program"
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "process " + pid
		}
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(comm)))
	}
	return "a process of another user"
}

// listeners returns the sockets that listen on port, in the form in which
// /proc/<pid>/fd names them.
func listeners(port int) map[string]bool {
	found := make(map[string]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if inode, ok := listenLine(lines.Text(), port); ok {
				found["socket:["+inode+"]"] = true
			}
		}
		f.Close()
	}
	return found
}

// listenLine reads a line of /proc/net/tcp: its inode when it is a listener on
// port.
func listenLine(line string, port int) (inode string, ok bool) {
	const listen = "0A"
	f := strings.Fields(line) // sl local_address rem_address st ... inode is the tenth
	if len(f) < 10 || f[3] != listen {
		return "", false
	}
	_, hex, found := strings.Cut(f[1], ":")
	if !found {
		return "", false
	}
	got, err := strconv.ParseUint(hex, 16, 16)
	return f[9], err == nil && int(got) == port
}
