package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/draft"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// The bounds of a draft's process. An author waits for each change, so open
// work gets less time than a deployed formation's; a process whose supervisor is
// gone belongs to nobody.
const (
	devDrain  = 5 * time.Second
	devOrphan = time.Minute
	devStop   = 30 * time.Second
)

// DevRequest names what to run: a directory, or the draft of a formation.
type DevRequest struct {
	// Path is absolute. It is run in place, and nothing is written to it.
	Path string
	// FormationID names the draft when Path is empty; beside Path it must be the
	// id in the manifest.
	FormationID string
}

// Dev is a draft that runs. Beside an error ID is set when it is known.
type Dev struct {
	ID   string
	Port int
}

// devPlan is what a DevRequest comes to.
type devPlan struct {
	id, dir, state string
	draft          bool // dir is the formation's draft
	manifest       *manifest.Formation
}

// dev is a process that runs a draft.
type dev struct {
	devPlan
	*formation
	// end stops the process and takes the draft out of the fleet; a second call
	// waits for the first.
	end func(ctx context.Context) error
	// close is end for callers without a context of their own.
	close func() error
}

// draftKey names a draft's process: its port, its run directory, its logs.
func draftKey(id string) string { return id + "-draft" }

// DevRun runs a directory as a draft and returns when it serves, under
// /draft/{id}/; the same id may be deployed. It is not restarted when it ends,
// and forgotten when the supervisor ends. What it remembers lies beside the
// draft, or in formations/.dev/<id> for an author's own directory.
//
// The errors are 400 for what cannot be run, 404 DraftNotFound, 409
// DraftRunning, and 500 when it does not come up; nothing is left of it then.
// The operation outlives ctx; DevStop ends it.
func (s *Service) DevRun(ctx context.Context, req DevRequest, sink Sink) (Dev, error) {
	t := &track{sink: sink, stage: StageValidating}
	t.enter(StageValidating, "checking the formation")
	plan, err := s.planDev(req)
	if err != nil {
		return Dev{ID: plan.id}, t.failure(err, RollbackNotNeeded)
	}
	if err := s.dropEndedDev(ctx, plan.id); err != nil {
		return Dev{ID: plan.id}, t.failure(err, RollbackNotNeeded)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	d, err := s.joinDev(ctx, plan, cancel)
	if err != nil {
		return Dev{ID: plan.id}, t.failure(err, RollbackNotNeeded)
	}
	port, err := s.firstLaunch(ctx, d, t)
	if err == nil {
		return Dev{ID: plan.id, Port: port}, nil
	}
	if err := d.close(); err != nil {
		s.log.Error().Err(err).Str("formation", draftKey(plan.id)).Msg("a draft that failed left something behind")
		return Dev{ID: plan.id}, t.failure(err, RollbackFailed)
	}
	return Dev{ID: plan.id}, t.failure(err, RollbackDone)
}

// firstLaunch is launchDev, until somebody ends the draft.
func (s *Service) firstLaunch(ctx context.Context, d *dev, t *track) (int, error) {
	defer func() { <-d.ops }()
	port, err := s.launchDev(ctx, d, t)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	d.setCancel(nil)
	d.came()
	return port, err
}

// planDev checks what a request names, without making anything.
func (s *Service) planDev(req DevRequest) (devPlan, error) {
	p := devPlan{id: req.FormationID}
	switch {
	case req.Path != "":
		p.dir = filepath.Clean(req.Path)
		if !filepath.IsAbs(req.Path) {
			return p, fault.Errorf(fault.Invalid, "ValidationError", "path %q is relative; it must be absolute", req.Path)
		}
		if info, err := os.Stat(p.dir); err != nil || !info.IsDir() {
			return p, fault.Errorf(fault.Invalid, "ValidationError", "path %q is no directory of the server", req.Path)
		}
	case req.FormationID == "":
		return p, fault.New(fault.Invalid, "ValidationError", "path or formation_id is missing; name a directory or a formation with a draft")
	default:
		if err := checkDraftID(req.FormationID); err != nil {
			return p, err
		}
		p.dir, p.draft = s.cfg.Dirs.draft(req.FormationID), true
		if !draft.Exists(p.dir) {
			return p, fault.Errorf(fault.NotFound, "DraftNotFound", "Formation '%s' has no draft", req.FormationID)
		}
	}
	m, _, err := manifest.Load(p.dir)
	if err != nil {
		return p, parseError(err)
	}
	if p.id != "" && p.id != m.ID {
		return p, fault.Errorf(fault.Invalid, "IDMismatch", "the manifest says id %q and the request %q; they must be the same", m.ID, p.id)
	}
	p.id, p.manifest = m.ID, m
	p.state = s.cfg.Dirs.devState(p.id)
	if p.draft {
		p.state = s.cfg.Dirs.draftState(p.id)
	}
	return p, nil
}

// joinDev makes a member of the drafts that run; it holds the member's
// operation, which cancel ends.
func (s *Service) joinDev(ctx context.Context, p devPlan, cancel context.CancelCauseFunc) (*dev, error) {
	f := &formation{id: p.id, ops: make(chan struct{}, 1), changed: make(chan struct{}), coming: true, cancel: cancel}
	f.ops <- struct{}{}
	cfg := s.cfg.Manager
	cfg.Log = s.log.With().Str("formation", draftKey(p.id)).Logger()
	cfg.Policy.Max = 1 // its author looks at it: no restart
	cfg.RestartCount = 0
	cfg.Notify = func(e process.Event) {
		s.log.Info().Str("formation", draftKey(p.id)).Str("event", string(e.Kind)).Str("reason", e.Exit.Reason).Msg("draft")
		f.wake()
	}
	f.mgr = process.NewManager(cfg)
	d := &dev{devPlan: p, formation: f}
	d.end = func(ctx context.Context) error { return s.endDev(ctx, d) }
	d.close = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devStop)
		defer cancel()
		return d.end(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return nil, errShuttingDown()
	case s.devs[p.id] != nil:
		return nil, fault.Errorf(fault.Conflict, "DraftRunning", "A draft of '%s' is running already; stop it first", p.id)
	case s.fleet[draftKey(p.id)] != nil:
		return nil, fault.Errorf(fault.Conflict, "DraftRunning", "a formation '%s' is deployed and has the name of this draft's process", draftKey(p.id))
	case len(s.devs) >= s.cfg.MaxFormations:
		return nil, fault.Errorf(fault.Failed, "PortAllocationError",
			"this server runs at most %d drafts (formations.max_formations); stop one first", s.cfg.MaxFormations)
	}
	if s.devs == nil {
		s.devs = make(map[string]*dev)
	}
	s.devs[p.id] = d
	return d, nil
}

