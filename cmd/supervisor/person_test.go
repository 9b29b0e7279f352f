package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const doneEvents = `: keepalive

data: {"token":{"type":"completed","content":"hi","session_id":"sess_1"}}

event: done

`

func TestDelete_AsksAPerson(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]int{"y\n": 0, "Y\n": 0, "n\n": 1, "\n": 1, "": 1, "yes of course\n": 1} {
		f := newFake(t)
		f.on("DELETE /rpc/formations/hello", reply{status: 200, body: `{"data":{}}`})
		s := newSession(t, f)
		s.inTTY, s.in = true, typed
		if code := s.run(t.Context(), "delete", "hello"); code != want {
			t.Errorf("%q: exit code %d, want %d", typed, code, want)
		}
		if asked := strings.Contains(f.said(), "DELETE"); asked != (want == 0) {
			t.Errorf("%q: deleted: %v", typed, asked)
		}
		if !strings.Contains(s.er.String(), "remove hello with all data? [y/N]") {
			t.Errorf("asked %q", s.er.String())
		}
	}
}

// A person at a terminal sees an error and goes on.
func TestChat_APersonGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	bodies := make(chan string, 2)
	f.on("POST /api/hello/v1/chat", reply{do: func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- string(raw)
		if strings.Contains(string(raw), "first") {
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, `{"error":{"code":"INTERNAL_ERROR","message":"the model is gone"}}`) //nolint:errcheck // the client sees it
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, doneEvents) //nolint:errcheck // the client sees it
	}})
	s := newSession(t, f)
	s.inTTY, s.in = true, "first\nsecond\n"
	if code := s.run(t.Context(), "chat", "hello", "--key", "fmc_1", "--user", "bob", "--agent", "greeter"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got, want := s.er.String(), "> INTERNAL_ERROR: the model is gone\n> > "; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	if s.out.String() != "hi\n" {
		t.Errorf("printed %q", s.out.String())
	}
	if first := <-bodies; !strings.Contains(first, `"agent_id":"greeter"`) || strings.Contains(first, "session_id") {
		t.Errorf("sent %s", first)
	}
}

func TestChat_KeepsTheSession(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	bodies := make(chan string, 2)
	users := make(chan string, 2)
	f.on("POST /api/hello/v1/chat", reply{do: func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- string(raw)
		users <- r.Header.Get("X-SVC-User-ID")
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, doneEvents) //nolint:errcheck // the client sees it
	}})
	s := newSession(t, f)
	s.in = "one\ntwo"
	if code := s.run(t.Context(), "chat", "hello", "--key", "fmc_1"); code != 0 {
		t.Errorf("exit code %d: %s", code, s.er.String())
	}
	<-bodies
	if second := <-bodies; !strings.Contains(second, `"session_id":"sess_1"`) {
		t.Errorf("the second message was %s", second)
	}
	if user := <-users; user != "ada" {
		t.Errorf("user %q, want the one of the operating system", user)
	}
}

func TestInterrupt_EndsEveryWait(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"a stream":    {"chat", "hello", "hi", "--key", "k"},
		"an answer":   {"chat", "hello", "hi", "--key", "k", "--no-stream"},
		"lines":       {"chat", "hello", "--key", "k"},
		"log lines":   {"logs", "hello", "-f"},
		"a start":     {"start", "hello"},
		"a stop":      {"stop", "hello"},
		"a long list": {"list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			hang := reply{do: func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				w.(http.Flusher).Flush()
				interrupt()
				<-r.Context().Done()
			}}
			for _, route := range []string{
				"POST /api/hello/v1/chat", "GET /rpc/formations/hello/logs?follow=true&stream=all",
				"POST /rpc/formations/hello/start", "POST /rpc/formations/hello/stop", "GET /rpc/formations",
			} {
				f.on(route, hang)
			}
			f.on("GET /rpc/formations/hello/logs?lines=100&stream=all", reply{status: 200, body: `{"data":{}}`})
			s := newSession(t, f)
			var out, errs bytes.Buffer
			a := s.app(&out, &errs)
			if name == "lines" {
				r, w := io.Pipe()
				defer w.Close()
				a.in = r
				go interrupt()
			}
			if code := run(ctx, a, args); code != exitInterrupted {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
			if !strings.HasSuffix(errs.String(), "interrupted\n") {
				t.Errorf("said %q", errs.String())
			}
		})
	}
}

