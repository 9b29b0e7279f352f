package client

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// LogsRequest chooses lines of a formation's logs.
type LogsRequest struct {
	// Lines is how many of the last lines of each stream; 0 means 100, the
	// server gives at most 10000.
	Lines int
	// Stream is stdout, stderr or all; "" means all.
	Stream string
}

// Logs are the last lines of a formation, oldest first.
type Logs struct {
	FormationID string `json:"formation_id"`
	Stream      string `json:"stream"`
	Logs        struct {
		Stdout []string `json:"stdout"`
		Stderr []string `json:"stderr"`
	} `json:"logs"`
	TotalLines struct {
		Stdout int `json:"stdout"`
		Stderr int `json:"stderr"`
	} `json:"total_lines"`
}

// Logs returns the last lines of a formation's logs.
func (s *Server) Logs(ctx context.Context, id string, req LogsRequest) (*Logs, error) {
	c := newLogsCall(id, req)
	var out Logs
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// LogLine is one line of a log as it was written.
type LogLine struct {
	FormationID string          `json:"formation_id"`
	Line        string          `json:"line"`
	Stream      string          `json:"stream"` // stdout or stderr
	Time        json.RawMessage `json:"time,omitempty"`
}

// FollowLogs hands each new line to sink until ctx ends, sink returns an error
// (both are returned) or the server closes the stream (NameBrokenStream).
func (s *Server) FollowLogs(ctx context.Context, id string, req LogsRequest, sink func(LogLine) error) error {
	c := newLogsCall(id, req)
	c.query.Set("follow", "true")
	c.timeout = 0
	return s.caller.events(ctx, streaming{
		call: c.wantEvents(),
		onEvent: func(ev Event) (bool, error) {
			switch ev.Name {
			case "error":
				return true, eventError(ev.Data)
			case "log":
				var line LogLine
				if err := json.Unmarshal(ev.Data, &line); err != nil {
					return true, badReply(http.StatusOK, "a log event that is no JSON object")
				}
				return false, sink(line)
			}
			return false, nil
		},
	})
}

func newLogsCall(id string, req LogsRequest) *call {
	c := newCall(http.MethodGet, "rpc", "formations", id, "logs")
	if req.Lines > 0 {
		c.query.Set("lines", strconv.Itoa(req.Lines))
	}
	if req.Stream != "" {
		c.query.Set("stream", req.Stream)
	}
	return c
}
