package confine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setgroups is setgroups(2) for the calling thread alone.
func setgroups(groups []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0) //nolint:gosec // the call has no other form
	if errno != 0 {
		return errno
	}
	return nil
}
