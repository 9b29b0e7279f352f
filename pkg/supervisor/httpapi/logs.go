package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

const (
	defaultLines = 100
	maxLines     = 10000
	// keepAlive is how often a silent stream shows that it lives, so that a
	// client which left is noticed.
	keepAlive = 15 * time.Second
)

func (a *API) logs(c echo.Context) error {
	id := httpx.Param(c, "id")
	name, streams, err := logStreams(c)
	if err != nil {
		return err
	}
	if f := c.QueryParam("follow"); f == "true" || f == "1" {
		if _, err := a.cfg.Deploy.Get(c.Request().Context(), id); err != nil {
			return err
		}
		return a.followLogs(c, id, streams)
	}
	n, err := logLines(c)
	if err != nil {
		return err
	}
	lines := map[deploy.Stream][]string{deploy.Stdout: {}, deploy.Stderr: {}}
	total := map[deploy.Stream]int{deploy.Stdout: 0, deploy.Stderr: 0}
	for _, stream := range streams {
		tail, err := a.cfg.Deploy.TailLog(c.Request().Context(), id, stream, n)
		if err != nil {
			return err
		}
		if tail.Lines != nil {
			lines[stream] = tail.Lines
		}
		total[stream] = tail.Total
	}
	return reply(c, http.StatusOK, map[string]any{
		"formation_id": id, "stream": name, "logs": lines, "total_lines": total,
	})
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

func logLines(c echo.Context) (int, error) {
	text := c.QueryParam("lines")
	if text == "" {
		text = c.QueryParam("limit")
	}
	if text == "" {
		return defaultLines, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, invalid("lines must be a whole number from 1 to %d, not %q", maxLines, text)
	}
	return min(n, maxLines), nil
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
func (a *API) followLogs(c echo.Context, id string, streams []deploy.Stream) error {
	stream, err := httpx.StartSSE(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	events := make(chan logEvent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.cfg.Deploy.FollowLog(ctx, id, streams, func(s deploy.Stream, line string) error {
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
