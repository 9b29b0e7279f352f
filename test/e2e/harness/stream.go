package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// Frame is one frame of an event stream.
type Frame struct {
	Event   string
	ID      int // 0 when it has none
	Data    string
	Comment bool
}

// Get returns a value of the frame's data by its path.
func (f Frame) Get(path string) any { return Reply{Body: []byte(f.Data)}.Get(path) }

// Text returns a string of the frame's data, "" when there is none.
func (f Frame) Text(path string) string { return Reply{Body: []byte(f.Data)}.Text(path) }

// Whole returns the frame's data decoded.
func (f Frame) Whole() any {
	var v any
	if json.Unmarshal([]byte(f.Data), &v) != nil {
		return nil
	}
	return v
}

// Stream reads the frames of a reply. It knows only what the reference allows:
// any other line is an error.
type Stream struct {
	Response *http.Response
	r        *bufio.Reader
}

// Stream opens an event stream; the reply must be one.
func (c *Client) Stream(ctx context.Context, r Request) (*Stream, error) {
	res, err := c.Open(ctx, r)
	if err != nil {
		return nil, err
	}
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || kind != "text/event-stream" {
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		return nil, &StatusError{Status: res.StatusCode, Type: kind, Body: string(body)}
	}
	return &Stream{Response: res, r: bufio.NewReader(res.Body)}, nil
}

// StatusError is an answer where a stream was expected.
type StatusError struct {
	Status     int
	Type, Body string
}

// Error tells the whole answer.
func (e *StatusError) Error() string {
	return fmt.Sprintf("status %d, content type %q: %s", e.Status, e.Type, e.Body)
}

// MustStream is Stream where anything else is a failure of the test. The
// stream is closed with the test.
func (c *Client) MustStream(r Request) *Stream {
	c.tb.Helper()
	s, err := c.Stream(Context(c.tb), r)
	if err != nil {
		c.tb.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	c.tb.Cleanup(s.Close)
	return s
}

// Close leaves the stream.
func (s *Stream) Close() { s.Response.Body.Close() }

// Next returns the next frame. io.EOF is the end between two frames.
func (s *Stream) Next() (Frame, error) {
	var f Frame
	var seen string // of the fields, in order
	for {
		line, err := s.r.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" && seen == "" {
			return Frame{}, io.EOF
		}
		if err != nil {
			return Frame{}, fmt.Errorf("in the middle of a frame (%q): %w", line, err)
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return f, check(seen)
		}
		switch name, value, _ := strings.Cut(line, ": "); name {
		case "id":
			f.ID, err = strconv.Atoi(value)
			seen += "i"
		case "event":
			f.Event = value
			seen += "e"
		case "data":
			f.Data = value
			seen += "d"
		case "":
			f.Comment, f.Data = true, value
			seen += ":"
		default:
			return Frame{}, fmt.Errorf("a line that no frame has: %q", line)
		}
		if err != nil {
			return Frame{}, fmt.Errorf("line %q: %w", line, err)
		}
	}
}

// check refuses a frame that is neither a comment nor one line of data with at
// most one id and one event.
func check(seen string) error {
	switch seen {
	case ":", "d", "id", "ed", "eid", "ied":
		return nil
	}
	return fmt.Errorf("a frame with the fields %q", seen)
}

// Frame returns the next frame that is no comment.
func (s *Stream) Frame(tb testing.TB) Frame {
	tb.Helper()
	for {
		f, err := s.Next()
		if err != nil {
			tb.Fatalf("read a frame: %v", err)
		}
		if !f.Comment {
			return f
		}
	}
}

// UntilType reads up to and with the first frame of a token type.
func (s *Stream) UntilType(tb testing.TB, kind string) []Frame {
	tb.Helper()
	var frames []Frame
	for {
		f := s.Frame(tb)
		frames = append(frames, f)
		if f.Text("token.type") == kind {
			return frames
		}
		if f.Event == "done" {
			tb.Fatalf("no %s frame among %v", kind, frames)
		}
	}
}

// Rest reads the frames to the end, comments left out.
func (s *Stream) Rest() ([]Frame, error) {
	var frames []Frame
	for {
		switch f, err := s.Next(); {
		case errors.Is(err, io.EOF):
			return frames, nil
		case err != nil:
			return frames, err
		case !f.Comment:
			frames = append(frames, f)
		}
	}
}

// MustRest is Rest where a broken stream is a failure of the test.
func (s *Stream) MustRest(tb testing.TB) []Frame {
	tb.Helper()
	frames, err := s.Rest()
	if err != nil {
		tb.Fatalf("after %d frames: %v", len(frames), err)
	}
	return frames
}

// Deltas joins the content of the content frames of a chat stream.
func Deltas(frames []Frame) string {
	var b strings.Builder
	for _, f := range frames {
		if f.Text("token.type") == "content" {
			b.WriteString(f.Text("token.content"))
		}
	}
	return b.String()
}
