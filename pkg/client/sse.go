package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line of a stream that is read, and the most data one
// event may have, in bytes.
const MaxLine = 10 << 20

// ErrLineTooLong is a line or an event of a stream over MaxLine.
var ErrLineTooLong = fmt.Errorf("a line or event of the stream is over the limit of %d bytes", MaxLine)

// Event is one event of a stream.
type Event struct {
	// ID is the last id that was sent up to and including this event.
	ID string
	// Name is "" for an unnamed event.
	Name string
	// Data is the event's data lines joined by newlines, nil when it has none.
	Data []byte
}

// EventReader reads server-sent events: lines end with LF, CRLF or CR,
// comments are skipped, data lines are joined. Unlike a browser it returns a
// named event without data, because "event: done" alone ends a stream too.
type EventReader struct {
	r       *bufio.Reader
	line    []byte
	id      string
	skipLF  bool // the last line ended with CR; a LF right after it belongs to it
	started bool
}

// NewEventReader returns a reader of the stream r.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{r: bufio.NewReaderSize(r, 32<<10)}
}

// Next returns the next event. At the end of the stream it is io.EOF, or
// io.ErrUnexpectedEOF when an event was cut off; both end the reading, as does
// every other error. The data is the caller's to keep.
func (e *EventReader) Next() (Event, error) {
	var ev Event
	begun := false
	for {
		line, err := e.readLine()
		if errors.Is(err, io.EOF) && (begun || len(line) > 0) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return Event{}, err
		}
		if len(line) > 0 {
			if err := e.field(&ev, line); err != nil {
				return Event{}, err
			}
			begun = begun || line[0] != ':'
			continue
		}
		if ev.Name != "" || ev.Data != nil {
			ev.ID = e.id
			return ev, nil
		}
		begun = false
	}
}

// field takes one line of an event.
func (e *EventReader) field(ev *Event, line []byte) error {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		ev.Name = string(value)
	case "id":
		if !bytes.ContainsRune(value, 0) {
			e.id = string(value)
		}
	case "data":
		if len(ev.Data)+len(value) > MaxLine {
			return ErrLineTooLong
		}
		if ev.Data == nil {
			ev.Data = append(make([]byte, 0, len(value)), value...)
			break
		}
		ev.Data = append(append(ev.Data, '\n'), value...)
	}
	return nil // a comment has an empty name; retry and unknown fields mean nothing here
}

// readLine returns the next line without its end. The slice is valid until the
// next call. With io.EOF it is what was left.
func (e *EventReader) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		if _, err := e.r.Peek(1); err != nil {
			return e.line, err
		}
		chunk, err := e.r.Peek(e.r.Buffered())
		if err != nil {
			return e.line, err
		}
		if e.drop(chunk) {
			continue
		}
		end := bytes.IndexAny(chunk, "\r\n")
		if end < 0 {
			end = len(chunk)
		}
		if len(e.line)+end > MaxLine {
			return nil, ErrLineTooLong
		}
		e.line = append(e.line, chunk[:end]...)
		if end == len(chunk) {
			e.discard(end)
			continue
		}
		e.skipLF = chunk[end] == '\r'
		e.discard(end + 1)
		return e.line, nil
	}
}

// drop skips the LF of a CRLF and a byte order mark at the very start. It says
// whether it did.
func (e *EventReader) drop(chunk []byte) bool {
	first := !e.started
	e.started = true
	if e.skipLF {
		e.skipLF = false
		if chunk[0] == '\n' {
			e.discard(1)
			return true
		}
	}
	const mark = "\xef\xbb\xbf"
	if !first || chunk[0] != mark[0] {
		return false
	}
	if three, _ := e.r.Peek(len(mark)); string(three) == mark {
		e.discard(len(mark))
		return true
	}
	return false
}

// discard consumes n bytes that were peeked, which cannot fail.
func (e *EventReader) discard(n int) { _, _ = e.r.Discard(n) }
