package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// runsAlready lets the fake have hello 0.9.0, which the tree of writeTree
// updates.
func runsAlready(f *fake) {
	f.on("GET /rpc/formations/hello", reply{
		status: 200, body: `{"data":{"id":"hello","status":"running","version":{"semantic":"0.9.0","current":"aa"}}}`,
	})
}

// updating answers an update with a first step, interrupts, and ends the stream
// when the update was cancelled.
func updating(t *testing.T, f *fake, interrupt func()) {
	t.Helper()
	cancelled := make(chan struct{})
	f.on("PUT /rpc/formations/hello", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: progress\ndata: {\"stage\":\"swapping\"}\n\n") //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		interrupt()
		select {
		case <-cancelled:
			io.WriteString(w, "event: error\ndata: {\"error\":\"Canceled\",\"message\":\"m\",\"stage\":\"swapping\"}\n\n") //nolint:errcheck // the client sees it
		case <-r.Context().Done():
			t.Error("the stream was left before the update was cancelled")
		}
	}})
	f.on("POST /rpc/formations/hello/cancel-update", reply{do: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"data":{"formation_id":"hello","status":"running"}}`) //nolint:errcheck // the client sees it
		close(cancelled)
	}})
}

func TestUpdate_AnInterruptCancelsIt(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	runsAlready(f)
	ctx, interrupt := context.WithCancel(t.Context())
	updating(t, f, interrupt)
	s := newSession(t, f)
	if code := s.run(ctx, "update", writeTree(t, "formation.afs")); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if want := "GET /rpc/formations/hello\nPUT /rpc/formations/hello\nPOST /rpc/formations/hello/cancel-update\n"; f.said() != want {
		t.Errorf("asked something else than %s", want)
	}
	if text := s.er.String(); !strings.HasSuffix(text, "the update of hello is cancelled: the version before serves on\ninterrupted\n") {
		t.Errorf("said %q", text)
	}
}

func TestUpdate_AnInterruptThatComesTooLateSaysSo(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	runsAlready(f)
	ctx, interrupt := context.WithCancel(t.Context())
	asked := make(chan struct{})
	f.on("PUT /rpc/formations/hello", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: progress\ndata: {\"stage\":\"stopping_old\"}\n\n") //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		interrupt()
		<-asked
		io.WriteString(w, completeEvent) //nolint:errcheck // the client sees it
	}})
	f.on("POST /rpc/formations/hello/cancel-update", reply{do: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"error":"NoUpdateInProgress","message":"m"}`) //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		close(asked)
	}})
	s := newSession(t, f)
	if code := s.run(ctx, "update", writeTree(t, "formation.afs")); code != exitOK {
		t.Errorf("exit code %d, want that of the update", code)
	}
	if s.out.String() != "hello: running on port 8000, u\n" {
		t.Errorf("printed %q, said %q", s.out.String(), s.er.String())
	}
}

// An update that is refused is somebody else's to cancel.
func TestUpdate_AnInterruptOfARefusedUpdateCancelsNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	runsAlready(f)
	ctx, interrupt := context.WithCancel(t.Context())
	f.on("PUT /rpc/formations/hello", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		interrupt()
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":"UpdateInProgress","message":"m"}`) //nolint:errcheck // the client sees it
	}})
	s := newSession(t, f)
	if code := s.run(ctx, "update", writeTree(t, "formation.afs")); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if said := f.said(); strings.Contains(said, "cancel-update") {
		t.Errorf("asked %s", said)
	}
}

func TestRollback_AnInterruptCancelsIt(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, interrupt := context.WithCancel(t.Context())
	updating(t, f, interrupt)
	f.mu.Lock()
	f.replies["POST /rpc/formations/hello/rollback"] = f.replies["PUT /rpc/formations/hello"]
	f.mu.Unlock()
	s := newSession(t, f)
	if code := s.run(ctx, "rollback", "hello"); code != exitInterrupted {
		t.Errorf("exit code %d, want 130", code)
	}
	if said := f.said(); !strings.Contains(said, "cancel-update") {
		t.Errorf("asked %s", said)
	}
}

// Without steps the bundle tells whose formation is there after an interrupt.
func TestDeploy_AnInterruptedPlainDeployRemovesWhatHasItsBundle(t *testing.T) {
	t.Parallel()
	for current, removed := range map[string]bool{"ours": true, "bb": false} {
		f := newFake(t)
		ctx, interrupt := context.WithCancel(t.Context())
		dir := writeTree(t, "formation.afs")
		sum := current
		if current == "ours" {
			sum = sumOf(t, dir)
		}
		f.on("POST /rpc/formations", reply{do: func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			f.on("GET /rpc/formations/hello", reply{status: 200, body: `{"data":{"id":"hello","version":{"current":"` + sum + `"}}}`})
			interrupt()
			<-r.Context().Done()
		}})
		f.on("DELETE /rpc/formations/hello", reply{status: 200, body: `{"data":{}}`})
		s := newSession(t, f)
		if code := s.run(ctx, "deploy", dir, "--no-stream"); code != exitInterrupted {
			t.Errorf("%s: exit code %d, want 130", current, code)
		}
		if did := strings.Contains(f.said(), "DELETE"); did != removed {
			t.Errorf("%s: removed %v, want %v: %s", current, did, removed, s.er.String())
		}
	}
}

// sumOf returns the SHA-256 of the bundle of a directory.
func sumOf(t *testing.T, dir string) string {
	t.Helper()
	a := (&session{}).app(io.Discard, io.Discard)
	b, err := a.openBundle(t.Context(), dir, keepsName(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	return b.sum
}

func TestHigher_OrdersVersions(t *testing.T) {
	t.Parallel()
	ascending := []string{
		"0.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
		"1.0.0", "1.0.1", "1.2", "1.10", "2.0.0", "10.0.0", "99999999999999999999999.0", "next",
	}
	for i, low := range ascending {
		for j, high := range ascending {
			if got, want := higher(high, low), j > i; got != want {
				t.Errorf("higher(%q, %q) = %v", high, low, got)
			}
		}
	}
	for _, same := range [][2]string{{"1", "1.0.0"}, {"v1.2.0", "1.2"}, {"1.0.0+a", "1.0.0+b"}, {"01.2", "1.2"}} {
		if higher(same[0], same[1]) || higher(same[1], same[0]) {
			t.Errorf("%q and %q are not the same", same[0], same[1])
		}
	}
	if !higher("0.0.1", "") || !higher("2026-02-01", "2026-01-31") {
		t.Error("a version nobody gave, or dates")
	}
}

func FuzzHigher_NeverOrdersBothWays(f *testing.F) {
	f.Add("1.0.0-a.1", "1..0-")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != "" && b != "" && higher(a, b) && higher(b, a) {
			t.Errorf("%q and %q are each higher than the other", a, b)
		}
	})
}
