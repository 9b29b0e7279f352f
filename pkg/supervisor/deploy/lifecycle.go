package deploy

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Start launches a formation that is stopped or crashed and returns when it
// serves: 409 AlreadyRunning for another one. A *StageError tells the stage.
func (s *Service) Start(ctx context.Context, id string, sink Sink) (View, error) {
	t := &track{sink: sink, stage: StageValidating}
	f, err := s.member(id)
	if err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	// Asked before waiting: what is in progress answers the question.
	if err := f.settledVersion(); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	if err := f.mayStart(); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	f, done, err := s.operate(ctx, id)
	if err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	defer done()
	ctx = context.WithoutCancel(ctx)
	if err := f.mayStart(); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	if err := s.launchNow(ctx, f, t, f.mgr.Start); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	return s.Get(ctx, id)
}

// Restart stops a formation, with its port open, and launches it again; a
// stopped one is started. The restart count rises by one.
func (s *Service) Restart(ctx context.Context, id string, sink Sink) (View, error) {
	t := &track{sink: sink, stage: StageStopping}
	f, err := s.member(id)
	if err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	if err := f.settledVersion(); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	f, done, err := s.operate(ctx, id)
	if err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	defer done()
	ctx = context.WithoutCancel(ctx)
	if err := s.launchNow(ctx, f, t, f.mgr.Restart); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	return s.Get(ctx, id)
}

func (f *formation) mayStart() error {
	switch f.mgr.Snapshot().Status {
	case process.StatusStopped, process.StatusCrashed, process.StatusStopping:
		if !f.isComing() {
			return nil
		}
	case process.StatusStarting, process.StatusRunning, process.StatusRestarting:
	}
	return fault.Errorf(fault.Conflict, "AlreadyRunning", "Formation '%s' is already running", f.id)
}

// launchNow is launch for an operator, until the supervisor stops: what the
// manager is told to stop before it is told to start would live on.
func (s *Service) launchNow(ctx context.Context, f *formation, t *track,
	run func(context.Context, process.Spec, process.Progress) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.setLaunch(cancel)
	defer f.setLaunch(nil)
	if s.goingDown() { // before there was anything to cancel
		return errShuttingDown()
	}
	err := s.launch(ctx, f, t, run)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

func (f *formation) setLaunch(cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.launch = cancel
}

// launch checks the current version and lets run (Start or Restart of the
// manager) launch it; then it records that the formation should run.
func (s *Service) launch(ctx context.Context, f *formation, t *track,
	run func(context.Context, process.Spec, process.Progress) error,
) error {
	row, err := s.cfg.Registry.Get(ctx, f.id)
	if err != nil {
		return registryError(f.id, err)
	}
	if row.Current == nil {
		return errNotFound(f.id)
	}
	t.version = row.Current.Semantic
	t.enter(StageValidating, "checking the formation")
	spec, err := s.spec(f, row.Current.Dir)
	if err != nil {
		return err
	}
	if _, _, err := manifest.Load(spec.Dir); err != nil {
		return ours(parseError(err))
	}
	t.enter(StageResolving, "looking for the runtime")
	if err := s.resolveRuntime(); err != nil {
		return ours(err)
	}
	if err := f.bind(); err != nil {
		return err
	}
	if err := run(ctx, spec, t.launch); err != nil {
		return ours(err)
	}
	return registryError(f.id, s.cfg.Registry.SetStarted(context.WithoutCancel(ctx), f.id))
}

// bind opens the formation's port: never another one.
func (f *formation) bind() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.socket.Bind()
}

// ours turns a fault of the bundle into one of the server: what was deployed
// was right once, so the caller of start or restart is not to blame.
func ours(err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.Invalid {
		c := *f
		c.Kind = fault.Failed
		if c.Name == "ResolveError" || c.Name == "InvalidRuntime" {
			c.Name = "SpawnError"
		}
		if c.Name == "SecretsError" {
			c.Name = "ParseError"
		}
		return &c
	}
	return err
}

