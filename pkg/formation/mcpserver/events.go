package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/httpx"
)

// The arguments of tools whose route is a stream: a call has one answer, so the
// stream is read for a while.
const (
	waitSeconds = "wait_seconds"
	maxEvents   = "max_events"
	lastEventID = "Last-Event-ID"
)

const (
	defaultWait   = 5
	longestWait   = 60
	defaultEvents = 100
	mostEvents    = 1000
	// mostBytes of a stream are read for one call.
	mostBytes = 4 << 20
)

func waitSchema() map[string]any {
	return map[string]any{
		"type": "number", "minimum": 0, "maximum": longestWait, "default": defaultWait,
		"description": "how long to wait for events, in seconds",
	}
}

func maxEventsSchema() map[string]any {
	return map[string]any{
		"type": "integer", "minimum": 1, "maximum": mostEvents, "default": defaultEvents, "description": "how many events to return at most",
	}
}

// eventLimits say when the reading of a stream ends.
type eventLimits struct {
	wait   time.Duration
	events int
}

func defaultLimits() eventLimits { return eventLimits{defaultWait * time.Second, defaultEvents} }

func (l *eventLimits) set(name, text string) *httpx.FieldError {
	if name == waitSeconds {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v >= 0 && v <= longestWait) {
			return &httpx.FieldError{Field: name, Msg: fmt.Sprintf("Use a number from 0 to %d", longestWait), Type: "number", Error: httpx.InvalidFormat}
		}
		l.wait = time.Duration(v * float64(time.Second))
		return nil
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > mostEvents {
		return &httpx.FieldError{Field: name, Msg: fmt.Sprintf("Use a number from 1 to %d", mostEvents), Type: "integer", Error: httpx.InvalidFormat}
	}
	l.events = v
	return nil
}

// event is a frame of a stream.
type event struct {
	ID    string          `json:"id,omitempty"`
	Event string          `json:"event,omitempty"`
	Data  json.RawMessage `json:"data"`
}

type eventList struct {
	Events []event `json:"events"`
	Count  int     `json:"count"`
	// Complete tells that the stream has ended, and was not left.
	Complete bool `json:"complete"`
}

var errEnough = errors.New("enough was read")

// frames reads events out of the bytes of a stream.
type frames struct {
	most  int
	size  int
	rest  []byte
	found []event
	stop  context.CancelFunc
}

// take reads what came. It fails when there is enough, so that the API stops.
func (f *frames) take(p []byte) error {
	f.rest = append(f.rest, p...)
	f.size += len(p)
	for len(f.found) < f.most {
		end := bytes.Index(f.rest, []byte("\n\n"))
		if end < 0 {
			break
		}
		if e, ok := parse(f.rest[:end]); ok {
			f.found = append(f.found, e)
		}
		f.rest = f.rest[end+2:]
	}
	if len(f.found) >= f.most || f.size > mostBytes {
		f.stop()
		return errEnough
	}
	return nil
}

// parse reads one frame; a comment is none.
func parse(frame []byte) (e event, ok bool) {
	var data []string
	for line := range strings.SplitSeq(string(frame), "\n") {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			e.ID = value
		case "event":
			e.Event = value
		case "data":
			data = append(data, value)
		}
	}
	if data == nil {
		return e, false
	}
	if e.Data = json.RawMessage(strings.Join(data, "\n")); !json.Valid(e.Data) {
		e.Data = quoted(string(e.Data))
	}
	return e, true
}

// collect answers a call of a tool whose route is a stream.
func (s *Server) collect(ctx context.Context, x *exchange, in *invocation) *mcpsdk.CallToolResult {
	ctx, cancel := context.WithTimeout(ctx, in.limits.wait)
	defer cancel()
	r, err := s.request(ctx, x, in)
	if err != nil {
		return s.failed(err)
	}
	out, read := newRecorder(), &frames{most: in.limits.events, stop: cancel}
	out.stream = read.take
	s.cfg.API.ServeHTTP(out, r)
	if out.header.Get("Content-Type") != eventStream {
		return resultOf(out)
	}
	list := &eventList{Events: read.found, Count: len(read.found), Complete: ctx.Err() == nil}
	if list.Events == nil {
		list.Events = []event{}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return s.failed(fmt.Errorf("write the events of a stream: %w", err))
	}
	out.body.Reset()
	out.body.Write(data)
	return resultOf(out)
}
