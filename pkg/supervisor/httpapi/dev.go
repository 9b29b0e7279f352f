package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// devRunRequest has a path, or the id of a formation that has a draft; an id
// beside the path must be that of the manifest there.
type devRunRequest struct {
	Path        string `json:"path,omitempty" about:"absolute path of a directory on the server"`
	FormationID string `json:"formation_id,omitempty" about:"runs the draft of this formation"`
}

type devStopRequest struct {
	FormationID string `json:"formation_id"`
}

// devState is what there is to tell about a draft that runs, or ran.
type devState struct {
	FormationID string `json:"formation_id"`
	Port        int    `json:"port,omitempty"`
	Status      string `json:"status" enum:"running,stopped"`
}

// devReply has its fields at top level, where the command line looks, and in
// data, where other clients do.
type devReply struct {
	Success bool `json:"success"`
	devState
	Data devState `json:"data"`
}

type devFailure struct {
	Success     bool   `json:"success"`
	FormationID string `json:"formation_id"`
	Error       string `json:"error"`
	Message     string `json:"message"`
	Code        int    `json:"code"`
}

func (a *API) devRun(c echo.Context) error {
	var req devRunRequest
	if err := json.Unmarshal(callOf(c).body, &req); err != nil {
		return a.devFailed(c, "", invalid(`the body must be {"path": "<absolute directory>"} or {"formation_id": "<id>"}`))
	}
	d, err := a.cfg.Deploy.DevRun(c.Request().Context(), deploy.DevRequest{Path: req.Path, FormationID: req.FormationID}, nil)
	if err != nil {
		return a.devFailed(c, orElse(d.ID, req.FormationID), err)
	}
	state := devState{FormationID: d.ID, Port: d.Port, Status: "running"}
	return httpx.JSON(c, http.StatusOK, devReply{Success: true, devState: state, Data: state})
}

func (a *API) devStop(c echo.Context) error {
	var req devStopRequest
	if err := json.Unmarshal(callOf(c).body, &req); err != nil || req.FormationID == "" {
		return a.devFailed(c, "", invalid(`the body must be {"formation_id": "<id>"}`))
	}
	if err := a.cfg.Deploy.DevStop(c.Request().Context(), req.FormationID); err != nil {
		return a.devFailed(c, req.FormationID, err)
	}
	state := devState{FormationID: req.FormationID, Status: "stopped"}
	return httpx.JSON(c, http.StatusOK, devReply{Success: true, devState: state, Data: state})
}

// devFailed answers with the formation's id beside the error; the audit learns
// of it through the call.
func (a *API) devFailed(c echo.Context, id string, err error) error {
	callOf(c).outcome = err
	f := toFailure(err)
	if fault.KindOf(err) == fault.Internal {
		a.cfg.Log.Error().Err(err).Str("request_id", httpx.RequestID(c)).Msg("a draft cannot be run")
	}
	a.hint(c, f.Code)
	return httpx.JSON(c, f.Code, devFailure{FormationID: id, Error: f.Error, Message: f.Message, Code: f.Code})
}
