package httpapi

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/httpx"
)

const (
	// keepAlive is the silence after which a stream shows that it lives.
	keepAlive = time.Second
	// firstFlush is how long the opening comment waits for frames to share a
	// write with. Most turns have their first frame within it.
	firstFlush = 20 * time.Millisecond
)

// resumption is a stream to continue.
type resumption struct {
	after     uint64
	requestID string
	key       string
	route     string // the key belongs to
}

// resumptionOf returns the stream that a chat request continues, nil when it
// begins a turn (reference runtime.md 5.2).
func resumptionOf(c echo.Context, in *chatBody, key, route string) (*resumption, error) {
	after, given, err := lastEventID(c)
	switch {
	case err != nil || !given:
		return nil, err
	case in.RequestID == "" && key == "":
		return nil, fault.New(fault.Invalid, "",
			"Last-Event-ID continues a stream: name it by request_id or the idempotency key of its request")
	default:
		return &resumption{after: after, requestID: in.RequestID, key: key, route: route}, nil
	}
}

func lastEventID(c echo.Context) (id uint64, given bool, err error) {
	text := strings.TrimSpace(first(c.Request().Header["Last-Event-Id"]))
	if text == "" {
		return 0, false, nil
	}
	if id, err = strconv.ParseUint(text, 10, 63); err != nil {
		return 0, false, fault.New(fault.Invalid, "", "Last-Event-ID must be the decimal id of a received frame")
	}
	return id, true, nil
}

// resumeChat continues a stream after the frame that the client saw last.
func (a *api) resumeChat(c echo.Context, who caller, r *resumption) error {
	ctx := c.Request().Context()
	var h *turn.Handle
	var err error
	if r.requestID != "" {
		h, err = a.cfg.Turns.Find(ctx, who.user, r.requestID, who.admin)
	} else {
		h, err = a.cfg.Turns.FindKey(ctx, turn.Request{
			Route: r.route, UserID: who.user, Stream: true, IdempotencyKey: r.key,
		})
	}
	if err == nil {
		err = a.checkStreams(ctx, h.ID)
	}
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return fault.Wrap(fault.NotFound, "REQUEST_NOT_FOUND", "There is no stream to continue", err)
		}
		return err
	}
	httpx.SetRequestID(c, h.ID)
	return a.streamChat(c, h, h.ID, r.after)
}

// checkStreams fails with NotFound for a request that has no stream.
func (a *api) checkStreams(ctx context.Context, id string) error {
	r, err := a.cfg.Requests.Get(ctx, id)
	if err == nil && r.Mode != request.ModeStream {
		err = fault.New(fault.NotFound, "", "the request has no stream")
	}
	return err
}

// streamChat sends the frames of a turn after an id in the form of the chat
// route: token frames wrapped, done always last.
func (a *api) streamChat(c echo.Context, t follower, id string, after uint64) error {
	ctx, cancel := context.WithCancel(c.Request().Context())
	defer cancel()
	done := false
	s := openStream(c, cancel, func(sse *httpx.SSE, f *turn.Frame) error {
		done = f.Event == "done"
		if f.Event == "" {
			return sse.FrameNoFlush("", frameID(f), tokenOpen, f.Data, tokenClose)
		}
		return sse.FrameNoFlush(f.Event, frameID(f), f.Data)
	})
	defer s.close()
	err := t.Frames(ctx, after, s.emit)
	// A client that left is told nothing. Neither is one whose turn goes on in
	// the next process: done would say that there is nothing to come back for.
	if ctx.Err() != nil || done || (err == nil && t.Stopped()) {
		return nil
	}
	s.finish(func(sse *httpx.SSE) error {
		if err != nil {
			a.cfg.Log.Error().Err(err).Str("request_id", id).Msg("follow turn")
			if err := sse.FrameNoFlush("error", "", a.errorFrame(err)); err != nil {
				return err
			}
		}
		return sse.FrameNoFlush("done", "", doneFrame)
	})
	return nil
}

// Parts of frames that are the same each time.
var (
	tokenOpen  = []byte(`{"token":`)
	tokenClose = []byte(`}`)
	doneFrame  = []byte(`{"finished":true}`)
)

func frameID(f *turn.Frame) string {
	if f.ID == 0 {
		return ""
	}
	return strconv.FormatUint(f.ID, 10)
}

// errorFrame is the data of an error event for a fault of the following
// itself; those of the turn come as frames of its own.
func (a *api) errorFrame(err error) []byte {
	const most = 200
	f := fault.From(err)
	code, class := errorWords(f.Kind)
	if f.Name != "" {
		code = f.Name
	}
	text := strings.Join(strings.Fields(a.cfg.Redact(f.Message)), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most])
	}
	data, err := json.Marshal(struct {
		Error string `json:"error"`
		Type  string `json:"type"`
		Code  string `json:"code"`
	}{text, class, code})
	if err != nil {
		return []byte(`{"error":"internal error","type":"error.internal","code":"INTERNAL_ERROR"}`)
	}
	return data
}

// stream sends frames to one client and fills silence with comments. Frames
// come from the goroutine of the request, comments from a timer's; the lock
// keeps them apart and keeps the timer away from a finished response.
type stream struct {
	write  func(*httpx.SSE, *turn.Frame) error
	cancel context.CancelFunc

	mu     sync.Mutex
	sse    *httpx.SSE
	timer  *time.Timer
	closed bool
}

// openStream begins a response of events. cancel ends the subscription when
// the client cannot be written to.
func openStream(c echo.Context, cancel context.CancelFunc, write func(*httpx.SSE, *turn.Frame) error) *stream {
	s := &stream{write: write, cancel: cancel, sse: httpx.OpenSSE(c)}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.sse.CommentNoFlush("keepalive") // into the empty buffer: cannot fail
	s.timer = time.AfterFunc(firstFlush, s.tick)
	return s
}

// emit sends a batch of frames with one write.
func (s *stream) emit(frames []turn.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range frames {
		if err := s.write(s.sse, &frames[i]); err != nil {
			return err
		}
	}
	s.timer.Reset(keepAlive)
	return s.sse.Flush()
}

// finish sends what write appends as the last batch. When that fails the client
// has left, and there is nobody to tell.
func (s *stream) finish(write func(*httpx.SSE) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if write(s.sse) == nil {
		_ = s.sse.Flush()
	}
}

// tick runs after a silence.
func (s *stream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if !s.sse.Pending() { // else the opening comment still waits
		_ = s.sse.CommentNoFlush("keepalive") // what fails here fails again in Flush
	}
	if err := s.sse.Flush(); err != nil {
		s.cancel()
		return
	}
	s.timer.Reset(keepAlive)
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.timer.Stop()
}
