package deploy

import (
	"context"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// Rollback lets a kept version take the port over, as an update does: the one
// with the given semantic version (the newest that is not current) or sha256, or
// the previous one when version is "". The one left becomes the previous one, so
// rolling back twice returns. The version's init is not repeated. The errors are
// 404 FormationNotFound and VersionNotFound, 400 NoPreviousVersion, 409
// UpdateInProgress and NoChange, 500 ParseError, SpawnError and HealthCheckFailed
// with the version from before still there.
func (s *Service) Rollback(ctx context.Context, id, version string, sink Sink) (Updated, error) {
	t := &track{sink: sink, stage: StageValidating}
	f, ctx, end, err := s.beginChange(ctx, id, "rollback")
	if err != nil {
		return Updated{}, t.failure(err, RollbackNotNeeded)
	}
	defer end()
	row, target, err := s.kept(ctx, id, version)
	if err != nil {
		return Updated{}, t.failure(err, RollbackNotNeeded)
	}
	t.version = target.Semantic
	if err := s.returnTo(ctx, f, t, target); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		done := RollbackDone
		if t.stage == StageValidating || t.stage == StageResolving {
			done = RollbackNotNeeded // nothing was launched yet
		}
		return Updated{}, t.failure(err, done)
	}
	return s.updated(ctx, id, row.Current)
}

// kept finds the version to return to.
func (s *Service) kept(ctx context.Context, id, version string) (registry.Formation, registry.Version, error) {
	row, err := s.cfg.Registry.Get(ctx, id)
	if err != nil {
		return row, registry.Version{}, registryError(id, err)
	}
	if version == "" {
		if row.Previous == nil {
			return row, registry.Version{}, fault.Errorf(fault.Invalid, "NoPreviousVersion", "Formation '%s' has no previous version", id)
		}
		return row, *row.Previous, nil
	}
	all, err := s.cfg.Registry.Versions(ctx, id)
	if err != nil {
		return row, registry.Version{}, s.recordError(err)
	}
	current := false
	for _, v := range all { // the newest first
		switch {
		case v.Semantic != version && v.SHA256 != version:
		case row.Current != nil && v.Serial == row.Current.Serial:
			current = true
		default:
			return row, v, nil
		}
	}
	if current {
		return row, registry.Version{}, fault.Errorf(fault.Conflict, "NoChange", "Formation '%s' has version %s already", id, version)
	}
	return row, registry.Version{}, fault.Errorf(fault.NotFound, "VersionNotFound", "Formation '%s' keeps no version %s", id, version)
}

// returnTo launches a kept version in the place of the current one.
func (s *Service) returnTo(ctx context.Context, f *formation, t *track, v registry.Version) error {
	t.enter(StageValidating, "checking the version")
	spec, err := s.spec(f, v.Dir)
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
	return ours(s.handOver(ctx, handover{
		f: f, t: t, spec: spec, spawning: StageSpawningPrevious, stopping: StageStoppingCurrent, version: v,
	}))
}
