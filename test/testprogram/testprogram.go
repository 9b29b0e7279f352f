// Package testprogram is about the moment between fork and exec, in which a
// process that is being started has every open file of the one that starts it.
// Write and Copy make programs that tests start: one that such a process has open
// for writing fails with "text file busy" (https://go.dev/issue/22315). Fork shows
// what such a process does to locks.
package testprogram

import (
	"fmt"
	"os"
	"syscall"
)

// Write writes a program that everybody may run. Nothing is forked meanwhile.
func Write(path string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, text, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755) // whatever the umask is
}

// Copy writes another program's copy.
func Copy(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying a program: %w", err)
	}
	return Write(to, text)
}
