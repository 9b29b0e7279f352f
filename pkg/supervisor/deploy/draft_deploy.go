package deploy

import (
	"context"
	"errors"
	"io"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/draft"
)

// DraftDeployed is the formation after its draft was deployed.
type DraftDeployed struct {
	View
	New             bool   // false: it was an update
	PreviousVersion string // semantic, of an update
}

// CheckDeployDraft tells early whether DeployDraft could begin: 400
// InvalidFormationID, 404 DraftNotFound, 409 DeployConflict when another version
// is live than when the draft began, 409 UpdateInProgress.
func (s *Service) CheckDeployDraft(ctx context.Context, id string) error {
	if err := checkDraftID(id); err != nil {
		return err
	}
	unlock, err := s.drafts.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = s.mayDeployDraft(ctx, id)
	return err
}

// mayDeployDraft is CheckDeployDraft for the holder of the draft's lock; update
// says that a formation of that id is deployed.
func (s *Service) mayDeployDraft(ctx context.Context, id string) (update bool, err error) {
	d, err := s.openDraft(id)
	if err != nil {
		return false, err
	}
	defer d.Close()
	if err := s.drafts.free(id); err != nil {
		return false, err
	}
	meta, err := d.Meta()
	if err != nil {
		return false, err
	}
	live, err := s.live(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case live == nil && meta.LiveSHA256 == "":
		return false, s.CheckNew(id)
	case live == nil:
		return false, fault.Errorf(fault.Conflict, "DeployConflict",
			"the draft of '%s' began when a formation was deployed, which is gone; begin a new draft", id)
	case live.SHA256 != meta.LiveSHA256:
		return false, fault.Errorf(fault.Conflict, "DeployConflict",
			"Formation '%s' has version %s since the draft began; begin a new draft from it", id, live.Semantic)
	}
	return true, s.CheckUpdate(id)
}

// DeployDraft deploys the draft of id: as a new formation, or as an update of
// the one that was live when the draft began. The draft is gone then, and a
// process that ran it has ended; after an error it is as it was. The errors are
// those of CheckDeployDraft, Deploy and Update, with the stage in a *StageError.
func (s *Service) DeployDraft(ctx context.Context, id string, sink Sink) (DraftDeployed, error) {
	t := &track{sink: sink, stage: StageExtracting}
	bundle, update, err := s.draftBundle(ctx, id)
	if err != nil {
		return DraftDeployed{}, t.failure(err, RollbackNotNeeded)
	}
	defer bundle.Discard()
	defer s.drafts.release(id)
	var out DraftDeployed
	if update {
		var u Updated
		u, err = s.Update(ctx, UpdateRequest{ID: id, Bundle: bundle}, sink)
		out = DraftDeployed{View: u.View, PreviousVersion: u.PreviousVersion}
	} else {
		out.New = true
		out.View, err = s.Deploy(ctx, Request{ID: id, Bundle: bundle}, sink)
	}
	if err != nil {
		return DraftDeployed{}, err
	}
	// What is deployed stays so when its draft cannot be removed.
	if err := s.endDraft(context.WithoutCancel(ctx), id); err != nil {
		s.log.Error().Err(err).Str("formation", id).Msg("the draft is deployed but still there")
	}
	return out, nil
}

func (s *Service) endDraft(ctx context.Context, id string) error {
	unlock, err := s.drafts.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.removeDraft(ctx, id)
}

// draftBundle packs the draft of id and keeps changes away from it; the caller
// releases it and discards the bundle.
func (s *Service) draftBundle(ctx context.Context, id string) (_ *Bundle, update bool, err error) {
	if err := checkDraftID(id); err != nil {
		return nil, false, err
	}
	unlock, err := s.drafts.lock(ctx, id)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if update, err = s.mayDeployDraft(ctx, id); err != nil {
		return nil, false, err
	}
	b, err := s.pack(ctx, s.cfg.Dirs.draft(id), id)
	if err != nil {
		return nil, false, err
	}
	s.drafts.reserve(id)
	return b, update, nil
}

// pack makes the bundle that a client would have sent.
func (s *Service) pack(ctx context.Context, dir, id string) (*Bundle, error) {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Pack(w, dir, id, func(rel string, _ bool) bool { return draft.Own(rel) })
		w.CloseWithError(err)
		packed <- err
	}()
	b, err := s.Receive(ctx, r)
	r.CloseWithError(errStopped)
	perr := <-packed
	switch {
	case perr != nil && !errors.Is(perr, errStopped):
		b.Discard()
		return nil, fault.Errorf(fault.Invalid, "ParseError", "the draft cannot be packed: %w", perr)
	case err != nil:
		return nil, err
	}
	return b, nil
}

// errStopped ends a pack whose bundle is not stored any further.
var errStopped = errors.New("the bundle is not stored")
