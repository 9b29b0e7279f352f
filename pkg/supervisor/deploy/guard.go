package deploy

import (
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/limits"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// Guards is how children are held within the operator's policy.
type Guards struct {
	Policy limits.Policy
	// Home holds the directories of Dirs, ConfigDir the settings, which no child
	// may read; see limits.GuardConfig.
	Home, ConfigDir string
	// FirstPort is the first of the port range: a formation's own user is numbered
	// by its port.
	FirstPort int
}

// guard makes the guard of one spec, nil when children are not guarded. A draft
// has the limits of its formation.
func (s *Service) guard(id string, spec process.Spec) (process.Guard, error) {
	g := s.cfg.Guards
	if g == nil {
		return nil, nil
	}
	uid := 0
	if g.Policy.Users != nil && os.Geteuid() == 0 {
		var err error
		if uid, err = g.Policy.Users.UID(spec.Socket.Port() - g.FirstPort); err != nil {
			return nil, fault.Errorf(fault.Failed, "SpawnError", "formation %s has no user to run as: %w", id, err)
		}
	}
	guard, err := limits.NewGuard(limits.GuardConfig{
		ID: spec.ID, Limits: g.Policy.For(id),
		StateDir: spec.StateDir, VersionDir: spec.Dir, Foreign: s.foreign(spec.Dir), RunDir: spec.RunDir, CacheDir: s.cfg.Dirs.Cache,
		Home: g.Home, ConfigDir: g.ConfigDir, Stage: spec.Binary, UID: uid,
		CgroupRoot: g.Policy.CgroupRoot, NoLandlock: g.Policy.NoLandlock,
		Readable: g.Policy.Readable, Writable: g.Policy.Writable, Log: s.log,
	})
	if err != nil {
		return nil, fault.Errorf(fault.Failed, "SpawnError", "formation %s cannot be limited: %w", id, err)
	}
	return guard, nil
}

// foreign tells whether a directory is not the supervisor's but an author's own.
func (s *Service) foreign(dir string) bool {
	rel, err := filepath.Rel(s.cfg.Dirs.Formations, dir)
	return err != nil || !filepath.IsLocal(rel)
}
