package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/fault"
)

// forgetAfter is how long a failed load is remembered: calls within it get the
// same error at once, and the hub is not asked each time.
const forgetAfter = 30 * time.Second

// models are the models in memory, the most used of late.
type models struct {
	cfg    Config
	server *server
	ctx    context.Context //nolint:containedctx // of the loads, which no call owns; ends with close
	cancel context.CancelFunc
	loads  sync.WaitGroup

	mu  sync.Mutex
	all map[string]*loaded
}

// loaded is one model, or the attempt to get it.
type loaded struct {
	ref   hub.Ref
	ready chan struct{} // closed when model or err is set

	model  *model.Model
	commit string
	err    error
	failed time.Time

	mu    sync.Mutex // guards step, which is read while it is fetched
	step  hub.Step
	began time.Time

	refs int // calls that use it; guarded by models.mu, as used
	used time.Time
}

func newModels(ctx context.Context, cfg Config, s *server) *models {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &models{cfg: cfg, server: s, ctx: ctx, cancel: cancel, all: map[string]*loaded{}}
}

// get returns the model, loading it when it isn't in memory. Those who ask for a
// model that is coming wait until Config.Patience after the first of them: the
// load goes on, and a later call finds it.
func (m *models) get(ctx context.Context, ref hub.Ref) (*loaded, error) {
	l := m.entry(ref)
	if err := m.await(ctx, l); err != nil {
		m.release(l)
		return nil, err
	}
	return l, nil
}

func (m *models) await(ctx context.Context, l *loaded) error {
	if !l.over() {
		timer := time.NewTimer(time.Until(l.began.Add(m.cfg.Patience)))
		defer timer.Stop()
		select {
		case <-l.ready:
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for embedding model %s: %w", l.ref, context.Cause(ctx))
		}
	}
	if !l.over() {
		return fault.New(fault.Unavailable, embedder.NameLoading, l.progress())
	}
	return l.err
}

// entry finds or makes the entry of a model and takes it into use.
func (m *models) entry(ref hub.Ref) *loaded {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := ref.String()
	l := m.all[key]
	if l != nil && l.over() && l.err != nil && time.Since(l.failed) > forgetAfter {
		delete(m.all, key)
		l = nil
	}
	if l == nil {
		l = &loaded{ref: ref, ready: make(chan struct{}), began: time.Now()}
		m.all[key] = l
		m.loads.Add(1)
		go m.load(l)
	}
	l.refs++
	l.used = time.Now()
	return l
}

// over tells that a load has ended, well or not.
func (l *loaded) over() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

func (m *models) release(l *loaded) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.refs--
}

// load fetches and loads one model.
func (m *models) load(l *loaded) {
	defer m.loads.Done()
	defer m.server.work()()
	defer close(l.ready)
	l.err = m.try(l)
	if l.err != nil {
		l.failed = time.Now()
		m.cfg.Log.Warn().Err(l.err).Stringer("model", l.ref).Msg("an embedding model doesn't load")
		return
	}
	m.cfg.Log.Info().Stringer("model", l.ref).Str("commit", l.commit).Int("dimension", l.model.Dimension()).Dur("took", time.Since(l.began)).Msg("embedding model loaded")
	m.evict(l)
}

func (m *models) try(l *loaded) error {
	s, err := m.cfg.Hub.Fetch(m.ctx, l.ref, func(step hub.Step) {
		l.mu.Lock()
		l.step = step
		l.mu.Unlock()
	})
	if err != nil {
		return err
	}
	l.commit = s.Commit
	l.model, err = model.Load(m.ctx, model.Config{ID: l.ref.String(), Dir: s.Dir, ONNX: s.ONNX, Engine: m.cfg.Engine})
	return err
}

// progress says how far a load is.
func (l *loaded) progress() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const mebi = 1 << 20
	switch s := l.step; {
	case s.Waiting:
		return fmt.Sprintf("embedding model %s is being fetched by another process; try again", l.ref)
	case s.Total > 0 && s.Done < s.Total:
		return fmt.Sprintf("embedding model %s is being fetched, %.1f of %.1f MiB; try again", l.ref, float64(s.Done)/mebi, float64(s.Total)/mebi)
	}
	return fmt.Sprintf("embedding model %s is being loaded; try again", l.ref)
}

// evict makes room for a new model: those used longest ago go, but none that is
// in use.
func (m *models) evict(fresh *loaded) {
	m.mu.Lock()
	var gone []*loaded
	for {
		count := 0
		var oldest *loaded
		for _, l := range m.all {
			if l != fresh && (!l.over() || l.err != nil) {
				continue // not in memory
			}
			count++
			if l != fresh && l.refs == 0 && (oldest == nil || l.used.Before(oldest.used)) {
				oldest = l
			}
		}
		if count <= m.cfg.MaxModels || oldest == nil {
			break
		}
		delete(m.all, oldest.ref.String())
		gone = append(gone, oldest)
	}
	m.mu.Unlock()
	for _, l := range gone {
		m.cfg.Log.Info().Stringer("model", l.ref).Msg("embedding model dropped for another")
		_ = l.model.Close()
	}
}

// close ends the loads and frees all models. No call may run or follow.
func (m *models) close() {
	m.cancel()
	m.loads.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.all {
		if l.err == nil && l.refs == 0 {
			_ = l.model.Close()
		}
	}
	m.all = map[string]*loaded{}
}