// takenByDraft tells whether a draft's process has the name id; s.mu is held.
func (s *Service) takenByDraft(id string) bool {
	of, ok := strings.CutSuffix(id, "-draft")
	return ok && s.devs[of] != nil
}

// launchDev starts the process and returns its port.
func (s *Service) launchDev(ctx context.Context, d *dev, t *track) (int, error) {
	t.enter(StageResolving, "looking for the runtime")
	if err := s.resolveRuntime(); err != nil {
		return 0, ours(err)
	}
	if err := os.MkdirAll(d.state, 0o700); err != nil {
		return 0, s.diskError("DirectoryError", "the draft's state directory cannot be made", err)
	}
	key := draftKey(d.devPlan.id)
	socket, err := s.cfg.Ports.Lease(key)
	if err != nil {
		return 0, err
	}
	d.setSocket(socket)
	spec, err := s.devSpec(d)
	if err != nil {
		return 0, ours(err)
	}
	if err := s.markDraft(spec.RunDir, draftMark{ID: d.devPlan.id, Port: socket.Port(), Dir: spec.Dir}); err != nil {
		return 0, err
	}
	// An author reads what this run says; a rotation may have kept parts of others.
	if err := s.cfg.Dirs.discardDraftLogs(d.devPlan.id); err != nil {
		return 0, s.diskError("DirectoryError", "the logs of the draft's last run cannot be removed", err)
	}
	if err := d.mgr.Start(ctx, spec, t.launch); err != nil {
		return 0, devError(err)
	}
	return socket.Port(), nil
}

// devSpec says how to run the draft. Its init command runs at each start, since
// nothing tells which of its files have changed.
func (s *Service) devSpec(d *dev) (process.Spec, error) {
	spec, err := s.spec(d.formation, "")
	if err != nil {
		return spec, err
	}
	key := draftKey(d.devPlan.id)
	spec.Dir, spec.StateDir, spec.RunDir = d.dir, d.state, s.cfg.Dirs.run(key)
	spec.OutLog, spec.ErrLog = s.cfg.Dirs.outLog(key), s.cfg.Dirs.errLog(key)
	spec.ReadyTimeout, spec.DrainTimeout, spec.OrphanTimeout = 0, devDrain, devOrphan // 0 is 300 s
	spec.Init, spec.InitTimeout = d.manifest.Init, s.cfg.InitTimeout
	spec.Env = slices.Clone(spec.Env)
	for i, v := range spec.Env {
		if strings.HasPrefix(v, "HOME=") {
			spec.Env[i] = "HOME=" + d.state
		}
	}
	// The author's own key opens the author's own secrets, whatever key the
	// server keeps for the formation of that id.
	if _, err := os.Lstat(filepath.Join(d.dir, ".key")); err == nil {
		spec.Env = slices.DeleteFunc(spec.Env, func(v string) bool { return strings.HasPrefix(v, envSecretsKey+"=") })
	}
	return s.guardDev(spec)
}

