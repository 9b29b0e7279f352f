package formation

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/formation/jobs"
	"github.com/agentformation/service/pkg/formation/store"
)

const (
	// backgroundLease is the name of the lease on the background work: the
	// queue of jobs and the removal of what is old.
	backgroundLease = "background"
	// leaseLook is how often a child that is to do the background work looks
	// whether the one that has it has let go.
	leaseLook = 100 * time.Millisecond
	// siblingLook is how often a child looks after its siblings while it has any.
	siblingLook = 100 * time.Millisecond
	// heartbeatEvery is how often the heart beats, well within the 35 s after
	// which a supervisor takes silence for a hang. A beat goes through the
	// store's writer, so a process that can't commit any more is seen as hung.
	heartbeatEvery = 5 * time.Second
)

// work does the background work while this child is wanted to and holds the
// lease on it.
type work struct {
	mu      sync.Mutex // guards the fields that follow
	wanted  bool
	held    bool
	changed chan struct{} // closed and replaced at every change
}

func newWork() *work { return &work{changed: make(chan struct{})} }

func (w *work) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

// want says whether this child is to do the background work.
func (w *work) want(on bool) { w.set(func() { w.wanted = on }) }

func (w *work) state() (wanted, held bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted, w.held, w.changed
}

// released waits until the lease is not held; false when ctx ends first.
func (w *work) released(ctx context.Context) bool {
	for {
		_, held, changed := w.state()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// run takes the lease whenever this child is wanted, works, and gives it back,
// until ctx ends.
func (w *work) run(ctx context.Context, p *parts) error {
	for {
		token, err := w.take(ctx, p)
		if err != nil || token == 0 {
			return err
		}
		p.log.Debug().Int64("token", token).Msg("doing the background work")
		switch err := w.tenure(ctx, p); {
		case errors.Is(err, jobs.ErrBusy):
			// What runs still may touch the store, so nobody else may begin.
			p.log.Warn().Err(err).Msg("background work is not given up yet")
		case err != nil:
			return err
		default:
			err = p.db.ReleaseLease(context.WithoutCancel(ctx), backgroundLease, token)
			if err != nil && !errors.Is(err, store.ErrFenced) {
				p.log.Warn().Err(err).Msg("give up background work")
			}
			w.set(func() { w.held = false })
		}
	}
}

// take waits until this child is wanted and has the lease; the token is 0 when
// ctx ended first.
func (w *work) take(ctx context.Context, p *parts) (token int64, err error) {
	ticker := time.NewTicker(leaseLook)
	ticker.Stop()
	for {
		wanted, _, changed := w.state()
		ticker.Stop()
		if wanted {
			token, held, err := p.db.TakeLease(ctx, backgroundLease)
			switch {
			case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrClosed):
				return 0, err
			case err != nil && ctx.Err() == nil:
				p.log.Warn().Err(err).Msg("take the background work")
			case held:
				w.set(func() { w.held = true })
				return token, nil
			}
			ticker.Reset(leaseLook)
		}
		select {
		case <-ticker.C:
		case <-changed:
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// tenure does the background work until ctx ends or it is not wanted any more.
func (w *work) tenure(ctx context.Context, p *parts) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.jobs.ReleaseOrphans(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.jobs.Run(groupCtx) })
	group.Go(func() error { return p.turns.Purge(groupCtx) })
	group.Go(func() error { return p.probes.Refresh(groupCtx) })
	group.Go(func() error {
		for {
			wanted, _, changed := w.state()
			if !wanted {
				cancel()
			}
			select {
			case <-changed:
			case <-groupCtx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

func (f *Formation) heartbeat(ctx context.Context, p *parts) error {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	sleep := newSleep()
	for {
		if err := p.db.Look(ctx); errors.Is(err, store.ErrFenced) {
			return err
		} else if err == nil {
			f.beat.Add(1)
		}
		if sleep.falls(p.turns.Counts()) {
			debug.FreeOSMemory()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// accompany looks after other launches on the same store for as long as there
// are any, and notices when one has replaced this.
func (p *parts) accompany(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.db.Fenced():
			p.log.Error().Msg("a newer launch has taken this formation over")
			return store.ErrFenced
		case <-p.db.Met():
			if err := p.withSiblings(ctx); err != nil {
				return err
			}
		}
	}
}

// withSiblings heeds what siblings signal and passes on what they record; when
// one is gone, what it left is taken over. It returns when all are.
func (p *parts) withSiblings(ctx context.Context) error {
	ticker := time.NewTicker(siblingLook)
	defer ticker.Stop()
	known := make(map[string]bool)
	for {
		n, err := p.lookAfter(ctx, known)
		switch {
		case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrClosed):
			return err
		case err != nil && ctx.Err() == nil:
			p.log.Warn().Err(err).Msg("look after the other processes of this formation")
		case err == nil && n == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.db.Fenced():
			return nil // said by accompany
		case <-ticker.C:
		}
	}
}

func (p *parts) lookAfter(ctx context.Context, known map[string]bool) (alive int, err error) {
	list, err := p.db.Survey(ctx)
	if err != nil {
		return 0, err
	}
	p.spool.Wake()
	if err := p.turns.Heed(ctx); err != nil {
		return 0, err
	}
	gone := len(known)
	for _, id := range list {
		if known[id] {
			gone--
		}
	}
	// At the first look one may be gone already that nobody knew.
	if gone > 0 || len(known) == 0 {
		if _, err := p.takeOver(ctx); err != nil {
			return 0, err
		}
	}
	clear(known)
	for _, id := range list {
		known[id] = true
	}
	return len(list), nil
}

// takeOver takes in hand what fenced launches left open.
func (p *parts) takeOver(ctx context.Context) (int, error) {
	if err := p.jobs.ReleaseOrphans(ctx); err != nil {
		return 0, err
	}
	n, err := p.turns.Recover(ctx)
	if err != nil {
		return n, err
	}
	if n > 0 {
		p.log.Info().Int("requests", n).Msg("resuming what another process left open")
	}
	return n, nil
}

// Fence implements control.Formation.
func (f *Formation) Fence(ctx context.Context, launchIDs []string) (int, error) {
	p, err := f.loaded()
	if err != nil {
		return 0, err
	}
	if err := p.db.Fence(ctx, launchIDs); err != nil {
		return 0, fmt.Errorf("fence launches: %w", err)
	}
	p.tools.sweep(f.cfg.LaunchID, launchIDs, false)
	return p.takeOver(ctx)
}
