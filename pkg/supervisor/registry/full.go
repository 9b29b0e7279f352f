package registry

import (
	"errors"
	"syscall"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// Full tells that err comes from a full disk. Nothing was changed then, and the
// registry goes on when there is room again.
func Full(err error) bool {
	e, ok := errors.AsType[sqlite3.Error](err)
	return ok && (e.Code == sqlite3.ErrFull || errors.Is(e.SystemErrno, syscall.ENOSPC) || errors.Is(e.SystemErrno, syscall.EDQUOT))
}
