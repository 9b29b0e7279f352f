package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	logMode    = 0o640
	logDirMode = 0o750
)

// logFiles are a launch's two open log files.
type logFiles struct {
	out, err *os.File
	// outFrom and errFrom are where this launch's parts begin.
	outFrom, errFrom int64
}

// openLogs opens a formation's log files for appending, so that rotation by
// copy and truncate works while a child holds them.
func openLogs(spec Spec, fresh bool) (*logFiles, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if fresh {
		flags |= os.O_TRUNC
	}
	out, err := openLog(spec.OutLog, flags)
	if err != nil {
		return nil, err
	}
	l := &logFiles{out: out}
	if l.err, err = openLog(spec.ErrLog, flags); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	for _, part := range []struct {
		f    *os.File
		from *int64
	}{{l.out, &l.outFrom}, {l.err, &l.errFrom}} {
		info, err := part.f.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("measure %s: %w", part.f.Name(), err), l.close())
		}
		*part.from = info.Size()
	}
	return l, nil
}

func openLog(path string, flags int) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), logDirMode); err != nil {
		return nil, fmt.Errorf("make the log directory: %w", err)
	}
	f, err := os.OpenFile(path, flags, logMode)
	if err != nil {
		return nil, fmt.Errorf("open the log file: %w", err)
	}
	return f, nil
}

func (l *logFiles) close() error {
	return errors.Join(l.out.Close(), l.err.Close())
}
