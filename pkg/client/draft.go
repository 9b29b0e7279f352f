package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// The actions on the files of a draft.
const (
	DraftInit    = "init"
	DraftList    = "list"
	DraftRead    = "read"
	DraftWrite   = "write"
	DraftDelete  = "delete"
	DraftDiscard = "discard"
)

// DraftRequest is one action on the files of a draft.
type DraftRequest struct {
	Action string `json:"action"`
	// Mode of init: new or clone, which copies the version that is deployed.
	Mode    string `json:"mode,omitempty"`
	Path    string `json:"path,omitempty"`
	Content string `json:"content,omitempty"`
	// Encoding of Content, utf-8 (also for "") or base64.
	Encoding string `json:"encoding,omitempty"`
}

// DraftReply is the result of an action and the state of draft and live.
type DraftReply struct {
	Data    DraftData `json:"data"`
	Message string    `json:"message,omitempty"`
	Draft   struct {
		Exists      bool       `json:"exists"`
		BaseVersion string     `json:"base_version,omitempty"`
		CreatedAt   *time.Time `json:"created_at,omitempty"`
	} `json:"draft"`
	Live struct {
		Version string `json:"version,omitempty"`
		Status  string `json:"status,omitempty"`
	} `json:"live"`
}

// DraftData is what an action gives; which fields are set depends on it.
type DraftData struct {
	Path     string       `json:"path,omitempty"`
	Entries  []DraftEntry `json:"entries,omitempty"`
	Content  string       `json:"content,omitempty"`
	Encoding string       `json:"encoding,omitempty"`
	Size     int64        `json:"size,omitempty"`
}

// DraftEntry is one file or directory of a draft; a directory's name ends with
// a slash.
type DraftEntry struct {
	Name string `json:"name"`
	Type string `json:"type"` // file or dir
	Size int64  `json:"size,omitempty"`
}

// Draft performs an action on the files of a formation's draft. To deploy the
// draft is DeployDraft.
func (s *Server) Draft(ctx context.Context, id string, req DraftRequest) (*DraftReply, error) {
	c, err := draftCall(id, req)
	if err != nil {
		return nil, err
	}
	body, err := s.caller.fetch(ctx, c)
	if err != nil {
		return nil, err
	}
	var out DraftReply
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, badReply(http.StatusOK, err.Error())
	}
	return &out, nil
}

// DeployDraft deploys a draft, as a new formation or as an update of the one
// with its id, and waits as Deploy and Update do. The draft is gone then.
// progress (may be nil) is called as for Deploy.
func (s *Server) DeployDraft(ctx context.Context, id string, progress func(Progress)) (*Launched, error) {
	c, err := draftCall(id, DraftRequest{Action: "deploy"})
	if err != nil {
		return nil, err
	}
	report := &reporter{fn: progress}
	defer report.close()
	return s.launch(ctx, c.wantEvents(), report)
}

func draftCall(id string, req DraftRequest) (*call, error) {
	return newCall(http.MethodPost, "rpc", "formations", id, "draft", "files").withJSON(req)
}

// Dev is a draft that runs.
type Dev struct {
	FormationID string `json:"formation_id"`
	Port        int    `json:"port"`
	Status      string `json:"status"`
}

// DevRunDir runs the formation in a directory of the supervisor's machine in
// place, as a draft, and waits until it is ready. dir must be absolute.
func (s *Server) DevRunDir(ctx context.Context, dir string) (*Dev, error) {
	return s.dev(ctx, "run", map[string]string{"path": dir})
}

// DevRun runs the draft directory of a formation and waits until it is ready.
func (s *Server) DevRun(ctx context.Context, id string) (*Dev, error) {
	return s.dev(ctx, "run", map[string]string{"formation_id": id})
}

// DevStop stops a draft that runs. Its files stay.
func (s *Server) DevStop(ctx context.Context, id string) (*Dev, error) {
	return s.dev(ctx, "stop", map[string]string{"formation_id": id})
}

func (s *Server) dev(ctx context.Context, verb string, body map[string]string) (*Dev, error) {
	c, err := newCall(http.MethodPost, "rpc", "dev", verb).withJSON(body)
	if err != nil {
		return nil, err
	}
	c.timeout = DevTimeout
	var out Dev
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}
