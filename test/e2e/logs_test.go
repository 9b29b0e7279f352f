package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// warned is part of a line that the pair writes to its log at every start.
const warned = "a key stands here in plain text"

func TestLogs_TailAndFollow(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	s.Deploy("talks", suite.Pair(t, "talks", model.URL()))
	const path = "/rpc/formations/talks/logs"
	header := s.Signing(http.MethodGet, path, nil).ThreeHeaders()
	tail := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path + "?lines=1&stream=stdout", Header: header}).
		Want(t, http.StatusOK, "data.formation_id", "talks", "data.stream", "stdout", "data.logs.stderr", "[]")
	if line := tail.Text("data.logs.stdout.0"); !strings.Contains(line, warned) {
		t.Errorf("the last line is %q", line)
	}
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path + "?lines=none", Header: header}).
		Want(t, http.StatusBadRequest, "error", "ValidationError")

	stream := s.HTTP.MustStream(harness.Request{Method: http.MethodGet, URL: s.URL + path + "?follow=true", Header: header})
	if f := stream.Frame(t); f.Event != "connected" || f.Data != `{"formation_id":"talks"}` {
		t.Errorf("the stream begins with %+v", f)
	}
	s.RPC(http.MethodPost, "/rpc/formations/talks/restart").Want(t, http.StatusOK)
	for f := stream.Frame(t); !strings.Contains(f.Text("line"), warned); f = stream.Frame(t) {
		if f.Event != "log" || f.Text("stream") != "stdout" || f.Text("time") == "" {
			t.Errorf("a frame of the log is %+v", f)
		}
	}

	// The command prints the last lines first and then the new ones.
	follow := s.Background("logs", "talks", "--follow")
	shown := func() int { return strings.Count(follow.Out.String(), warned) }
	harness.Until(t, "the command shows both starts of the past", func() bool { return shown() == 2 })
	harness.Until(t, "the command shows a start that it watched", func() bool {
		s.RPC(http.MethodPost, "/rpc/formations/talks/restart").Want(t, http.StatusOK)
		return shown() > 2
	})
	follow.Signal(syscall.SIGINT)
	if code := follow.Exit(t); code != 130 {
		t.Errorf("exit code %d after an interrupt", code)
	}
}
