// Package testprogram writes programs that tests start. A process that is
// forked while a program is being written holds the open file until its own
// exec, and starting the program meanwhile fails with "text file busy"
// (https://go.dev/issue/22315).
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
