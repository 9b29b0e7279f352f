package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// followEvery is how often a followed log is looked at.
	followEvery = 250 * time.Millisecond
	// markSize is how many bytes before the position are remembered, to notice
	// that the file was emptied and has grown past it since.
	markSize = 64
)

// Source is a log to follow.
type Source struct {
	Name string // given to the sink with each line
	Path string
}

// Follow hands every line that is written from now on to sink, until ctx ends
// or sink returns an error.
func Follow(ctx context.Context, sources []Source, sink func(name, line string) error) error {
	f, err := NewFollower(sources)
	if err != nil {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := f.Poll(sink); err != nil {
			return err
		}
	}
}

// Follower is a position in each of several logs. It is used by one goroutine.
type Follower struct{ at []*position }

// NewFollower returns a Follower at the present ends of the logs.
func NewFollower(sources []Source) (*Follower, error) {
	f := &Follower{}
	for _, src := range sources {
		p := &position{src: src}
		if err := p.toEnd(); err != nil {
			return nil, err
		}
		f.at = append(f.at, p)
	}
	return f, nil
}

// Poll hands every line that has come since to sink; a line that has not ended
// waits for its end. It returns the first error of sink, or of reading.
func (f *Follower) Poll(sink func(name, line string) error) error {
	for _, p := range f.at {
		if err := p.poll(sink); err != nil {
			return err
		}
	}
	return nil
}

// position is a place in one log: so many bytes after the end of a rotated part.
type position struct {
	src    Source
	inode  uint64   // of the file that was appended to at the last look
	after  identity // the rotated part before the position; zero when none was there
	offset int64    // behind it
	mark   []byte   // the last bytes before the position
	cut    cutter
}

// toEnd moves to the end of the log.
func (p *position) toEnd() error {
	s, err := open(p.src.Path)
	if err != nil || s == nil {
		return err
	}
	defer s.close()
	current := s.parts[len(s.parts)-1]
	p.inode, p.after, p.offset = current.id.inode, s.youngest(), current.size
	p.mark = make([]byte, min(markSize, current.size))
	if _, err := current.file.ReadAt(p.mark, current.size-int64(len(p.mark))); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read log: %w", err)
	}
	return nil
}

func (p *position) poll(sink func(name, line string) error) error {
	buf := make([]byte, 4*block)
	for {
		n, err := p.next(buf)
		if err != nil || n == 0 {
			return err
		}
		var failed error
		p.cut.feed(buf[:n], func(line []byte) {
			if failed == nil {
				failed = sink(p.src.Name, clean(line))
			}
		})
		if failed != nil {
			return failed
		}
	}
}

// next reads what follows the position, 0 bytes when nothing does. The log is
// held during the read only: a slow sink must not keep it from being rotated.
func (p *position) next(buf []byte) (int, error) {
	s, err := open(p.src.Path)
	if err != nil {
		return 0, err
	}
	if s == nil {
		*p = position{src: p.src}
		return 0, nil
	}
	defer s.close()
	current := len(s.parts) - 1
	if inode := s.parts[current].id.inode; p.inode != inode { // made since, or made anew by somebody else
		*p = position{src: p.src, inode: inode, after: s.youngest()}
	}
	i, known := p.find(s)
	if part := s.parts[i]; !known && (p.offset > part.size || !p.fits(part)) {
		p.begin() // too slow: what came between is gone
	}
	for ; ; i++ {
		part := s.parts[i]
		if p.offset > part.size && i < current {
			// The rotation has left a rest of what was read in the next part.
			p.after, p.offset = part.id, p.offset-part.size
			continue
		}
		if p.offset > part.size || !p.fits(part) {
			p.begin() // somebody emptied it
		}
		n, err := part.file.ReadAt(buf[:min(int64(len(buf)), part.size-p.offset)], p.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("read log: %w", err)
		}
		if n > 0 || i == current {
			p.advance(buf[:n])
			return n, nil
		}
		p.after, p.offset = part.id, 0
	}
}

// find returns the part that the position lies in. When the part before it is
// not there any more, so many rotations have happened that the position lies in
// the oldest, or that its part is gone too: then known is false.
func (p *position) find(s *stream) (i int, known bool) {
	if p.after == (identity{}) {
		return 0, true
	}
	for i := len(s.parts) - 2; i >= 0; i-- {
		if s.parts[i].id == p.after {
			return i + 1, true
		}
	}
	return 0, false
}

// fits tells whether the part still has before the position what was read there.
func (p *position) fits(part part) bool {
	n := min(int64(len(p.mark)), p.offset)
	got := make([]byte, n)
	if _, err := part.file.ReadAt(got, p.offset-n); err != nil && !errors.Is(err, io.EOF) {
		return true // the read that follows will tell
	}
	return bytes.HasSuffix(p.mark, got)
}

// begin moves to the beginning of the part.
func (p *position) begin() { p.offset, p.mark, p.cut = 0, nil, cutter{} }

func (p *position) advance(read []byte) {
	p.offset += int64(len(read))
	p.mark = append(p.mark, read...)
	if extra := len(p.mark) - markSize; extra > 0 {
		p.mark = append([]byte(nil), p.mark[extra:]...)
	}
}
