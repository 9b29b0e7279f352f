package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/supervisor/auth"
)

// keyPoll is how often the settings file is looked at for new keys.
const keyPoll = time.Second

// watchKeys hands auth.keys to set whenever config.yaml has changed since the
// settings were read from it, until ctx ends. A file with a fault changes nothing: the keys that worked go on to.
func (s *Supervisor) watchKeys(ctx context.Context, set func([]auth.Key) error) {
	path := filepath.Join(s.cfg.Home, configName)
	seen := s.cfg.read
	tick := time.NewTicker(keyPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := stampOf(path)
		if now == seen || now == (stamp{}) {
			continue
		}
		seen = now
		cfg, err := LoadConfig(s.cfg.Home, nil)
		if err == nil {
			s.cfg.hideKeys(cfg.Auth.Keys)
			err = set(cfg.Auth.Keys)
		}
		if err != nil {
			s.log.Error().Err(err).Msg("the changed settings are not used; the old keys stay")
			continue
		}
		s.log.Info().Int("keys", len(cfg.Auth.Keys)).Msg("auth.keys re-read")
	}
}

// stamp tells one state of a file from another; an editor that renames a new
// file into place changes the inode even within one tick of the clock.
type stamp struct {
	mtime time.Time
	size  int64
	inode uint64
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	st := stamp{mtime: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.inode = sys.Ino
	}
	return st
}