// A turn outlives the connection that it is read from, and so does its answer:
// what came is not asked for again, and a message is not sent twice.
func TestChat_TakesABrokenAnswerUpAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var times atomic.Int32
	asked := make(chan string, 4)
	f.on("POST /api/hello/v1/chat", reply{do: func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- r.Header.Get("Last-Event-ID") + " " + string(body)
		frames := `id: 1` + "\n" + `data: {"token":{"type":"content","content":"one, ","request_id":"req_1","session_id":"s1"}}` + "\n\n"
		switch times.Add(1) {
		case 1:
		case 2:
			w.WriteHeader(http.StatusBadGateway)
			return
		default:
			frames = `id: 2` + "\n" + `data: {"token":{"type":"content","content":"two","request_id":"req_1","session_id":"s1"}}` + "\n\n" +
				`id: 3` + "\n" + `data: {"token":{"type":"completed","content":"one, two","request_id":"req_1","session_id":"s1"}}` + "\n\nevent: done\n\n"
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, frames) //nolint:errcheck // the client sees it
	}})
	s := newSession(t, f)
	if code := s.run(t.Context(), "chat", "hello", "hi", "--key", "k"); code != 0 || s.out.String() != "one, two\n" {
		t.Errorf("exit code %d, printed %q", code, s.out.String())
	}
	if want := "the stream broke: the answer goes on when the formation is back\n"; s.er.String() != want {
		t.Errorf("said %q", s.er.String())
	}
	if first := <-asked; !strings.HasPrefix(first, " {") || strings.Contains(first, "request_id") {
		t.Errorf("the first asked for %s", first)
	}
	for range 2 {
		if next := <-asked; !strings.HasPrefix(next, "1 {") || !strings.Contains(next, `"request_id":"req_1"`) {
			t.Errorf("the next asked for %s", next)
		}
	}
}

func TestChat_EndsWhenItsFormationIsDown(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var times atomic.Int32
	f.on("POST /api/hello/v1/chat", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		if times.Add(1) == 1 {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, `id: 1`+"\n"+`data: {"token":{"type":"progress","content":"x","request_id":"req_1"}}`+"\n\n") //nolint:errcheck // the client sees it
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"error":"FormationUnavailable","message":"Formation 'hello' is crashed"}`) //nolint:errcheck // as above
	}})
	s := newSession(t, f)
	if code := s.run(t.Context(), "chat", "hello", "hi", "--key", "k"); code != exitUnavailable || times.Load() != 2 {
		t.Errorf("exit code %d after %d requests: %s", code, times.Load(), s.er.String())
	}
}

// The formation works on when its client leaves, so the person is told where to
// look.
func TestInterrupt_OfAnAnswerNamesTheRequest(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("POST /api/hello/v1/chat", stays(`data: {"token":{"type":"content","content":"so far","request_id":"req_1"}}`+"\n\n"))
	out, errs := follows(t, f, "so far", "chat", "hello", "hi", "--key", "k")
	if out != "so far\n" || errs != "the formation may still work on it: `supervisor trace hello req_1` shows what comes of it\ninterrupted\n" {
		t.Errorf("printed %q, said %q", out, errs)
	}
}

func TestAge_ShowsTwoUnits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "-", -time.Second: "-", 7 * time.Second: "7s", 61 * time.Second: "1m1s", time.Hour: "1h0m",
		25*time.Hour + 59*time.Minute: "1d1h", 1000 * time.Hour: "41d16h",
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestPrintable_DropsWhatATerminalObeys(t *testing.T) {
	t.Parallel()
	if got := printable("a\x1b[31mb\r\x07\u009b2J\x7f\tä\n"); got != "a[31mb2J\tä\n" {
		t.Errorf("got %q", got)
	}
}
