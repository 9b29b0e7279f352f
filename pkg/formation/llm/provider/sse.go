package provider

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Limits of a reply, far beyond what a model writes in one answer.
const (
	maxReply = 64 << 20 // bytes of a whole reply
	maxEvent = 8 << 20  // bytes of one event of a stream
)

var (
	errReplyTooLong = errors.New("the reply is longer than 64 MiB")
	errEventTooLong = errors.New("an event of the stream is longer than 8 MiB")
)

// eventReader reads the data of server-sent events. Comments, names, ids and
// retry hints mean nothing in this protocol and are passed over.
type eventReader struct {
	in    *bufio.Reader
	data  []byte
	total int
}

// next returns the data of the next event, valid until the following call, or
// io.EOF. An event that the end of the stream cuts off is returned too: some
// servers leave out the last blank line, and half an event is no valid JSON.
func (r *eventReader) next() ([]byte, error) {
	r.data = r.data[:0]
	seen := false
	for {
		line, err := r.line()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		switch {
		case bytes.HasPrefix(line, []byte("data:")):
			if seen {
				r.data = append(r.data, '\n')
			}
			r.data, seen = append(r.data, trimSpace(line[len("data:"):])...), true
		case len(line) == 0 && seen, err != nil && seen:
			return r.data, nil
		}
		if err != nil {
			if seen {
				return r.data, nil
			}
			return nil, err
		}
		if len(r.data) > maxEvent {
			return nil, errEventTooLong
		}
	}
}

// line returns the next line without its end. It is valid until the next read.
func (r *eventReader) line() ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = r.longLine(bytes.Clone(line))
	}
	if r.total += len(line); r.total > maxReply {
		return nil, errReplyTooLong
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), err
}

func (r *eventReader) longLine(line []byte) ([]byte, error) {
	for {
		part, err := r.in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxEvent {
			return nil, errEventTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// trimSpace drops the one space that may follow the colon.
func trimSpace(b []byte) []byte { return bytes.TrimPrefix(b, []byte(" ")) }
