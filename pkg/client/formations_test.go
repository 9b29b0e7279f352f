package client_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

func TestServer_DecodesFormations(t *testing.T) {
	t.Parallel()
	item := `{"id":"hello","name":"Hello","port":8000,"status":"crashed","pid":0,"uptime":61,"restart_count":3,"healthy":null,` +
		`"version":{"semantic":"1.0.0","current":"aa","previous":""},"created_at":"2026-01-02T03:04:05Z",` +
		`"last_exit":{"reason":"exit","exit_code":2,"at":"2026-01-02T03:04:06Z","stderr":["panic: x"]}}`
	var got seen
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		got = seen{Path: r.URL.Path, Query: r.URL.RawQuery}
		body := `{"success":true,"data":` + item + `}`
		if r.URL.Path == "/rpc/formations" {
			body = `{"success":true,"data":{"formations":[` + item + `],"total":1}}`
		}
		answer(w, 200, body)
	})
	two, created, at := 2, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	want := client.Info{
		ID: "hello", Name: "Hello", Port: 8000, Status: "crashed", Uptime: 61, RestartCount: 3,
		Version: client.Version{Semantic: "1.0.0", Current: "aa"}, CreatedAt: &created,
		LastExit: &client.Exit{Reason: "exit", ExitCode: &two, At: &at, Stderr: []string{"panic: x"}},
	}
	list, err := s.List(t.Context(), "crashed")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]client.Info{want}, list); diff != "" || got.Query != "status=crashed" {
		t.Errorf("query %q, list %s", got.Query, diff)
	}
	one, err := s.Get(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, one); diff != "" || got.Path != "/rpc/formations/hello" {
		t.Errorf("path %q, formation %s", got.Path, diff)
	}
}

func TestServer_HealthAndPing(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ping" {
			w.Write([]byte("pong"))
			return
		}
		answer(w, 200, `{"success":true,"status":"ok","data":{"status":"ok","version":"0.1","formations":2,"uptime":9,"port_pool":{"allocated":2,"available":999,"total":1001}}}`)
	})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	h, err := s.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Status != "ok" || h.Formations != 2 || h.PortPool.Total != 1001 || h.Uptime != 9 {
		t.Errorf("health %+v", h)
	}
}

func TestServer_StopAndDeleteUseTheirRoutes(t *testing.T) {
	t.Parallel()
	var calls []string
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.Path)
		answer(w, 200, `{"success":true,"data":{"id":"x"}}`)
	})
	if err := errors.Join(s.Stop(t.Context(), "x"), s.Delete(t.Context(), "x")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"POST /rpc/formations/x/stop", "DELETE /rpc/formations/x"}, calls); diff != "" {
		t.Error(diff)
	}
}

func TestLogs_AsksForLinesOfAStream(t *testing.T) {
	t.Parallel()
	var got seen
	s := newServer(t, record(&got, `{"data":{"formation_id":"x","stream":"all","logs":{"stdout":["a","b"],"stderr":["c"]},"total_lines":{"stdout":2,"stderr":1}}}`))
	logs, err := s.Logs(t.Context(), "x", client.LogsRequest{Lines: 5, Stream: "all"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Path != "/rpc/formations/x/logs" || got.Query != "lines=5&stream=all" {
		t.Errorf("asked %s?%s", got.Path, got.Query)
	}
	if diff := cmp.Diff([]string{"a", "b"}, logs.Logs.Stdout); diff != "" || logs.Logs.Stderr[0] != "c" || logs.TotalLines.Stdout != 2 {
		t.Errorf("logs %+v", logs)
	}
}

func TestFollowLogs_HandsOnLinesUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	var query string
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		events(w, "event: connected\ndata: {\"formation_id\":\"x\"}", ": keepalive",
			"event: log\ndata: {\"formation_id\":\"x\",\"line\":\"one\",\"stream\":\"stdout\",\"time\":1700000000000}",
			"event: log\ndata: {\"formation_id\":\"x\",\"line\":\"two\",\"stream\":\"stderr\",\"time\":\"2026-01-02T03:04:05Z\"}")
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lines []string
	err := s.FollowLogs(ctx, "x", client.LogsRequest{Stream: "all"}, func(l client.LogLine) error {
		lines = append(lines, l.Stream+" "+l.Line)
		if len(lines) == 2 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if diff := cmp.Diff([]string{"stdout one", "stderr two"}, lines); diff != "" || query != "follow=true&stream=all" {
		t.Errorf("query %q, lines %s", query, diff)
	}
}

func TestFollowLogs_EndsForEachReason(t *testing.T) {
	t.Parallel()
	full := errors.New("the sink is full")
	for name, tc := range map[string]struct {
		frames []string
		check  func(t *testing.T, err error)
	}{
		"the sink": {
			[]string{"event: log\ndata: {\"line\":\"a\"}"},
			func(t *testing.T, err error) {
				if !errors.Is(err, full) {
					t.Errorf("ended with %v", err)
				}
			},
		},
		"the server": {nil, func(t *testing.T, err error) { wantError(t, err, 0, client.NameBrokenStream) }},
		"an error event": {
			[]string{"event: error\ndata: {\"error\":\"FormationNotFound\",\"message\":\"gone\"}"},
			func(t *testing.T, err error) { wantError(t, err, 404, "FormationNotFound") },
		},
		"a bad line": {
			[]string{"event: log\ndata: x"},
			func(t *testing.T, err error) { wantError(t, err, 200, client.NameBadReply) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { events(w, tc.frames...) })
			tc.check(t, s.FollowLogs(t.Context(), "x", client.LogsRequest{}, func(client.LogLine) error { return full }))
		})
	}
}

func TestFollowLogs_APlainReplyIsRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, `{"data":{}}`) })
	err := s.FollowLogs(t.Context(), "x", client.LogsRequest{}, nil)
	wantError(t, err, 200, client.NameBadReply)
}
