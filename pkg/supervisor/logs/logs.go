// Package logs reads, follows and rotates log files that other processes
// append to.
//
// It promises that a log is one stream of lines over the file and its rotated
// parts (<file>.1 is the youngest): Tail and Follow neither lose nor double a
// line at a rotation, and Follow begins anew when somebody else empties the
// file. Rotation never asks the writers for anything. They keep their
// descriptors, which must be opened with O_APPEND. Where the file system can
// take a range out of a file (ext4, XFS), nothing is lost. Elsewhere the file is
// copied and truncated, and what a writer appends between the last look at the
// size and the truncation, some microseconds, is lost. Readers and the rotation
// keep apart by flock on the file, so they may be of several processes.
//
// deploy reads the formations' logs by it, httpapi the audit log;
// pkg/supervisor runs the Rotator.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// The bounds of reading.
const (
	MaxLines = 10000    // of one Tail
	MaxLine  = 64 << 10 // bytes; a longer line is cut into pieces
	block    = 64 << 10 // bytes, of one read
)

// Text is the end of a log.
type Text struct {
	Lines []string // oldest first
	Total int      // lines in the file and its rotated parts
}

// Tail returns the last n lines (1 to MaxLines) of the log at path, from its
// rotated parts too; a log that was never written has none. What is no UTF-8 is
// replaced.
func Tail(ctx context.Context, path string, n int) (Text, error) {
	s, err := open(path)
	if err != nil || s == nil {
		return Text{}, err
	}
	defer s.close()
	n = max(1, min(n, MaxLines))
	var t tally
	starts := make([]tally, len(s.parts))
	for i, p := range s.parts {
		starts[i] = t
		if err := scan(ctx, p, t.count); err != nil {
			return Text{}, err
		}
	}
	text := Text{Total: t.all()}
	skip := max(0, text.Total-n)
	first := 0
	for i := range starts {
		if starts[i].lines < skip {
			first = i
		}
	}
	c := cutter{part: make([]byte, starts[first].open, MaxLine)}
	skip -= starts[first].lines
	keep := func(line []byte) {
		if skip--; skip < 0 {
			text.Lines = append(text.Lines, clean(line))
		}
	}
	for _, p := range s.parts[first:] {
		if err := scan(ctx, p, func(b []byte) { c.feed(b, keep) }); err != nil {
			return Text{}, err
		}
	}
	c.rest(keep)
	return text, nil
}

// scan hands the bytes of a part to use, as many as there were when it was
// opened.
func scan(ctx context.Context, p part, use func([]byte)) error {
	r := io.NewSectionReader(p.file, 0, p.size)
	buf := make([]byte, block)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		n, err := r.Read(buf)
		use(buf[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
}

// Remove deletes a log with its rotated parts. A log that is not there is no
// error.
func Remove(path string) error {
	var errs []error
	for _, name := range []string{path, path + rotating} {
		errs = append(errs, ignoreMissing(os.Remove(name)))
	}
	return errors.Join(append(errs, removeFrom(path, 1))...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
