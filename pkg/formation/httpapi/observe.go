package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/httpx"
)

// maxBatch is how many events that wait are sent with one write.
const maxBatch = 64

// observation is what one observer gets.
type observation struct {
	match func(*telemetry.Event) bool
	// event is the name of the frames, "" for none; fault that of faults.
	event, fault string
	frame        func(*telemetry.Event) any
}

// streamFault tells an observer what it did not get.
type streamFault struct {
	Error   bool   `json:"error"`
	Message string `json:"message"`
}

// observe streams events until the client leaves, the process hands over or the
// subscription has lasted its time. A client that reads too slowly loses events
// and is told how many; it holds nobody.
func (a *api) observe(c echo.Context, o *observation) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxSubscription)
	defer cancel()
	sub := a.cfg.Telemetry.Subscribe(0, o.match)
	defer sub.Close()
	s := openStream(c, cancel, nil)
	defer s.close()
	if a.cfg.Draining() {
		return nil // the next connection reaches the process that takes over
	}
	for {
		select {
		case e := <-sub.Events():
			if err := s.send(func(sse *httpx.SSE) error { return o.batch(sse, sub, e) }); err != nil {
				return nil // the client left
			}
		case <-sub.Done():
			for len(sub.Events()) > 0 {
				if err := s.send(func(sse *httpx.SSE) error { return o.batch(sse, sub, <-sub.Events()) }); err != nil {
					return nil
				}
			}
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// batch appends an event and those that wait behind it.
func (o *observation) batch(sse *httpx.SSE, sub *telemetry.Subscription, e *telemetry.Event) error {
	for range maxBatch {
		if err := o.write(sse, o.event, o.frame(e)); err != nil {
			return err
		}
		select {
		case e = <-sub.Events():
			continue
		default:
		}
		break
	}
	if n := sub.Lost(); n > 0 {
		return o.write(sse, o.fault, streamFault{true, fmt.Sprintf("%d events were lost: they were read too slowly", n)})
	}
	return nil
}

func (o *observation) write(sse *httpx.SSE, name string, frame any) error {
	data, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return sse.FrameNoFlush(name, "", data)
}

// send sends what write appends.
func (s *stream) send(write func(*httpx.SSE) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := write(s.sse); err != nil {
		return err
	}
	s.timer.Reset(keepAlive)
	return s.sse.Flush()
}

// eventFrame is a frame of the event streams (reference runtime.md 5.3).
type eventFrame struct {
	Type      string `json:"type"`
	Timestamp int64  `json:"timestamp"` // epoch milliseconds
	Message   string `json:"message"`
	SessionID string `json:"session_id"`
	RequestID string `json:"request_id"`
}

// shownFamilies are the events that the event streams show.
var shownFamilies = []string{"chat.", "agent.", "workflow.", "task."}

// followEvents streams what happens for a user, in one session or all.
func (a *api) followEvents(c echo.Context, who caller) error {
	session := httpx.Param(c, "session")
	return a.observe(c, &observation{
		match: func(e *telemetry.Event) bool {
			return who.sees(e) && (session == "" || e.SessionID == session) && hasFamily(e.Name)
		},
		frame: func(e *telemetry.Event) any {
			return eventFrame{e.Name, e.Time.UnixMilli(), e.Message, e.SessionID, e.RequestID}
		},
	})
}

// sees tells whether the caller may see an event: its user's, and all for an
// admin who names none.
func (w *caller) sees(e *telemetry.Event) bool { return w.user == e.UserID || w.admin && w.user == "" }

func hasFamily(name string) bool {
	for _, family := range shownFamilies {
		if strings.HasPrefix(name, family) {
			return true
		}
	}
	return false
}

// logFrame is a frame of the log stream (reference runtime.md 5.3).
type logFrame struct {
	Timestamp int64          `json:"timestamp"` // epoch milliseconds
	Level     string         `json:"level"`
	EventType string         `json:"event_type"`
	UserID    string         `json:"user_id"`
	SessionID string         `json:"session_id"`
	RequestID string         `json:"request_id"`
	AgentID   string         `json:"agent_id"`
	Message   string         `json:"message"`
	Data      map[string]any `json:"data"`
}

// logFilter is what a reader of the logs wants to see; an empty field is all.
type logFilter struct {
	user, session, request, agent, eventType string
	level                                    telemetry.Level // and above
}

// logFilters are the parameters of which one is needed.
var logFilters = []string{"user_id", "session_id", "request_id", "agent_id", "level", "event_type"}

func readLogFilter(c echo.Context) (f logFilter, err error) {
	level := strings.TrimSpace(c.QueryParam("level"))
	f = logFilter{
		user: strings.TrimSpace(c.QueryParam("user_id")), session: c.QueryParam("session_id"), request: c.QueryParam("request_id"),
		agent: c.QueryParam("agent_id"), eventType: c.QueryParam("event_type"), level: telemetry.Debug,
	}
	if level == "" && f == (logFilter{level: telemetry.Debug}) {
		return f, fault.New(fault.Invalid, "", "Name at least one filter: "+strings.Join(logFilters, ", "))
	}
	if level != "" {
		var ok bool
		if f.level, ok = telemetry.ParseLevel(strings.ToUpper(level)); !ok {
			return f, fault.Errorf(fault.Invalid, "", "level is '%s': want DEBUG, INFO, WARNING, ERROR or CRITICAL", clip(level))
		}
	}
	return f, nil
}

func (f *logFilter) match(e *telemetry.Event) bool {
	return e.Level >= f.level && (f.user == "" || f.user == e.UserID) && (f.session == "" || f.session == e.SessionID) &&
		(f.request == "" || f.request == e.RequestID) && (f.agent == "" || f.agent == e.AgentID) &&
		(f.eventType == "" || wildcard(f.eventType, e.Name))
}

// wildcard tells whether text has the form of pattern, in which each * stands
// for any text. It takes time in proportion to both.
func wildcard(pattern, text string) bool {
	star, mark, p, t := -1, 0, 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// followLogs streams the log and all events. The client key sees its own user's
// only, and has to say so.
func (a *api) followLogs(c echo.Context, who caller) error {
	f, err := readLogFilter(c)
	if err != nil {
		return err
	}
	if !who.admin {
		own := strings.TrimSpace(first(c.Request().Header[a.head.userKey]))
		if f.user == "" || own != "" && own != f.user {
			return fault.New(fault.Forbidden, "", "The client key shows the logs of its own user only: filter by user_id")
		}
		if err := checkUserID(f.user); err != nil {
			return err
		}
	}
	return a.observe(c, &observation{
		match: f.match, event: "log", fault: "error",
		frame: func(e *telemetry.Event) any {
			return logFrame{
				e.Time.UnixMilli(), e.Level.String(), e.Name, e.UserID, e.SessionID, e.RequestID, e.AgentID, e.Message, e.Data,
			}
		},
	})
}

// metrics tells Prometheus what turns did. It takes the admin key in its header
// or as a bearer token, which scrapers can send without a special header.
func (a *api) metrics(c echo.Context, _ caller) error {
	c.Response().Header().Set(echo.HeaderContentType, "text/plain; version=0.0.4; charset=utf-8")
	if err := a.cfg.Telemetry.Metrics().Write(c.Response()); err != nil {
		a.cfg.Log.Debug().Err(err).Msg("a scrape was cut")
	}
	return nil
}

// bearer lets the key of a header stand in an Authorization header instead.
func bearer(header string, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Request().Header
		if token, ok := strings.CutPrefix(h.Get(echo.HeaderAuthorization), "Bearer "); ok && h.Get(header) == "" {
			h.Set(header, strings.TrimSpace(token))
		}
		return next(c)
	}
}
