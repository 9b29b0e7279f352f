package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Request is a first deploy of a formation.
type Request struct {
	ID string
	// Version is what the caller said; "" leaves it to the manifest.
	Version string
	Bundle  *Bundle
}

// CheckNew tells early whether a deploy of id could begin: 400
// InvalidFormationID for a bad id, 409 ValidationError for one that is taken.
func (s *Service) CheckNew(id string) error {
	if err := manifest.CheckID(id); err != nil {
		return fault.Errorf(fault.Invalid, "InvalidFormationID", "%w", err)
	}
	if _, err := s.member(id); err == nil {
		return errExists(id)
	}
	return nil
}

// Deploy unpacks, checks, launches and records a new formation, and returns
// when it serves. A *StageError tells the stage; nothing is left then: no
// directory, no port, no row. The operation outlives ctx; Delete cancels it.
func (s *Service) Deploy(ctx context.Context, req Request, sink Sink) (View, error) {
	t := &track{sink: sink, stage: StageExtracting}
	if err := s.CheckNew(req.ID); err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	f, err := s.join(ctx, req.ID, 0, s.cfg.MaxFormations)
	if err != nil {
		return View{}, t.failure(err, RollbackNotNeeded)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	f.setCancel(cancel)
	d := &deployment{s: s, f: f, t: t, req: req}
	if err := d.run(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		// The undoing must not be cut short by what ended the deploy.
		if uerr := d.undo(context.WithoutCancel(ctx)); uerr != nil {
			s.log.Error().Err(uerr).Str("formation", req.ID).Msg("a failed deploy left something behind")
			return View{}, t.failure(err, RollbackFailed)
		}
		return View{}, t.failure(err, RollbackDone)
	}
	f.setCancel(nil)
	f.came()
	<-f.ops
	return s.Get(context.WithoutCancel(ctx), req.ID)
}

func (f *formation) setCancel(cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel = cancel
}

// deployment is one deploy in progress: each step that makes something pushes
// the function that takes it back.
type deployment struct {
	s       *Service
	f       *formation
	t       *track
	req     Request
	stage   string // the staging directory
	checked checked
	undos   []func(context.Context) error
}

func (d *deployment) run(ctx context.Context) error {
	d.push(func(context.Context) error { d.s.leave(d.f); return nil })
	for _, step := range []func(context.Context) error{d.unpack, d.check, d.resolve, d.record, d.publish, d.launch, d.commit} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *deployment) push(undo func(context.Context) error) { d.undos = append(d.undos, undo) }

// undo takes back all steps, the last one first, and goes on after an error.
func (d *deployment) undo(ctx context.Context) error {
	var errs []error
	for _, undo := range slices.Backward(d.undos) {
		errs = append(errs, undo(ctx))
	}
	return errors.Join(errs...)
}

// unpack lays the formation's directory out beside the others, invisible.
func (d *deployment) unpack(ctx context.Context) error {
	d.t.enter(StageExtracting, "unpacking the bundle")
	d.stage = fresh(d.s.cfg.Dirs.staging(), d.req.ID)
	d.push(func(context.Context) error { return os.RemoveAll(d.stage) })
	for _, dir := range []string{d.stage, filepath.Join(d.stage, "versions"), filepath.Join(d.stage, "state")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return d.s.diskError("DirectoryError", "the formation's directory cannot be made", err)
		}
	}
	return d.s.extract(ctx, d.req.Bundle, filepath.Join(d.stage, firstDir))
}

var versionShape = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)

// check reads the manifest and compares it with what the caller said.
func (d *deployment) check(context.Context) (err error) {
	d.t.enter(StageValidating, "checking the formation")
	d.checked, err = check(filepath.Join(d.stage, firstDir), d.req.ID, d.req.Version)
	d.t.version = d.checked.version
	return err
}

// checked is what the files of a version say.
type checked struct {
	manifest *manifest.Formation
	version  string // semantic
}

// check reads the manifest in dir; id and version are what the caller said.
func check(dir, id, version string) (checked, error) {
	m, _, err := manifest.Load(dir)
	if err != nil {
		return checked{}, parseError(err)
	}
	if m.ID != id {
		return checked{}, fault.Errorf(fault.Invalid, "IDMismatch",
			"the manifest says id %q and the request %q; they must be the same", m.ID, id)
	}
	c := checked{manifest: m, version: version}
	switch {
	case version == "":
		c.version = m.Version
	case !versionShape.MatchString(version):
		return checked{}, fault.Errorf(fault.Invalid, "ValidationError", "X-Formation-Version %q is no version; write it like 1.4.0", version)
	case m.Version != "" && m.Version != version:
		return checked{}, fault.Errorf(fault.Invalid, "VersionMismatch",
			"the manifest says version %q and the request %q; they must be the same, or one of them absent", m.Version, version)
	}
	if c.version == "" {
		c.version = manifest.DefaultVersion
	}
	return c, checkRuntime(m.Raw["svc_runtime"])
}

func (d *deployment) resolve(context.Context) error {
	d.t.enter(StageResolving, "looking for the runtime")
	return d.s.resolveRuntime()
}

// record leases the port and writes the rows.
func (d *deployment) record(ctx context.Context) error {
	socket, err := d.s.cfg.Ports.Lease(d.req.ID)
	if err != nil {
		return err
	}
	d.push(func(context.Context) error { return d.s.cfg.Ports.Release(d.req.ID) })
	d.f.setSocket(socket)
	if err := settle(d.stage); err != nil {
		return d.s.diskError("DirectoryError", "the formation's files cannot be stored", err)
	}
	err = d.s.cfg.Registry.Begin(ctx, registry.NewFormation{
		ID: d.req.ID, Name: d.checked.manifest.Name, Port: socket.Port(), Semantic: d.checked.version, SHA256: d.req.Bundle.SHA256(),
		Dir: firstDir, Serial: firstVersion,
	})
	if err != nil {
		return d.s.recordError(err)
	}
	d.push(func(ctx context.Context) error { return d.s.cfg.Registry.Delete(ctx, d.req.ID) })
	return nil
}

// publish makes the formation's directory visible.
func (d *deployment) publish(ctx context.Context) error {
	if err := d.s.place(ctx, d.stage, d.req.ID); err != nil {
		return err
	}
	d.push(func(context.Context) error { return d.s.cfg.Dirs.discardDeployed(d.req.ID) })
	if err := syncDir(d.s.cfg.Dirs.Formations); err != nil {
		return d.s.diskError("MoveError", "the formation's directory cannot be moved into place", err)
	}
	return nil
}

func (d *deployment) launch(ctx context.Context) error {
	spec, err := d.s.spec(d.f, firstDir)
	if err != nil {
		return err
	}
	spec.FreshLogs = true
	spec.Init, spec.InitTimeout = d.checked.manifest.Init, d.s.cfg.InitTimeout
	spec.NotReady = fault.Invalid // a deploy that is not ready is the bundle's fault: 400
	d.push(d.f.mgr.Stop)
	return d.f.mgr.Start(ctx, spec, d.t.launch)
}

func (d *deployment) commit(ctx context.Context) error {
	if err := d.s.cfg.Registry.MarkInit(ctx, d.req.ID, firstVersion); err != nil {
		return d.s.recordError(err)
	}
	return d.s.recordError(d.s.cfg.Registry.Commit(ctx, d.req.ID, firstVersion))
}

// parseError keeps the faults of the files and names any other error.
func parseError(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.Wrap(fault.Invalid, "ParseError", "the formation cannot be read", fmt.Errorf("read formation: %w", err))
}
