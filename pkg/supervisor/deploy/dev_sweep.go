package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// A draft's run directory has a mark: run directories carry no names, and a
// draft is in no registry, so only the mark tells a later supervisor that a child
// which an earlier one left is a draft's.
const (
	draftMarkName = "draft.json"
	maxDraftMark  = 4 << 10
)

type draftMark struct {
	ID   string `json:"id"`
	Port int    `json:"port"`
	Dir  string `json:"dir"` // what it runs
}

// markDraft makes a draft's run directory with its mark.
func (s *Service) markDraft(runDir string, m draftMark) error {
	text, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(runDir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(runDir, draftMarkName), text, 0o600)
	}
	if err != nil {
		return s.diskError("DirectoryError", "the draft's run directory cannot be made", err)
	}
	return nil
}

// sweepDevs ends the drafts that an earlier supervisor left running when it was
// killed. A process that is not proven to be such a child is left alone.
func (s *Service) sweepDevs(ctx context.Context) error {
	marks, err := filepath.Glob(filepath.Join(s.cfg.Dirs.Run, "*", draftMarkName))
	if err != nil {
		return fmt.Errorf("look for drafts: %w", err)
	}
	var errs []error
	for _, path := range marks {
		dir := filepath.Dir(path)
		m, err := readDraftMark(path)
		if err == nil && dir == s.cfg.Dirs.run(draftKey(m.ID)) {
			err = s.sweepDev(ctx, m)
		}
		if err != nil {
			s.log.Error().Err(err).Str("dir", dir).Msg("a draft that was left running is not ended")
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

func readDraftMark(path string) (draftMark, error) {
	var m draftMark
	info, err := os.Lstat(path)
	if err != nil {
		return m, fmt.Errorf("read the mark of a draft: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxDraftMark {
		return m, fmt.Errorf("read the mark of a draft: %s is no file of ours", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return m, fmt.Errorf("read the mark of a draft: %w", err)
	}
	if json.Unmarshal(text, &m) != nil || manifest.CheckID(m.ID) != nil || !filepath.IsAbs(m.Dir) {
		return draftMark{}, nil //nolint:nilerr // half written: its process never began
	}
	return m, nil
}

// sweepDev takes the child over, if it is there and proven, and ends it.
func (s *Service) sweepDev(ctx context.Context, m draftMark) error {
	key := draftKey(m.ID)
	socket, err := s.cfg.Ports.Reserve(key, m.Port)
	if err != nil {
		return err
	}
	cfg := s.cfg.Manager
	cfg.Log = s.log.With().Str("formation", key).Logger()
	cfg.Policy.Max = 1
	cfg.Notify = nil
	mgr := process.NewManager(cfg)
	defer mgr.Close()
	dirs := s.cfg.Dirs
	spec, err := s.guardDev(process.Spec{
		ID: m.ID, Binary: s.cfg.Child.Binary, Dir: m.Dir, StateDir: dirs.draftState(m.ID), RunDir: dirs.run(key),
		OutLog: dirs.outLog(key), ErrLog: dirs.errLog(key), Socket: socket,
		DrainTimeout: devDrain, KillTimeout: s.cfg.Child.KillTimeout,
	})
	if err == nil {
		_, err = mgr.Adopt(ctx, spec)
	}
	return errors.Join(err, mgr.Stop(ctx), s.cfg.Ports.Release(key))
}