// interrupt is operate for those who end the process: a start in progress is
// given up instead of waited for, and so is an update that has not taken over
// yet, whose error says that it was done to what.
func (s *Service) interrupt(ctx context.Context, id, done string) (*formation, func(), error) {
	f, err := s.member(id)
	if err != nil {
		return nil, nil, err
	}
	if f.cancelChange(fault.Errorf(fault.Conflict, "DeployConflict", "Formation '%s' was %s during its update", id, done)) != nil {
		return s.operate(ctx, id)
	}
	if f.mgr.Snapshot().Status == process.StatusStarting && !f.isComing() {
		if err := f.mgr.Stop(ctx); err != nil {
			s.log.Warn().Err(err).Str("formation", id).Msg("a start is not given up")
		}
	}
	return s.operate(ctx, id)
}

// Stop drains and stops a formation: 409 AlreadyStopped when it is. That it
// should be stopped is recorded first, so a crash in between converges to it.
func (s *Service) Stop(ctx context.Context, id string) (View, error) {
	f, done, err := s.interrupt(ctx, id, "stopped")
	if err != nil {
		return View{}, err
	}
	defer done()
	ctx = context.WithoutCancel(ctx)
	row, err := s.cfg.Registry.Get(ctx, id)
	if err != nil {
		return View{}, registryError(id, err)
	}
	if f.mgr.Snapshot().Status == process.StatusStopped && row.Desired == registry.Stopped {
		return View{}, fault.Errorf(fault.Conflict, "AlreadyStopped", "Formation '%s' is already stopped", id)
	}
	if err := s.cfg.Registry.SetDesired(ctx, id, registry.Stopped); err != nil {
		return View{}, registryError(id, err)
	}
	if err := f.mgr.Stop(ctx); err != nil {
		return View{}, fault.Wrap(fault.Failed, "StopError", "Formation '"+id+"' could not be stopped", err)
	}
	return s.Get(ctx, id)
}

// Delete stops a formation and removes it with its data; a first deploy in
// progress is cancelled and undone. For clients it is gone at once; if the
// supervisor dies meanwhile, the next one removes the rest.
func (s *Service) Delete(ctx context.Context, id string) error {
	f, err := s.member(id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	deploying := f.cancel != nil
	if deploying {
		f.cancel(fault.Errorf(fault.Conflict, "DeployConflict", "Formation '%s' was deleted during its deploy", id))
	}
	f.mu.Unlock()
	f, done, err := s.interrupt(ctx, id, "deleted")
	if deploying && fault.KindOf(err) == fault.NotFound {
		return nil // the deploy undid itself
	}
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.cfg.Registry.SetDeleting(ctx, id); err != nil {
		done()
		return registryError(id, err)
	}
	if err := s.leaveDraft(ctx, id); err != nil {
		s.log.Error().Err(err).Str("formation", id).Msg("the draft of a deleted formation is not gone")
	}
	return s.remove(ctx, f, s.cfg.Dirs.discard)
}

// remove takes f out of the fleet with all it has: discard removes its files.
// The caller holds its operation, which ends here. That the process did not stop
// well does not block; files that cannot be removed do, and are tried again at
// the next start.
func (s *Service) remove(ctx context.Context, f *formation, discard func(id string) error) error {
	defer s.leave(f)
	if err := f.mgr.Stop(ctx); err != nil {
		s.log.Error().Err(err).Str("formation", f.id).Msg("a deleted formation did not stop well")
	}
	if err := s.cfg.Ports.Release(f.id); err != nil {
		s.log.Error().Err(err).Str("formation", f.id).Msg("the port of a deleted formation is not released")
	}
	err := errors.Join(discard(f.id), ignoreMissing(os.Remove(filepath.Join(s.cfg.Dirs.Keys, f.id+".key"))))
	if err != nil {
		return fault.Wrap(fault.Failed, "CleanupError", "the files of '"+f.id+"' could not be removed", err)
	}
	return registryError(f.id, s.cfg.Registry.Delete(ctx, f.id))
}

// registryError names what the registry said about id.
func registryError(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, registry.ErrNotFound):
		return errNotFound(id)
	}
	text := "the change cannot be recorded"
	if registry.Full(err) {
		text += ": no space left on the device"
	}
	return fault.Wrap(fault.Failed, "RegisterError", text, err)
}
