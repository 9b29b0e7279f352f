package turn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
)

// records collects what a process logs.
type records struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// saying returns the record with a message; nil when there is none.
func (r *records) saying(message string) map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message {
			return fields
		}
	}
	return nil
}

func TestTurn_APanicEndsItAndNoOther(t *testing.T) {
	t.Parallel()
	g, log := newGated(), &records{}
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		if in.Message == "boom" {
			panic("boom")
		}
		return g.handler(ctx, in, sink)
	}), options{log: zerolog.New(log)})
	other := begin(t, p, turn.Request{SessionID: "s1"})
	<-g.begun
	bad := begin(t, p, turn.Request{Message: "boom", SessionID: "s2"})
	if _, err := bad.Wait(t.Context()); fault.KindOf(err) != fault.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("its caller gets %v", err)
	}
	if got := record(t, p, bad.ID); got.Status != request.Failed || got.ErrorCode != "INTERNAL_ERROR" {
		t.Errorf("it is %s %s", got.Status, got.ErrorCode)
	}
	if got := log.saying("a turn panicked"); got["panic"] != "boom" || got["session"] != "s2" || !strings.Contains(got["stack"].(string), "ends_test.go") {
		t.Errorf("the log says %v", got)
	}
	close(g.release)
	if got := wait(t, other); got.Response != "re: hello" {
		t.Errorf("the other turn: %+v", got)
	}
	if got := say1(t, p, "next", "hello"); got.Response != "re: hello" {
		t.Errorf("the next turn: %+v", got)
	}
}

func TestTurn_WhatIsLoggedOfItsEndNamesItsUserAndSession(t *testing.T) {
	t.Parallel()
	log := &records{}
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(context.Context, overlord.Input, chat.Sink) (chat.Answer, error) {
		return chat.Answer{}, fault.New(fault.Failed, "", "no")
	}), options{log: zerolog.New(log)})
	h := begin(t, p, turn.Request{UserID: "ann", SessionID: "s1"})
	if _, err := h.Wait(t.Context()); err == nil {
		t.Fatal("it did not fail")
	}
	got := log.saying("turn failed")
	if got["request"] != h.ID || got["user"] != "ann" || got["session"] != "s1" {
		t.Errorf("%v", got)
	}
}

func TestTurn_NoSecretIsInWhatItsUserIsToldOfAFailure(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(context.Context, overlord.Input, chat.Sink) (chat.Answer, error) {
		return chat.Answer{}, fault.New(fault.Failed, "", "the provider knows no key hush-4711")
	}), options{redact: func(text string) string { return strings.ReplaceAll(text, "hush-4711", "[gone]") }})
	h := begin(t, p, turn.Request{Stream: true})
	told := strings.Join(frames(t, h, 0), "\n") + record(t, p, h.ID).Error
	if strings.Contains(told, "hush") || strings.Count(told, "knows no key [gone]") != 2 {
		t.Error(told)
	}
}

func TestCancel_ThatComesBeforeTheEndIsStoredShowsNoAnswer(t *testing.T) {
	t.Parallel()
	g, path := newGated(), filepath.Join(t.TempDir(), "s.db")
	a := start(t, path, "a", handler(g.handler), options{})
	b := start(t, path, "b", refuse(t), options{noJobs: true}) // a does not hear what b signals
	h := begin(t, a, turn.Request{Stream: true})
	<-g.begun
	if _, err := b.Cancel(t.Context(), "u1", h.ID, false); err != nil {
		t.Fatal(err)
	}
	close(g.release)
	if reply := wait(t, h); reply.Status != request.Cancelled || reply.Response != "" {
		t.Errorf("%+v", reply)
	}
	for _, from := range []*turn.Handle{h, find(t, b, h.ID)} {
		got := frames(t, from, 0)
		want := []string{"completed: (discontinuity)", `done {"finished":true}`}
		if diff := cmp.Diff(want, got[len(got)-2:]); diff != "" {
			t.Errorf("%q\n%s", got, diff)
		}
	}
}

func TestResume_TurnsOfASessionGoOnInTheOrderTheyCame(t *testing.T) {
	t.Parallel()
	const turns = 12
	path, begun := filepath.Join(t.TempDir(), "s.db"), make(chan struct{}, 1)
	dead := start(t, path, "dead", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return chat.Answer{}, context.Cause(ctx)
	}), options{})
	var want []string
	for i := range turns {
		want = append(want, strconv.Itoa(i))
		begin(t, dead, turn.Request{SessionID: "s", Message: want[i]})
	}
	<-begun
	said := make(chan string, turns)
	start(t, path, "fresh", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		said <- in.Message
		return say("ok")(ctx, in, sink)
	}), options{fence: []string{"dead"}})
	var got []string
	for range turns {
		got = append(got, <-said)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRemote_AFailureKeepsItsKindInTheOtherProcess(t *testing.T) {
	t.Parallel()
	g := newGated()
	a, b, _ := siblings(t, handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		if _, err := g.handler(ctx, in, sink); err != nil {
			return chat.Answer{}, err
		}
		return chat.Answer{}, fault.New(fault.RateLimited, in.Message, "no more")
	}), refuse(t), options{})
	for _, code := range []string{"BUDGET_EXCEEDED", "RATE_LIMITED"} {
		h := begin(t, a, turn.Request{Message: code})
		<-g.begun
		there := find(t, b, h.ID)
		go func() { g.release <- struct{}{} }()
		_, err := there.Wait(t.Context())
		if fault.KindOf(err) != fault.RateLimited || fault.NameOf(err) != code {
			t.Errorf("%s: %v, kind %v", code, err, fault.KindOf(err))
		}
	}
}

func TestSession_EachTurnSeesTheAnswerOfTheOneBeforeInTheOrderOfTheirCalls(t *testing.T) {
	t.Parallel()
	const turns = 4 // less than the buffer holds
	begun, release := make(chan struct{}, turns), make(chan struct{})
	type seen struct {
		message string
		past    int
	}
	said := make(chan seen, turns)
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", handler(func(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
		begun <- struct{}{}
		<-release
		said <- seen{in.Message, len(in.History) / 2}
		return say("ok")(ctx, in, sink)
	}), options{})
	var want []seen
	for i := range turns {
		want = append(want, seen{strconv.Itoa(i), i})
		begin(t, p, turn.Request{SessionID: "s", Message: want[i].message})
	}
	<-begun
	close(release)
	var got []seen
	for range turns {
		got = append(got, <-said)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(seen{})); diff != "" {
		t.Error(diff)
	}
}
