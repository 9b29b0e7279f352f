package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func logEvent(id, line string) string {
	return fmt.Sprintf("event: log\ndata: {\"formation_id\":%q,\"line\":%q,\"stream\":\"stdout\"}\n\n", id, line)
}

// open answers with a stream of log lines that stays open.
func open(id, line string) reply {
	return reply{do: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, logEvent(id, line)) //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}}
}

const emptyLogs = `{"data":{"logs":{"stdout":null,"stderr":null}}}`

// A reload of the supervisor breaks every stream; the person must not notice
// more than a word.
func TestFollow_TakesABrokenStreamUpAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("GET /rpc/formations", reply{status: 200, body: `{"data":{"formations":[{"id":"hello"}]}}`})
	f.on("GET /rpc/formations/hello/logs?lines=100&stream=all", reply{status: 200, body: emptyLogs})
	var times atomic.Int32
	f.on("GET /rpc/formations/hello/logs?follow=true&stream=all", reply{do: func(w http.ResponseWriter, r *http.Request) {
		if times.Add(1) == 1 {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, logEvent("hello", "before")) //nolint:errcheck // the client sees it
			return
		}
		open("hello", "after").do(w, r)
	}})
	out := watch("after")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan int, 1)
	errs := watch("none")
	go func() { ended <- run(ctx, newSession(t, f).app(out, errs), []string{"logs", "-f", "hello"}) }()
	wait(t, out.seen)
	interrupt()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if out.String() != "stdout | before\nstdout | after\n" || errs.String() != "the log of hello broke off and is followed again\ninterrupted\n" {
		t.Errorf("printed %q, said %q", out, errs)
	}
}

func TestFollow_AllHasWhatComesAndLosesWhatGoes(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	list := func(ids ...string) {
		var items []string
		for _, id := range ids {
			items = append(items, `{"id":"`+id+`"}`)
		}
		f.on("GET /rpc/formations", reply{status: 200, body: `{"data":{"formations":[` + strings.Join(items, ",") + `]}}`})
	}
	list("hello")
	f.on("GET /rpc/formations/hello/logs?lines=100&stream=all", reply{status: 200, body: emptyLogs})
	out, last, errs := watch("first"), watch("last"), watch("hello was deleted: its log ends here\n")
	f.on("GET /rpc/formations/hello/logs?follow=true&stream=all", reply{do: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, logEvent("hello", "last")) //nolint:errcheck // the client sees it
		w.(http.Flusher).Flush()
		select { // the two streams are read side by side
		case <-last.seen:
		case <-r.Context().Done():
		}
		list("later") // hello is deleted, another one is deployed
	}})
	f.on("GET /rpc/formations/later/logs?follow=true&stream=all", open("later", "first"))
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan int, 1)
	s := newSession(t, f)
	s.outTTY = true
	go func() { ended <- run(ctx, s.app(io.MultiWriter(out, last), errs), []string{"tail", "all", "-f"}) }()
	wait(t, out.seen)
	wait(t, errs.seen)
	interrupt()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	want := "\x1b[36mhello\x1b[0m stdout | last\n\x1b[35mlater\x1b[0m stdout | first\n"
	if out.String() != want {
		t.Errorf("printed %q, said %q", out, errs)
	}
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// wait fails the test when what it waits for does not come.
func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-c:
	case <-limit.C:
		t.Fatal("it did not come")
	}
}
