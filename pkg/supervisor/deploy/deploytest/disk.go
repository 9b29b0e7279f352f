package deploytest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// namespaceEnv marks a test that runs again in a user namespace of its own.
const namespaceEnv = "DEPLOYTEST_NAMESPACE"

// SmallDisk mounts a file system of size bytes for the rest of the test and
// returns its directory. Where this user may not mount, the whole test runs again
// in a user namespace, where it may; then done is true, and the test has nothing
// left to do. It fails where that is forbidden, too.
func SmallDisk(t *testing.T, size int) (dir string, done bool) {
	t.Helper()
	// Not t.TempDir: a unix socket's path has to be short.
	made, err := os.MkdirTemp("", "dt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(made); err != nil {
			t.Error(err)
		}
	})
	err = unix.Mount("deploytest", made, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if err != nil && os.Getenv(namespaceEnv) == "" {
		rerun(t)
		return "", true
	}
	if err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(made, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return made, false
}

// rerun runs this test alone in a user namespace, as its root.
func rerun(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), namespaceEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in a user namespace (this test mounts a small disk and takes root or user namespaces): %v\n%s", err, out)
	}
}

// Fill writes a file into dir until the disk is full and returns the function
// that removes it.
func Fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
