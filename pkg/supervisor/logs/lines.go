package logs

import (
	"bytes"
	"strings"
)

// tally counts the lines of a stream as cutter would cut them.
type tally struct {
	lines int // ended
	open  int // bytes of the line that has not ended, or of its last piece
}

func (t *tally) count(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			t.grow(len(p))
			return
		}
		t.grow(i)
		t.lines, t.open = t.lines+1, 0
		p = p[i+1:]
	}
}

// grow adds n bytes to the open line; each MaxLine of them that more bytes
// follow are a piece.
func (t *tally) grow(n int) {
	t.open += n
	if t.open > MaxLine {
		pieces := (t.open - 1) / MaxLine
		t.lines += pieces
		t.open -= pieces * MaxLine
	}
}

// all counts the line that has not ended, too.
func (t *tally) all() int {
	if t.open > 0 {
		return t.lines + 1
	}
	return t.lines
}

// cutter cuts a stream of bytes into lines of at most MaxLine bytes. The line
// given to the callback is valid during the call.
type cutter struct{ part []byte }

func (c *cutter) feed(p []byte, line func([]byte)) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		end := i
		if i < 0 {
			end = len(p)
		}
		if room := MaxLine - len(c.part); end > room {
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
func (c *cutter) rest(line func([]byte)) {
	if len(c.part) > 0 {
		c.emit(line)
	}
}

func (c *cutter) emit(line func([]byte)) {
	line(c.part)
	c.part = c.part[:0]
}

// clean makes a line printable as text.
func clean(line []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD")
}
