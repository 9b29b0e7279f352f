package deploy

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/draft"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// DraftRequest is one call of the draft files API (server.md 5.1).
type DraftRequest struct {
	Action   string // init, list, read, write, delete or discard; the seventh, deploy, is DeployDraft
	Mode     string // of init: new or clone
	Path     string // slash-separated, relative to the draft
	Content  string // of write
	Encoding string // of write and read: utf-8 (also for "") or base64
}

// DraftReply is what every draft call answers, also beside an error.
type DraftReply struct {
	Data  any // nil beside an error; ready for encoding/json
	Draft DraftState
	Live  LiveState
}

// DraftState tells about a formation's draft.
type DraftState struct {
	Exists      bool   `json:"exists"`
	BaseVersion string `json:"base_version,omitempty"` // semantic, of what it was cloned from
	CreatedAt   string `json:"created_at,omitempty"`   // RFC 3339, UTC
}

// LiveState tells about the deployed formation of the same id; it is empty when
// there is none.
type LiveState struct {
	Version string `json:"version,omitempty"` // semantic
	Status  string `json:"status,omitempty"`
}

// The data of the draft actions.
type (
	draftInit struct {
		Action string `json:"action"`
		Mode   string `json:"mode"`
	}
	draftList struct {
		Path    string        `json:"path"`
		Entries []draft.Entry `json:"entries"`
	}
	draftRead struct {
		Path     string `json:"path"`
		Content  string `json:"content"`
		Encoding string `json:"encoding"`
	}
	draftWrite struct {
		Path    string `json:"path"`
		Size    int64  `json:"size"`
		Written bool   `json:"written"`
	}
	draftDelete struct {
		Path    string `json:"path"`
		Deleted bool   `json:"deleted"`
	}
	draftDiscard struct {
		Discarded bool `json:"discarded"`
	}
)

// Draft does one action on the draft of id, for which no formation needs to be
// deployed. The errors are those of server.md 5.1; while the draft is being
// deployed, what would change it is 409 DeployConflict.
func (s *Service) Draft(ctx context.Context, id string, req DraftRequest) (DraftReply, error) {
	if err := checkDraftID(id); err != nil {
		return DraftReply{}, err
	}
	unlock, err := s.drafts.lock(ctx, id)
	if err != nil {
		return DraftReply{}, err
	}
	defer unlock()
	var data any
	switch req.Action {
	case "init":
		data, err = s.initDraft(ctx, id, req.Mode)
	case "discard":
		data, err = draftDiscard{Discarded: true}, s.discardDraft(ctx, id)
	default:
		data, err = s.editDraft(id, req)
	}
	r := s.DraftStates(ctx, id)
	if err != nil {
		return r, err
	}
	r.Data = data
	return r, nil
}

// DraftStates returns the states alone, for replies to calls that were refused
// before they reached Draft.
func (s *Service) DraftStates(ctx context.Context, id string) DraftReply {
	var r DraftReply
	if checkDraftID(id) != nil {
		return r
	}
	if d, err := s.openDraft(id); err == nil {
		r.Draft.Exists = true
		if m, err := d.Meta(); err == nil {
			r.Draft.BaseVersion, r.Draft.CreatedAt = m.BaseVersion, m.CreatedAt.UTC().Format(time.RFC3339)
		}
		d.Close()
	}
	if v, err := s.Get(ctx, id); err == nil {
		r.Live.Status = string(v.Process.Status)
		if v.Current != nil {
			r.Live.Version = v.Current.Semantic
		}
	}
	return r
}

func checkDraftID(id string) error {
	if err := manifest.CheckID(id); err != nil {
		return fault.Errorf(fault.Invalid, "InvalidFormationID", "%w", err)
	}
	return nil
}

func (s *Service) openDraft(id string) (*draft.Draft, error) {
	return draft.Open(s.cfg.Dirs.draft(id), s.draftLimits())
}

