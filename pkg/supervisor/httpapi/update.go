package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// updatedReply is the answer to an update. Versions are semantic.
type updatedReply struct {
	ID              string `json:"id"`
	FormationID     string `json:"formation_id"`
	Status          string `json:"status"`
	Version         string `json:"version"`
	PreviousVersion string `json:"previous_version"`
	Port            int    `json:"port"`
	PID             int    `json:"pid"`
	Message         string `json:"message"`
	DeploymentType  string `json:"deployment_type" enum:"blue-green"`
}

func (a *API) update(c echo.Context) error {
	id := httpx.Param(c, "id")
	check := func() error { return a.cfg.Deploy.CheckUpdate(id) }
	return a.withBundle(c, check, func(b *deploy.Bundle) error {
		req := deploy.UpdateRequest{ID: id, Version: c.Request().Header.Get(headerFormationVersion), Bundle: b}
		return a.operate(c, operation{
			status: http.StatusOK,
			check:  func() error { return a.cfg.Deploy.CheckBundle(c.Request().Context(), id, b) },
			change: id,
			run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
				u, err := a.cfg.Deploy.Update(ctx, req, sink)
				return outcome{View: u.View, previous: u.PreviousVersion}, err
			},
			result: func(o outcome) any { return toUpdated(o) },
		})
	})
}

func toUpdated(o outcome) updatedReply {
	return updatedReply{
		ID: o.ID, FormationID: o.ID, Status: string(o.Process.Status), Version: semantic(o.View), PreviousVersion: o.previous,
		Port: o.Port, PID: o.Process.PID, Message: "Formation '" + o.ID + "' updated", DeploymentType: "blue-green",
	}
}

// rollbackRequest may be left out.
type rollbackRequest struct {
	Version string `json:"version,omitempty" about:"semantic version or SHA-256 of a kept version; the previous one when absent"`
}

// rolledBack is the answer to a rollback. Versions are semantic.
type rolledBack struct {
	ID              string `json:"id"`
	Status          string `json:"status"`
	Version         string `json:"version"`
	CurrentVersion  string `json:"current_version"`
	PreviousVersion string `json:"previous_version"`
	PID             int    `json:"pid"`
	Message         string `json:"message"`
}

func (a *API) rollback(c echo.Context) error {
	id := httpx.Param(c, "id")
	req, err := toRollback(callOf(c).body)
	if err != nil {
		return err
	}
	return a.operate(c, operation{
		status: http.StatusOK,
		change: id,
		run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
			u, err := a.cfg.Deploy.Rollback(ctx, id, req.Version, sink)
			return outcome{View: u.View, previous: u.PreviousVersion}, err
		},
		result: func(o outcome) any {
			return rolledBack{
				ID: o.ID, Status: string(o.Process.Status), Version: semantic(o.View), CurrentVersion: semantic(o.View),
				PreviousVersion: o.previous, PID: o.Process.PID, Message: "Formation '" + o.ID + "' rolled back",
			}
		},
	})
}

func toRollback(body []byte) (rollbackRequest, error) {
	var req rollbackRequest
	if err := checkEmpty(body); err != nil {
		return req, err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return req, nil
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return req, invalid("version must be a string: a semantic version or the SHA-256 of a kept version")
	}
	return req, nil
}

// cancelled is the answer to cancel-update. An update shares the formation's
// port, so both ports are that one.
type cancelled struct {
	Message     string `json:"message"`
	FormationID string `json:"formation_id"`
	StagingPort int    `json:"staging_port"`
	Status      string `json:"status"`
	CurrentPort int    `json:"current_port"`
}

func (a *API) cancelUpdate(c echo.Context) error {
	if err := checkEmpty(callOf(c).body); err != nil {
		return err
	}
	id := httpx.Param(c, "id")
	port, status, err := a.cfg.Deploy.CancelUpdate(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, cancelled{
		Message: "The update of formation '" + id + "' was cancelled", FormationID: id,
		StagingPort: port, Status: string(status), CurrentPort: port,
	})
}
