package spool_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/formation/spool"
	"github.com/agentformation/service/pkg/formation/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T) *spool.Spool {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "s.db"), LaunchID: "a", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return spool.New(db)
}

func add(t *testing.T, s *spool.Spool, action string) {
	t.Helper()
	if err := s.Add(t.Context(), spool.Record{Kind: spool.Audit, Action: action}); err != nil {
		t.Fatal(err)
	}
}

var errEnough = errors.New("enough")

// take follows until n records came.
func take(t *testing.T, s *spool.Spool, after uint64, n int) (actions []string, last uint64) {
	t.Helper()
	err := s.Follow(t.Context(), after, func(r spool.Record) error {
		if len(actions) == n {
			return errEnough // not acknowledged: it comes again
		}
		actions = append(actions, r.Action)
		last = r.Seq
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return actions, last
}

func TestFollow_WhatWasNotAcknowledgedComesAgain(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, a := range []string{"one", "two", "three"} {
		add(t, s, a)
	}
	got, last := take(t, s, 0, 2)
	if diff := cmp.Diff([]string{"one", "two"}, got); diff != "" {
		t.Fatal(diff)
	}
	add(t, s, "four")
	got, _ = take(t, s, last, 1)
	if diff := cmp.Diff([]string{"three"}, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestFollow_SeesRecordsThatComeLater(t *testing.T) {
	t.Parallel()
	s := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- s.Follow(ctx, 0, func(r spool.Record) error { got <- r.Action; return nil }) }()
	add(t, s, "late")
	if a := <-got; a != "late" {
		t.Fatalf("action = %q", a)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
