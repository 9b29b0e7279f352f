package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

const (
	maxLines = 10000
	// keepAlive is how often a silent stream shows that it lives, so that a
	// client which left is noticed.
	keepAlive = 15 * time.Second
)

// logReply holds the lines of both streams, also those that were not asked for,
// which are empty.
type logReply struct {
	FormationID string     `json:"formation_id"`
	Stream      string     `json:"stream" enum:"stdout,stderr,all"`
	Logs        logLists   `json:"logs"`
	TotalLines  logNumbers `json:"total_lines"`
}

type logLists struct {
	Stdout []string `json:"stdout"`
	Stderr []string `json:"stderr"`
}

type logNumbers struct {
	Stdout int `json:"stdout"`
	Stderr int `json:"stderr"`
}

func (a *API) logs(c echo.Context) error {
	if f := c.QueryParam("follow"); f == "true" || f == "1" {
		return a.followedLogs(c)
	}
	id := httpx.Param(c, "id")
	name, streams, err := logStreams(c)
	if err != nil {
		return err
	}
	n, err := countParam(c, maxLines, "lines", "limit")
	if err != nil {
		return err
	}
	out := logReply{FormationID: id, Stream: name, Logs: logLists{Stdout: []string{}, Stderr: []string{}}}
	for _, stream := range streams {
		tail, err := a.cfg.Deploy.TailLog(c.Request().Context(), id, stream, n)
		if err != nil {
			return err
		}
		lines, total := &out.Logs.Stdout, &out.TotalLines.Stdout
		if stream == deploy.Stderr {
			lines, total = &out.Logs.Stderr, &out.TotalLines.Stderr
		}
		*lines, *total = append(*lines, tail.Lines...), tail.Total
	}
	return reply(c, http.StatusOK, out)
}

// followedLogs answers with new lines as they come.
func (a *API) followedLogs(c echo.Context) error {
	id := httpx.Param(c, "id")
	_, streams, err := logStreams(c)
	if err != nil {
		return err
	}
	// Whoever is told that it is connected misses nothing that is written then.
	follower, err := a.cfg.Deploy.FollowLog(id, streams)
	if err != nil {
		return err
	}
	return a.followLogs(c, id, follower)
}

func logStreams(c echo.Context) (string, []deploy.Stream, error) {
	switch name := c.QueryParam("stream"); name {
	case "", "all":
		return "all", []deploy.Stream{deploy.Stdout, deploy.Stderr}, nil
	case "stdout", "stderr":
		return name, []deploy.Stream{deploy.Stream(name)}, nil
	default:
		return "", nil, invalid("stream must be stdout, stderr or all, not %q", name)
	}
}

// logEvent is one new line.
type logEvent struct {
	FormationID string        `json:"formation_id"`
	Line        string        `json:"line"`
	Stream      deploy.Stream `json:"stream"`
	Time        time.Time     `json:"time"` // when it was seen
}

// followLogs sends new lines until the client leaves or the formation is
// deleted. A goroutine reads, this one writes.
func (a *API) followLogs(c echo.Context, id string, follower *deploy.LogFollower) error {
	stream, err := httpx.StartSSE(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	events := make(chan logEvent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = follower.Run(ctx, func(s deploy.Stream, line string) error {
			select {
			case events <- logEvent{FormationID: id, Line: line, Stream: s, Time: a.now().UTC()}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	defer func() { cancel(); <-done }()
	if frame(stream, "connected", map[string]string{"formation_id": id}) != nil {
		return nil
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case e := <-events:
			err = frame(stream, "log", e)
		case <-tick.C:
			err = stream.Comment("keep-alive")
		case <-done:
			return nil
		}
		if err != nil {
			return nil
		}
	}
}