// draftLimits are what a bundle may unpack to.
func (s *Service) draftLimits() draft.Limits {
	return draft.Limits{MaxEntries: s.cfg.Limits.MaxEntries, MaxBytes: s.cfg.Limits.MaxUnpacked}
}

// initDraft begins a draft, empty or as a copy of what is deployed.
func (s *Service) initDraft(ctx context.Context, id, mode string) (any, error) {
	live, err := s.live(ctx, id)
	if err != nil {
		return nil, err
	}
	place := draft.Place{Dir: s.cfg.Dirs.draft(id), Staging: s.cfg.Dirs.staging(), Limits: s.draftLimits()}
	meta := draft.Meta{CreatedAt: s.now().UTC().Truncate(time.Second)}
	if live != nil {
		meta.LiveSHA256 = live.SHA256
	}
	switch mode {
	case "new":
		err = draft.Create(place, meta, draft.Minimal(id))
	case "clone":
		if live == nil {
			return nil, fault.Errorf(fault.NotFound, "LiveNotFound", "No formation with id '%s' is deployed, so there is nothing to clone", id)
		}
		meta.BaseVersion = live.Semantic
		err = draft.Clone(ctx, place, meta, s.cfg.Dirs.version(id, live.Dir))
	default:
		return nil, fault.Errorf(fault.Invalid, "InvalidMode", "mode %q is unknown; it is new or clone", mode)
	}
	return draftInit{Action: "init", Mode: mode}, err
}

// live returns the current version of id, nil when none is deployed.
func (s *Service) live(ctx context.Context, id string) (*registry.Version, error) {
	v, err := s.Get(ctx, id)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil //nolint:nilnil // that there is none is an answer here
	}
	return v.Current, err
}

// editDraft does the actions on single files.
func (s *Service) editDraft(id string, req DraftRequest) (any, error) {
	d, err := s.openDraft(id)
	if err != nil {
		if fault.NameOf(err) == "DraftNotFound" && !fileAction(req.Action) {
			return nil, errAction(req.Action)
		}
		return nil, err
	}
	defer d.Close()
	switch req.Action {
	case "list":
		entries, err := d.List(req.Path)
		return draftList{Path: req.Path, Entries: entries}, err
	case "read":
		text, encoding, err := d.Read(req.Path, req.Encoding)
		return draftRead{Path: req.Path, Content: text, Encoding: encoding}, err
	case "write":
		if err := s.drafts.free(id); err != nil {
			return nil, err
		}
		size, err := d.Write(req.Path, req.Content, req.Encoding)
		return draftWrite{Path: req.Path, Size: size, Written: true}, err
	case "delete":
		if err := s.drafts.free(id); err != nil {
			return nil, err
		}
		return draftDelete{Path: req.Path, Deleted: true}, d.Delete(req.Path)
	}
	return nil, errAction(req.Action)
}

func fileAction(action string) bool {
	switch action {
	case "list", "read", "write", "delete":
		return true
	}
	return false
}

func errAction(action string) error {
	return fault.Errorf(fault.Invalid, "InvalidAction",
		"action %q is unknown; it is init, list, read, write, delete, deploy or discard", action)
}

// discardDraft removes the draft, with what its own runs remembered; a process
// that runs it ends first. The caller holds the draft's lock.
func (s *Service) discardDraft(ctx context.Context, id string) error {
	if err := s.drafts.free(id); err != nil {
		return err
	}
	if !draft.Exists(s.cfg.Dirs.draft(id)) {
		return fault.New(fault.NotFound, "DraftNotFound", "there is no draft")
	}
	return s.removeDraft(ctx, id)
}

// removeDraft ends the draft of id, if there is one.
func (s *Service) removeDraft(ctx context.Context, id string) error {
	if err := s.endDevOf(ctx, id); err != nil {
		return fault.Wrap(fault.Failed, "StopError", "the process that runs the draft of '"+id+"' could not be stopped", err)
	}
	if err := s.cfg.Dirs.discardDraft(id); err != nil {
		return fault.Wrap(fault.Failed, "CleanupError", "the draft of '"+id+"' could not be removed", err)
	}
	return nil
}
