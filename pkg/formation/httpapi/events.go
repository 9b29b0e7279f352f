package httpapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/httpx"
)

// maxSubscription ends a subscription that its client forgot; it may come back
// with Last-Event-ID.
const maxSubscription = 10 * time.Minute

// streamMark opens and closes the stream of a request.
type streamMark struct {
	Type      string `json:"type"`
	SessionID string `json:"session_id"`
	RequestID string `json:"request_id"`
}

// followRequest streams one turn as GET /v1/events/{session}/{request}: the
// raw objects without the token wrapper, between two marks (reference
// runtime.md 5.2).
func (a *api) followRequest(c echo.Context, who caller) error {
	after, _, err := lastEventID(c)
	if err != nil {
		return err
	}
	mark := streamMark{SessionID: httpx.Param(c, "session"), RequestID: httpx.Param(c, "request")}
	ctx := c.Request().Context()
	h, err := a.cfg.Turns.Find(ctx, who.user, mark.RequestID, who.admin)
	if err == nil {
		err = a.checkStreams(ctx, mark.RequestID)
	}
	switch {
	case err != nil && fault.KindOf(err) != fault.NotFound && fault.KindOf(err) != fault.Forbidden:
		return err
	case err != nil || h.SessionID != mark.SessionID:
		return refuseStream(c)
	}
	httpx.SetRequestID(c, mark.RequestID)
	return a.streamRequest(c, h, after, mark)
}

func (a *api) streamRequest(c echo.Context, t follower, after uint64, mark streamMark) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxSubscription)
	defer cancel()
	last := ""
	s := openStream(c, cancel, func(sse *httpx.SSE, f *turn.Frame) error {
		if f.Event == "done" {
			last = frameID(f)
			return nil
		}
		return sse.FrameNoFlush(f.Event, frameID(f), f.Data)
	})
	defer s.close()
	if err := s.mark(mark, "stream_open", ""); err != nil {
		return nil // the client left
	}
	err := t.Frames(ctx, after, s.emit)
	switch {
	case ctx.Err() != nil || (err == nil && t.Stopped()):
	case err != nil:
		a.cfg.Log.Error().Err(err).Str("request_id", mark.RequestID).Msg("follow turn")
		s.finish(func(sse *httpx.SSE) error { return sse.FrameNoFlush("error", "", a.errorFrame(err)) })
	default:
		_ = s.mark(mark, "stream_completed", last) // a client that left misses nothing
	}
	return nil
}

// mark sends an opening or closing frame.
func (s *stream) mark(m streamMark, typ, id string) error {
	m.Type = typ
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sse.Frame("", id, data)
}

// refuseStream answers for a request that is unknown or another user's: the
// caller does not learn which.
func refuseStream(c echo.Context) error {
	// A failed write means that the client left.
	_ = httpx.OpenSSE(c).Frame("", "", []byte(`{"error":"Unauthorized or request not streaming"}`))
	return nil
}
