package turn_test

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/formation/turn"
)

func TestBegin_WhatBeginsNoTurnIsForgotten(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", say("hi"), options{hub: telemetry.New(telemetry.Config{})})
	wait(t, begin(t, p, turn.Request{ID: "r", SessionID: "s", IdempotencyKey: "k"}))
	const large, times = 1 << 20, 200
	before := heap()
	for range times {
		session := strings.Repeat("s", large)
		if h := begin(t, p, turn.Request{SessionID: session, IdempotencyKey: "k"}); !h.Replayed {
			t.Fatal("the key is not known")
		}
		if _, err := p.Begin(t.Context(), turn.Request{ID: "r", UserID: "u1", SessionID: session, Message: "hello"}); err == nil {
			t.Fatal("the id is not in use")
		}
	}
	if grown := heap() - before; grown > times*large/2 {
		t.Errorf("%d repeated requests left %d bytes", 2*times, grown)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestStream_AReaderThatLeavesAgainHasTheWholeGraceAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	synctest.Test(t, func(t *testing.T) {
		p := start(t, path, "a", handler(func(ctx context.Context, _ overlord.Input, _ chat.Sink) (chat.Answer, error) {
			<-ctx.Done()
			return chat.Answer{}, context.Cause(ctx)
		}), options{grace: 5 * time.Second, noJobs: true})
		h := begin(t, p, turn.Request{Stream: true, OnDisconnect: "cancel"})
		read := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			_ = h.Frames(ctx, 0, func([]turn.Frame) error { return nil })
		}
		read(time.Second)
		gone := time.Now()
		<-time.After(3 * time.Second)
		read(time.Second) // it leaves one second before the first grace is over
		<-time.After(time.Until(gone.Add(7 * time.Second)))
		if rec := record(t, p, h.ID); rec.Ended() {
			t.Errorf("it is %s after three of five seconds", rec.Status)
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		if rec := record(t, p, h.ID); rec.Status != request.Cancelled {
			t.Errorf("it is %s", rec.Status)
		}
		p.stop()
	})
}

func TestFrames_OfATurnThatHasJustEndedIsNotTakenForACutOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	synctest.Test(t, func(t *testing.T) {
		hub, release := telemetry.New(telemetry.Config{}), make(chan struct{})
		defer hub.Subscribe(0, func(e *telemetry.Event) bool {
			if e.Name == "chat.completed" { // told after the last frame is shown
				<-release
			}
			return false
		}).Close()
		p := start(t, path, "a", say("hi"), options{hub: hub, noJobs: true})
		h := begin(t, p, turn.Request{Stream: true})
		if got := frames(t, h, 0); !strings.HasPrefix(got[len(got)-1], "done ") {
			t.Errorf("frames = %q", got)
		}
		cut := make(chan bool, 1)
		go func() { cut <- h.Stopped() }()
		synctest.Wait()
		close(release)
		if <-cut {
			t.Error("its reader is sent away to come back later")
		}
		p.stop()
	})
}

func TestFrames_OfACancelledTurnEndAlsoWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	p := start(t, filepath.Join(t.TempDir(), "s.db"), "a", refuse(t), options{})
	ahead := time.Now().Add(24 * time.Hour)
	if err := p.db.Write(t.Context(), func(tx *store.Tx) error {
		if _, err := request.Accept(tx, request.Record{
			ID: "r", UserID: "u1", SessionID: "s", Status: request.Processing, Mode: request.ModeStream, LaunchID: "dead", CreatedAt: ahead,
		}, nil); err != nil {
			return err
		}
		_, err := request.Finish(tx, request.End{ID: "r", Status: request.Cancelled, At: ahead})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := find(t, p, "r").Frames(ctx, 0, func([]turn.Frame) error { return nil }); err != nil {
		t.Errorf("after a minute: %v", err)
	}
}

func TestPurge_ComesSoonAfterTheStartAlsoOfAProcessThatDoesNotLastAnHour(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	synctest.Test(t, func(t *testing.T) {
		p := start(t, path, "a", say("hi"), options{noJobs: true})
		h := begin(t, p, turn.Request{})
		wait(t, h)
		<-time.After(2 * time.Hour) // results are kept for one
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		if err := p.Purge(ctx); err != nil {
			t.Error(err)
		}
		if _, err := request.Get(t.Context(), p.db, h.ID); err == nil {
			t.Error("it is still there")
		}
		p.stop()
	})
}
