package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// prune drops the versions beyond KeepVersions: the current one, the previous
// one when there is room for it, and the newest others stay. What fails is
// logged: the update is done, and the next start sweeps what is left.
func (s *Service) prune(ctx context.Context, id string) {
	row, err := s.cfg.Registry.Get(ctx, id)
	if err == nil {
		var all []registry.Version
		if all, err = s.cfg.Registry.Versions(ctx, id); err == nil {
			err = s.drop(ctx, id, surplus(all, row, s.cfg.KeepVersions))
		}
	}
	if err != nil {
		s.log.Error().Err(err).Str("formation", id).Msg("old versions are not removed")
	}
}

// surplus returns those of all, the newest first, that are not kept.
func surplus(all []registry.Version, row registry.Formation, keep int) []registry.Version {
	stays := make(map[int]bool, keep)
	for _, v := range []*registry.Version{row.Current, row.Previous} {
		if v != nil && len(stays) < keep {
			stays[v.Serial] = true
		}
	}
	var drop []registry.Version
	for _, v := range all {
		switch {
		case stays[v.Serial]:
		case len(stays) < keep:
			stays[v.Serial] = true
		default:
			drop = append(drop, v)
		}
	}
	return drop
}

// drop forgets versions, and then their files: a row without its directory
// could be rolled back to.
func (s *Service) drop(ctx context.Context, id string, versions []registry.Version) error {
	var errs []error
	for _, v := range versions {
		err := s.cfg.Registry.DropVersion(ctx, id, v.Serial)
		if err == nil {
			err = s.cfg.Dirs.discardVersion(id, v.Dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sweepVersions removes what an update that died with an earlier supervisor
// left: its row and, as soon as no process runs there any more, the directories
// that no row names. The caller holds f's operation.
func (s *Service) sweepVersions(ctx context.Context, f *formation) error {
	if _, err := s.cfg.Registry.DropStaged(ctx, f.id); err != nil {
		return err
	}
	dirs, err := s.unnamed(ctx, f.id)
	if err != nil || len(dirs) == 0 || !s.mayFollow() {
		return err
	}
	go func() {
		defer s.followers.Done()
		if f.mgr.Settled(ctx) != nil || s.goingDown() {
			return // the next start sees what lives then
		}
		for _, dir := range dirs {
			s.log.Info().Str("formation", f.id).Str("dir", dir).Msg("removing the files of a version that is not kept")
			if err := s.cfg.Dirs.discardVersion(f.id, dir); err != nil {
				s.log.Error().Err(err).Str("formation", f.id).Msg("the files of a version are not removed")
			}
		}
	}()
	return nil
}

// unnamed lists the version directories that no row names. Their names are never
// used again.
func (s *Service) unnamed(ctx context.Context, id string) ([]string, error) {
	all, err := s.cfg.Registry.Versions(ctx, id)
	if err != nil {
		return nil, err
	}
	named := make(map[string]bool, len(all))
	for _, v := range all {
		named[v.Dir] = true
	}
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dirs.formation(id), versionsDir))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var dirs []string
	for _, e := range entries {
		if dir := path.Join(versionsDir, e.Name()); !named[dir] {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// discardVersion removes a version's directory; it vanishes by one rename first.
func (d Dirs) discardVersion(id, dir string) error {
	trash := fresh(d.trash(), id)
	if err := ignoreMissing(os.Rename(filepath.Join(d.formation(id), dir), trash)); err != nil {
		return fmt.Errorf("remove version: %w", err)
	}
	return os.RemoveAll(trash)
}
