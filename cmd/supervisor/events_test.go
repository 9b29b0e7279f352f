package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

const (
	firstEvent  = "data: {\"type\":\"chat.started\",\"timestamp\":1795287671473,\"message\":\"The turn\\nhas begun\",\"session_id\":\"s9\",\"request_id\":\"req_1\"}\n\n"
	secondEvent = "data: {\"type\":\"chat.completed\",\"timestamp\":1795287671473,\"message\":\"The turn ended\",\"session_id\":\"s9\",\"request_id\":\"req_1\"}\n\n"
	logFrames   = "event: log\ndata: {\"timestamp\":1795287671476,\"level\":\"WARNING\",\"event_type\":\"agent.x\",\"user_id\":\"0\",\"session_id\":\"\",\"request_id\":\"req_1\",\"agent_id\":\"poet\",\"message\":\"careful\",\"data\":{\"stage\":\"thinking\"}}\n\n" +
		"event: error\ndata: {\"error\":true,\"message\":\"3 events were lost: they were read too slowly\"}\n\n"
)

// stays answers with frames and leaves the stream open.
func stays(frames string) reply {
	return reply{do: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, frames) //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}}
}

// follows runs a command line until the text was printed, then interrupts it.
func follows(t *testing.T, f *fake, until string, args ...string) (out, errs string) {
	t.Helper()
	o, e := watch(until), watch(until)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, newSession(t, f).app(o, e), args) }()
	select {
	case <-o.seen:
	case <-e.seen:
	case code := <-ended:
		t.Fatalf("exit code %d: %s%s", code, o, e)
	}
	interrupt()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	return o.String(), e.String()
}

func TestEvents_AreFollowedOverABreak(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var times atomic.Int32
	f.on("GET /api/hello/v1/events", reply{do: func(w http.ResponseWriter, r *http.Request) {
		switch times.Add(1) {
		case 1:
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, firstEvent) //nolint:errcheck // the client sees it
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			stays(secondEvent).do(w, r)
		}
	}})
	out, errs := follows(t, f, "ended", "events", "hello", "--key", "fma_1")
	lines := strings.Split(out, "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " chat.started       The turn has begun  s9 req_1") || !strings.HasSuffix(lines[1], " chat.completed     The turn ended  s9 req_1") {
		t.Errorf("printed %q", out)
	}
	if want := "hello does not answer: its events are followed again when it does\nthe events of hello go on\ninterrupted\n"; errs != want {
		t.Errorf("said %q, want %q", errs, want)
	}
}

// Each filter asks the route that knows it, for the right user.
func TestEvents_AskTheRouteThatKnowsTheFilter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args  []string
		route string
	}{
		"all":        {[]string{"--key", "fma_1"}, "/v1/events"},
		"a session":  {[]string{"--key", "fma_1", "--session", "s/9"}, "/v1/events/s%2F9"},
		"a level":    {[]string{"--key", "fma_1", "--level", "warning"}, "/v1/logs?level=WARNING"},
		"everything": {[]string{"--key", "fma_1", "--session", "s", "--request", "r", "--agent", "a", "--type", "x.*", "--user", "u"}, "/v1/logs?agent_id=a&event_type=x.%2A&request_id=r&session_id=s&user_id=u"},
		"a client":   {[]string{"--key", "fmc_1", "--level", "debug"}, "/v1/logs?level=DEBUG&user_id=ada"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.on("GET /api/hello"+tc.route, stays(secondEvent))
			follows(t, f, "ended", append([]string{"events", "hello"}, tc.args...)...)
			if got, want := f.said(), "GET /api/hello"+tc.route+"\n"; got != want {
				t.Errorf("asked %q, want %q", got, want)
			}
		})
	}
}

func TestEvents_OfTheLogTellLevelAndData(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("GET /api/hello/v1/logs?level=DEBUG", stays(logFrames))
	out, errs := follows(t, f, "lost", "events", "hello", "--key", "fma_1", "--level", "DEBUG")
	if !strings.HasSuffix(out, ` WARNING  agent.x            careful  {"stage":"thinking"} poet 0 req_1`+"\n") {
		t.Errorf("printed %q", out)
	}
	if !strings.HasPrefix(errs, "3 events were lost: they were read too slowly\n") {
		t.Errorf("said %q", errs)
	}
	out, _ = follows(t, f, "lost", "events", "hello", "--key", "fma_1", "--level", "DEBUG", "-o", "json")
	want := `{"timestamp":1795287671476,"level":"WARNING","type":"agent.x","message":"careful","request_id":"req_1","user_id":"0","agent_id":"poet","data":{"stage":"thinking"}}` +
		"\n" + `{"message":"3 events were lost: they were read too slowly","error":true}` + "\n"
	if out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}

// A formation that stays away ends the following, as does a refusal.
func TestEvents_EndWhereNothingWillCome(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		asked  int
		code   int
	}{
		"a refusal":          {401, 1, exitUnauthorised},
		"no such formation":  {404, 1, exitNotFound},
		"it does not return": {503, followTries + 1, exitUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.on("GET /api/hello/v1/events", reply{status: tc.status, body: "{}"})
			s := newSession(t, f)
			if code := s.run(t.Context(), "events", "hello", "--key", "fma_1"); code != tc.code {
				t.Errorf("exit code %d: %s", code, s.er.String())
			}
			if asked := strings.Count(f.said(), "\n"); asked != tc.asked {
				t.Errorf("asked %d times, want %d", asked, tc.asked)
			}
		})
	}
	f := newFake(t)
	f.on("GET /api/hello/v1/events", reply{status: 503, body: `{"error":"FormationUnavailable","message":"Formation 'hello' is stopped"}`})
	s := newSession(t, f)
	if code := s.run(t.Context(), "events", "hello", "--key", "fma_1"); code != exitUnavailable || strings.Count(f.said(), "\n") != 1 {
		t.Errorf("a stopped formation was waited for: exit code %d, %s", code, s.er.String())
	}
	if code := s.run(t.Context(), "events", "hello", "--key", "k", "--level", "loud"); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
}
