package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// The bounds of reading a log.
const (
	maxLogLines  = 10000
	maxLogLine   = 64 << 10 // bytes; a longer line is cut into pieces
	followEvery  = 250 * time.Millisecond
	logReadBlock = 64 << 10
)

// Stream names one log of a formation.
type Stream string

// The streams: the child's log records and what it wrote to descriptor 2.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// LogTail is the end of one log.
type LogTail struct {
	Lines []string // oldest first
	Total int      // lines in the file
}

func (s *Service) logPath(id string, stream Stream) string {
	if stream == Stderr {
		return s.cfg.Dirs.errLog(id)
	}
	return s.cfg.Dirs.outLog(id)
}

// TailLog returns the last n lines (1 to 10000) of a log; a log that was never
// written has none. The error is 404 for an unknown formation.
func (s *Service) TailLog(ctx context.Context, id string, stream Stream, n int) (LogTail, error) {
	if _, err := s.member(id); err != nil {
		return LogTail{}, err
	}
	f, err := os.Open(s.logPath(id, stream))
	if errors.Is(err, os.ErrNotExist) {
		return LogTail{}, nil
	}
	if err != nil {
		return LogTail{}, fmt.Errorf("open log: %w", err)
	}
	defer f.Close()
	r := &ring{lines: make([]string, 0, 128), max: max(1, min(n, maxLogLines))}
	var c lineCutter
	buf := make([]byte, logReadBlock)
	for {
		if err := ctx.Err(); err != nil {
			return LogTail{}, fmt.Errorf("read log: %w", err)
		}
		got, err := f.Read(buf)
		c.feed(buf[:got], r.add)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return LogTail{}, fmt.Errorf("read log: %w", err)
		}
	}
	c.rest(r.add)
	return LogTail{Lines: r.ordered(), Total: r.total}, nil
}

// FollowLog hands every line that is written from now on to sink, until ctx
// ends or sink returns an error. A log that is truncated is read from its
// start again.
func (s *Service) FollowLog(ctx context.Context, id string, streams []Stream, sink func(Stream, string) error) error {
	if _, err := s.member(id); err != nil {
		return err
	}
	followers := make([]*follower, len(streams))
	for i, stream := range streams {
		followers[i] = &follower{path: s.logPath(id, stream), stream: stream}
		if info, err := os.Stat(followers[i].path); err == nil {
			followers[i].offset = info.Size()
		}
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for _, f := range followers {
			if err := f.poll(sink); err != nil {
				return err
			}
		}
		if _, err := s.member(id); err != nil {
			return nil // deleted: nothing more will come
		}
	}
}

// follower reads what was appended to one file.
type follower struct {
	path   string
	stream Stream
	offset int64
	cut    lineCutter
}

func (f *follower) poll(sink func(Stream, string) error) error {
	file, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) {
		f.offset = 0
		return nil
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	if info.Size() < f.offset {
		f.offset, f.cut = 0, lineCutter{}
	}
	var sinkErr error
	buf := make([]byte, logReadBlock)
	for sinkErr == nil {
		n, err := file.ReadAt(buf, f.offset)
		f.offset += int64(n)
		f.cut.feed(buf[:n], func(line string) {
			if sinkErr == nil {
				sinkErr = sink(f.stream, line)
			}
		})
		if n < len(buf) {
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read log: %w", err)
			}
			break
		}
	}
	return sinkErr
}

// lineCutter cuts a stream of bytes into lines of bounded length.
type lineCutter struct{ part []byte }

func (c *lineCutter) feed(p []byte, line func(string)) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		end := i
		if i < 0 {
			end = len(p)
		}
		if room := maxLogLine - len(c.part); end > room {
			c.part = append(c.part, p[:room]...)
			p = p[room:]
			c.emit(line)
			continue
		}
		c.part = append(c.part, p[:end]...)
		if i < 0 {
			return
		}
		c.emit(line)
		p = p[i+1:]
	}
}

// rest emits a last line without an end.
func (c *lineCutter) rest(line func(string)) {
	if len(c.part) > 0 {
		c.emit(line)
	}
}

func (c *lineCutter) emit(line func(string)) {
	line(strings.ToValidUTF8(strings.TrimSuffix(string(c.part), "\r"), "\uFFFD"))
	c.part = c.part[:0]
}

// ring keeps the last max lines.
type ring struct {
	lines []string
	next  int
	max   int
	total int
}

func (r *ring) add(line string) {
	r.total++
	if len(r.lines) < r.max {
		r.lines = append(r.lines, line)
		return
	}
	r.lines[r.next] = line
	r.next = (r.next + 1) % r.max
}

func (r *ring) ordered() []string {
	return append(append([]string(nil), r.lines[r.next:]...), r.lines[:r.next]...)
}