// guardDev gives a draft's process the limits of its formation, and a cgroup of
// its own beside that of what is deployed.
func (s *Service) guardDev(spec process.Spec) (process.Spec, error) {
	guarded := spec
	guarded.ID = draftKey(spec.ID)
	var err error
	spec.Guard, err = s.guard(spec.ID, guarded)
	return spec, err
}

// devError makes a failed start 500, with its own name.
func devError(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.Invalid {
		c := *f
		c.Kind = fault.Failed
		return &c
	}
	return err
}

// endDev stops the process and frees what it had; a start in progress is given
// up.
func (s *Service) endDev(ctx context.Context, d *dev) error {
	d.mu.Lock()
	if d.cancel != nil {
		d.cancel(fault.Errorf(fault.Failed, "HealthCheckFailed", "The draft of '%s' was stopped before it was ready", d.devPlan.id))
	}
	d.mu.Unlock()
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer func() { <-d.ops }()
	d.mu.Lock()
	gone := d.gone
	d.gone = true
	d.mu.Unlock()
	if gone {
		return nil
	}
	key := draftKey(d.devPlan.id)
	errs := []error{d.mgr.Stop(ctx), s.cfg.Ports.Release(key), os.RemoveAll(s.cfg.Dirs.run(key))}
	d.mgr.Close()
	s.mu.Lock()
	delete(s.devs, d.devPlan.id)
	s.mu.Unlock()
	d.wake()
	return errors.Join(errs...)
}

// devOf returns the draft that runs, nil when none does.
func (s *Service) devOf(id string) *dev {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.devs[id]
}

// DevStop ends the draft of id that runs: 404 DraftNotFound when none does. A
// start in progress is given up.
func (s *Service) DevStop(ctx context.Context, id string) error {
	d := s.devOf(id)
	if d == nil {
		return fault.Errorf(fault.NotFound, "DraftNotFound", "No draft of '%s' is running", id)
	}
	if err := d.end(context.WithoutCancel(ctx)); err != nil {
		return fault.Wrap(fault.Failed, "StopError", "the draft of '"+id+"' could not be stopped", err)
	}
	return nil
}

// dropEndedDev forgets a draft whose process has ended by itself: it was kept
// so that requests learn what happened.
func (s *Service) dropEndedDev(ctx context.Context, id string) error {
	d := s.devOf(id)
	if d == nil || d.isComing() || d.mgr.Snapshot().Status != process.StatusCrashed {
		return nil
	}
	if err := d.end(ctx); err != nil {
		return fmt.Errorf("end the draft that was running before: %w", err)
	}
	return nil
}

// endDevOf ends the process that runs the draft directory of id; one that runs
// an author's own directory goes on.
func (s *Service) endDevOf(ctx context.Context, id string) error {
	if d := s.devOf(id); d != nil && d.draft {
		return d.end(ctx)
	}
	return nil
}

// leaveDraft is removeDraft for a formation whose directory is about to go as a
// whole.
func (s *Service) leaveDraft(ctx context.Context, id string) error {
	if err := s.endDevOf(ctx, id); err != nil {
		return fmt.Errorf("end the process that runs the draft: %w", err)
	}
	if s.devOf(id) != nil {
		return nil // an author's own directory, whose logs are still written
	}
	return s.cfg.Dirs.discardDraftLogs(id)
}

// endDevs ends every draft that runs. No further one begins: the door is closed.
func (s *Service) endDevs() error {
	s.mu.Lock()
	all := make([]*dev, 0, len(s.devs))
	for _, d := range s.devs {
		all = append(all, d)
	}
	s.mu.Unlock()
	errs := make(chan error, len(all))
	for _, d := range all {
		go func() { errs <- d.close() }()
	}
	var joined []error
	for range all {
		joined = append(joined, <-errs)
	}
	return errors.Join(joined...)
}

// DraftTarget returns where requests for the draft of id go, as Target does for
// what is deployed: 404 FormationNotFound, 503 FormationUnavailable.
func (s *Service) DraftTarget(ctx context.Context, id string) (Target, error) {
	d := s.devOf(id)
	if d == nil {
		return Target{}, fault.Errorf(fault.NotFound, "FormationNotFound", "No draft of formation '%s' is running", id)
	}
	return d.await(ctx)
}
