package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/draft"
	"github.com/agentformation/service/pkg/supervisor/logs"
)

// A draft lies beside the versions of its formation, or alone where no
// formation of that id is deployed.
const (
	draftDir      = "draft"
	draftStateDir = "draft-state" // what runs of that draft remember
	stateDir      = "state"
)

func (d Dirs) draft(id string) string      { return filepath.Join(d.Formations, id, draftDir) }
func (d Dirs) draftState(id string) string { return filepath.Join(d.Formations, id, draftStateDir) }

// devState is what runs of an author's own directory remember. It is kept from
// run to run and removed by nobody: the author's directory stays as it is.
// No id begins with a dot.
func (d Dirs) devState(id string) string { return filepath.Join(d.Formations, ".dev", id, stateDir) }

// version is the directory of a version; dir is as the registry has it.
func (d Dirs) version(id, dir string) string { return filepath.Join(d.Formations, id, dir) }

// drafts are the locks of the drafts' files. The zero value is ready.
type drafts struct {
	mu    sync.Mutex // guards what follows; never held while waiting
	turns map[string]*turn
	// deploying holds the drafts whose content is on its way into a version.
	deploying map[string]bool
}

// turn is the lock of one draft, while somebody holds it or waits for it.
type turn struct {
	held  chan struct{} // capacity 1
	users int
}

// lock waits for its turn on the draft of id.
func (d *drafts) lock(ctx context.Context, id string) (unlock func(), err error) {
	d.mu.Lock()
	t := d.turns[id]
	if t == nil {
		if d.turns == nil {
			d.turns = make(map[string]*turn)
		}
		t = &turn{held: make(chan struct{}, 1)}
		d.turns[id] = t
	}
	t.users++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(d.turns, id)
		}
	}
	select {
	case t.held <- struct{}{}:
		return func() { <-t.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fault.Wrap(fault.Canceled, "", "the caller left", context.Cause(ctx))
	}
}

// free is 409 DeployConflict while the draft of id is being deployed.
func (d *drafts) free(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deploying[id] {
		return fault.Errorf(fault.Conflict, "DeployConflict", "the draft of '%s' is being deployed; wait for the end", id)
	}
	return nil
}

// reserve keeps changes away from the draft of id until release.
func (d *drafts) reserve(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deploying == nil {
		d.deploying = make(map[string]bool)
	}
	d.deploying[id] = true
}

func (d *drafts) release(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.deploying, id)
}

// place makes a new formation visible: by one rename, or beside the draft that
// waits for it. Anything else that is there although the registry does not know
// the id is not ours to touch: it may be the memory of a formation whose
// registry was lost.
func (s *Service) place(ctx context.Context, stage, id string) error {
	unlock, err := s.drafts.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	dst := s.cfg.Dirs.formation(id)
	entries, err := os.ReadDir(dst)
	if errors.Is(err, os.ErrNotExist) {
		return s.placeError(os.Rename(stage, dst))
	}
	if err != nil {
		return s.placeError(err)
	}
	for _, e := range entries {
		if e.Name() != draftDir && e.Name() != draftStateDir {
			return fault.Errorf(fault.Failed, "DirectoryError",
				"%s exists, but no formation %q is registered; move the directory away or delete it", dst, id)
		}
	}
	for _, name := range []string{stateDir, versionsDir} {
		if err := os.Rename(filepath.Join(stage, name), filepath.Join(dst, name)); err != nil {
			return s.placeError(errors.Join(err, s.cfg.Dirs.discardDeployed(id)))
		}
	}
	return s.placeError(os.Remove(stage))
}

func (s *Service) placeError(err error) error {
	if err == nil {
		return nil
	}
	return s.diskError("MoveError", "the formation's directory cannot be moved into place", err)
}

// discardDeployed removes what a deploy made and leaves the draft from which it
// may have come. Without a draft it is discard.
func (d Dirs) discardDeployed(id string) error {
	if !draft.Exists(d.draft(id)) {
		return d.discard(id)
	}
	errs := []error{d.discardOwn(id)}
	for _, name := range []string{versionsDir, stateDir} {
		errs = append(errs, d.discardPart(id, name))
	}
	return errors.Join(errs...)
}

// discardDraft removes the draft and what its runs remembered, and the
// formation's directory when nothing else is in it.
func (d Dirs) discardDraft(id string) error {
	errs := []error{d.discardPart(id, draftDir), d.discardPart(id, draftStateDir), d.discardDraftLogs(id)}
	err := os.Remove(d.formation(id))
	if !errors.Is(err, syscall.ENOTEMPTY) {
		errs = append(errs, ignoreMissing(err))
	}
	return errors.Join(errs...)
}

func (d Dirs) discardDraftLogs(id string) error {
	return errors.Join(logs.Remove(d.outLog(draftKey(id))), logs.Remove(d.errLog(draftKey(id))))
}

// discardPart removes one directory of a formation; it vanishes by one rename
// first, so that half of it is never seen.
func (d Dirs) discardPart(id, name string) error {
	trash := fresh(d.trash(), id)
	if err := os.Rename(filepath.Join(d.formation(id), name), trash); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("remove %s of %s: %w", name, id, err)
	}
	return os.RemoveAll(trash)
}
