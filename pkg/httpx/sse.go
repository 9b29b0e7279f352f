package httpx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// maxLeftover is how many bytes of an unread body a stream takes off its
// connection; with more left the connection ends with the stream.
const maxLeftover = 256 << 10

// SSE writes Server-Sent Events to one client. It is used by one goroutine at
// a time. After the first error every method returns that error.
type SSE struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf []byte
	err error
}

// StartSSE sends status 200 and the headers of an event stream at once. The
// first bytes of the body are the caller's.
func StartSSE(c echo.Context) (*SSE, error) {
	s := OpenSSE(c)
	setWriteDeadline(s.rc)
	if err := s.flushWriter(); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenSSE is StartSSE whose headers leave together with the first batch, for
// a caller that has something to say immediately.
func OpenSSE(c echo.Context) *SSE {
	res := c.Response()
	h := res.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	if h.Get("Connection") == "" {
		h.Set("Connection", "keep-alive")
	}
	s := &SSE{w: res, rc: http.NewResponseController(res.Writer), buf: make([]byte, 0, 2048)}
	if c.Request().ContentLength != 0 {
		// The reply cannot begin before the body is off the connection, and the
		// deadline for that must not last as long as the stream.
		boundLeftover(c, s.rc)
		if _, err := io.CopyN(io.Discard, c.Request().Body, maxLeftover); !errors.Is(err, io.EOF) {
			h.Set("Connection", "close") // net/http gives up waiting, too
		}
		_ = s.rc.SetReadDeadline(time.Time{})
	}
	res.WriteHeader(http.StatusOK)
	return s
}

// Frame sends one event and flushes it. An empty event is an unnamed frame, an
// empty id leaves the id line out.
func (s *SSE) Frame(event, id string, data []byte) error {
	if err := s.FrameNoFlush(event, id, data); err != nil {
		return err
	}
	return s.Flush()
}

// FrameNoFlush appends one event to the batch that the next Flush sends. The
// parts of data are joined. Line breaks in data start a new data line, as the
// format asks; in event and id they would forge frames and are dropped.
func (s *SSE) FrameNoFlush(event, id string, data ...[]byte) error {
	if s.err != nil {
		return s.err
	}
	if id != "" {
		s.buf = append(s.buf, "id: "...)
		s.buf = appendOneLine(s.buf, id)
		s.buf = append(s.buf, '\n')
	}
	if event != "" {
		s.buf = append(s.buf, "event: "...)
		s.buf = appendOneLine(s.buf, event)
		s.buf = append(s.buf, '\n')
	}
	s.buf = append(s.buf, "data: "...)
	for _, part := range data {
		s.buf = appendLines(s.buf, part)
	}
	s.buf = append(s.buf, '\n', '\n')
	return nil
}

// Comment sends a comment, which clients ignore: a sign of life.
func (s *SSE) Comment(text string) error {
	if err := s.CommentNoFlush(text); err != nil {
		return err
	}
	return s.Flush()
}

// CommentNoFlush appends a comment to the batch that the next Flush sends.
func (s *SSE) CommentNoFlush(text string) error {
	if s.err != nil {
		return s.err
	}
	s.buf = append(s.buf, ": "...)
	s.buf = appendOneLine(s.buf, text)
	s.buf = append(s.buf, '\n', '\n')
	return nil
}

// Pending tells whether a batch waits for Flush.
func (s *SSE) Pending() bool { return len(s.buf) > 0 }

// Flush sends the batch with one write. It fails when the client left or does
// not take the bytes within 20 s.
func (s *SSE) Flush() error {
	if s.err != nil || len(s.buf) == 0 {
		return s.err
	}
	setWriteDeadline(s.rc)
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	if cap(s.buf) > keptBuffer {
		s.buf = make([]byte, 0, 2048)
	}
	if err != nil {
		s.err = fmt.Errorf("write events: %w", err)
		return s.err
	}
	return s.flushWriter()
}

func (s *SSE) flushWriter() error {
	if err := s.rc.Flush(); err != nil {
		s.err = fmt.Errorf("flush events: %w", err)
	}
	return s.err
}

// appendLines appends data and begins a new data line at each of its breaks.
func appendLines(dst, data []byte) []byte {
	for {
		i := bytes.IndexAny(data, "\r\n")
		if i < 0 {
			return append(dst, data...)
		}
		dst = append(dst, data[:i]...)
		dst = append(dst, "\ndata: "...)
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

func appendOneLine(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c != '\r' && c != '\n' && c != 0 {
			dst = append(dst, c)
		}
	}
	return dst
}
