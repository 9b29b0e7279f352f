package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// draftRequest is one action on the files of a draft (server.md 5.1).
type draftRequest struct {
	Action   string `json:"action" enum:"init,list,read,write,delete,deploy,discard"`
	Mode     string `json:"mode,omitempty" about:"of init: new or clone"`
	Path     string `json:"path,omitempty"`
	Content  string `json:"content,omitempty" about:"of write"`
	Encoding string `json:"encoding,omitempty" about:"of content: utf-8 (default) or base64"`
}

// draftReply is the envelope of every answer, good or bad.
type draftReply struct {
	Success bool              `json:"success"`
	Data    any               `json:"data,omitempty"`
	Error   string            `json:"error,omitempty"`
	Message string            `json:"message,omitempty"`
	Code    int               `json:"code,omitempty"`
	Draft   deploy.DraftState `json:"draft"`
	Live    deploy.LiveState  `json:"live"`
}

func (a *API) draftFiles(c echo.Context) error {
	id := httpx.Param(c, "id")
	ctx := c.Request().Context()
	var req draftRequest
	if err := json.Unmarshal(callOf(c).body, &req); err != nil {
		err = fault.Wrap(fault.Invalid, "InvalidJSON", "the body must be a JSON object whose fields are strings, with at least action", err)
		return a.draftFailed(c, a.cfg.Deploy.DraftStates(ctx, id), err)
	}
	if req.Action == "deploy" {
		return a.draftDeploy(c, id)
	}
	r, err := a.cfg.Deploy.Draft(ctx, id, deploy.DraftRequest{
		Action: req.Action, Mode: req.Mode, Path: req.Path, Content: req.Content, Encoding: req.Encoding,
	})
	if err != nil {
		return a.draftFailed(c, r, err)
	}
	return httpx.JSON(c, http.StatusOK, draftReply{Success: true, Data: r.Data, Draft: r.Draft, Live: r.Live})
}

// draftFailed answers in the envelope of drafts; the audit learns of it through
// the call.
func (a *API) draftFailed(c echo.Context, r deploy.DraftReply, err error) error {
	callOf(c).outcome = err
	f := toFailure(err)
	if fault.KindOf(err) == fault.Internal {
		a.cfg.Log.Error().Err(err).Str("request_id", httpx.RequestID(c)).Msg("a draft call failed")
	}
	a.hint(c, f.Code)
	return httpx.JSON(c, f.Code, draftReply{Error: f.Error, Message: f.Message, Code: f.Code, Draft: r.Draft, Live: r.Live})
}

// draftDeploy deploys the draft, as a new formation or as an update.
func (a *API) draftDeploy(c echo.Context, id string) error {
	ctx := c.Request().Context()
	if err := a.cfg.Deploy.CheckDeployDraft(ctx, id); err != nil {
		return a.draftFailed(c, a.cfg.Deploy.DraftStates(ctx, id), err)
	}
	run := func(ctx context.Context, sink deploy.Sink) (deploy.DraftDeployed, error) {
		return a.cfg.Deploy.DeployDraft(ctx, id, sink)
	}
	if wantsEvents(c) {
		return a.operateStreaming(c, operation{change: id, run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
			d, err := run(ctx, sink)
			return outcome{View: d.View, previous: d.PreviousVersion}, err
		}})
	}
	d, err := run(ctx, nil)
	if err != nil {
		return a.draftFailed(c, a.cfg.Deploy.DraftStates(ctx, id), err)
	}
	data := any(a.toLaunched(c, d.View))
	if !d.New {
		data = toUpdated(outcome{View: d.View, previous: d.PreviousVersion})
	}
	states := a.cfg.Deploy.DraftStates(ctx, id)
	return httpx.JSON(c, http.StatusOK, draftReply{Success: true, Data: data, Draft: states.Draft, Live: states.Live})
}
