package deploy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// UpdateRequest is a new version of a formation that is deployed already.
type UpdateRequest struct {
	ID string
	// Version is what the caller said; "" leaves it to the manifest.
	Version string
	Bundle  *Bundle
}

// Updated is the formation after an update or rollback.
type Updated struct {
	View
	PreviousVersion string // semantic, of the version that was left
}

// CheckBundle is CheckUpdate for one that has received its bundle: it is also
// 409 NoChange when that is the current one.
func (s *Service) CheckBundle(ctx context.Context, id string, b *Bundle) error {
	if err := s.CheckUpdate(id); err != nil {
		return err
	}
	row, err := s.cfg.Registry.Get(ctx, id)
	if err != nil {
		return registryError(id, err)
	}
	return noChange(row, b)
}

func noChange(row registry.Formation, b *Bundle) error {
	if row.Current != nil && row.Current.SHA256 == b.SHA256() {
		return fault.Errorf(fault.Conflict, "NoChange",
			"Formation '%s' has this very bundle already (version %s)", row.ID, row.Current.Semantic)
	}
	return nil
}

// Update launches a new version beside the one that serves and lets it take the
// port over; it returns when the old process has ended. A *StageError tells the
// stage; what served before serves then, and nothing of the new version is left.
// A formation that is stopped or crashed is started with the new version; when
// that fails, it is stopped or crashed as before. The operation outlives ctx;
// CancelUpdate, Stop and Delete end it.
func (s *Service) Update(ctx context.Context, req UpdateRequest, sink Sink) (Updated, error) {
	t := &track{sink: sink, stage: StageExtracting}
	f, ctx, end, err := s.beginChange(ctx, req.ID, "update")
	if err != nil {
		return Updated{}, t.failure(err, RollbackNotNeeded)
	}
	defer end()
	u := &updating{s: s, f: f, t: t, req: req}
	if err := u.run(ctx); err != nil {
		return Updated{}, u.takeBack(ctx, err)
	}
	s.prune(context.WithoutCancel(ctx), req.ID)
	return s.updated(ctx, req.ID, u.row.Current)
}

func (s *Service) updated(ctx context.Context, id string, left *registry.Version) (Updated, error) {
	v, err := s.Get(context.WithoutCancel(ctx), id)
	if err != nil {
		return Updated{}, err
	}
	u := Updated{View: v}
	if left != nil {
		u.PreviousVersion = left.Semantic
	}
	return u, nil
}

// updating is one update in progress. Each step that makes something pushes
// the function that takes it back.
type updating struct {
	s       *Service
	f       *formation
	t       *track
	req     UpdateRequest
	row     registry.Formation // before the update
	stage   string             // the staging directory
	checked checked
	version registry.Version // the new one, staged
	undos   []func(context.Context) error
}

func (u *updating) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{u.compare, u.unpack, u.check, u.resolve, u.record, u.publish, u.takeOver} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (u *updating) push(undo func(context.Context) error) { u.undos = append(u.undos, undo) }

// takeBack undoes a failed update and returns its error.
func (u *updating) takeBack(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if len(u.undos) == 0 {
		return u.t.failure(err, RollbackNotNeeded)
	}
	// The undoing must not be cut short by what ended the update.
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, undo := range slices.Backward(u.undos) {
		errs = append(errs, undo(ctx))
	}
	if uerr := errors.Join(errs...); uerr != nil {
		u.s.log.Error().Err(uerr).Str("formation", u.f.id).Msg("a failed update left something behind")
		return u.t.failure(err, RollbackFailed)
	}
	return u.t.failure(err, RollbackDone)
}

// compare refuses the bundle that is current.
func (u *updating) compare(ctx context.Context) error {
	u.t.enter(StageExtracting, "unpacking the bundle")
	row, err := u.s.cfg.Registry.Get(ctx, u.req.ID)
	if err != nil {
		return registryError(u.req.ID, err)
	}
	u.row = row
	return noChange(row, u.req.Bundle)
}

// unpack lays the version's directory out beside the others, invisible.
func (u *updating) unpack(ctx context.Context) error {
	u.stage = fresh(u.s.cfg.Dirs.staging(), u.req.ID)
	u.push(func(context.Context) error { return os.RemoveAll(u.stage) })
	return u.s.extract(ctx, u.req.Bundle, u.stage)
}

// extract unpacks a bundle into dst, which must not exist.
func (s *Service) extract(ctx context.Context, b *Bundle, dst string) error {
	file, err := os.Open(b.path)
	if err != nil {
		return fault.Wrap(fault.Failed, "DirectoryError", "the upload cannot be read", err)
	}
	defer file.Close()
	if _, err := archive.Extract(ctx, file, dst, s.cfg.Limits); err != nil {
		return s.unpackError(err)
	}
	return nil
}

// check reads the manifest and compares it with what the caller said.
func (u *updating) check(context.Context) (err error) {
	u.t.enter(StageValidating, "checking the new version")
	u.checked, err = check(u.stage, u.req.ID, u.req.Version)
	u.t.version = u.checked.version
	return err
}

func (u *updating) resolve(context.Context) error {
	u.t.enter(StageResolving, "looking for the runtime")
	return u.s.resolveRuntime()
}

// record writes the version's row; what is current stays so.
func (u *updating) record(ctx context.Context) error {
	if err := settle(u.stage); err != nil {
		return u.s.diskError("DirectoryError", "the version's files cannot be stored", err)
	}
	v, err := u.s.cfg.Registry.Stage(ctx, u.req.ID, registry.NewVersion{
		Semantic: u.checked.version, SHA256: u.req.Bundle.SHA256(), Name: u.checked.manifest.Name,
	})
	if err != nil {
		return u.s.recordError(err)
	}
	u.version = v
	u.push(func(ctx context.Context) error { return u.s.cfg.Registry.DropVersion(ctx, u.req.ID, v.Serial) })
	return nil
}

// publish moves the version into its place by one rename. A serial is never
// given twice, so nothing can be there.
func (u *updating) publish(context.Context) error {
	dst := filepath.Join(u.s.cfg.Dirs.formation(u.req.ID), u.version.Dir)
	if err := os.Rename(u.stage, dst); err != nil {
		return u.s.diskError("MoveError", "the version's directory cannot be moved into place", err)
	}
	u.push(func(context.Context) error { return u.s.cfg.Dirs.discardVersion(u.req.ID, u.version.Dir) })
	if err := syncDir(filepath.Dir(dst)); err != nil {
		return u.s.diskError("MoveError", "the version's directory cannot be moved into place", err)
	}
	return nil
}

// takeOver launches the version and makes it current.
func (u *updating) takeOver(ctx context.Context) error {
	spec, err := u.s.spec(u.f, u.version.Dir)
	if err != nil {
		return err
	}
	spec.NotReady = fault.Invalid // an update that is not ready is the bundle's fault: 400
	spec.Init, spec.InitTimeout = u.checked.manifest.Init, u.s.cfg.InitTimeout
	return u.s.handOver(ctx, handover{
		f: u.f, t: u.t, spec: spec, spawning: StageSpawningStaging, stopping: StageStoppingOld, version: u.version,
	})
}
