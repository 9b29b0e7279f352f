package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// launched is the answer to a deploy.
type launched struct {
	ID          string `json:"id"`
	FormationID string `json:"formation_id"`
	Port        int    `json:"port"`
	Version     string `json:"version"`
	Status      string `json:"status"`
	URL         string `json:"url"`
	HealthURL   string `json:"health_url"`
	PID         int    `json:"pid"`
}

// deploy makes a new formation. Its id is in a header or, in the older form, in
// the path.
func (a *API) deploy(c echo.Context) error {
	id := c.Request().Header.Get(headerFormationID)
	if inPath := httpx.Param(c, "id"); inPath != "" {
		if id != "" && id != inPath {
			return fault.Errorf(fault.Invalid, "IDMismatch", "%s is %q, the path says %q", headerFormationID, id, inPath)
		}
		id = inPath
	}
	check := func() error {
		if id == "" {
			return fault.New(fault.Invalid, "MissingHeader", headerFormationID+" header is required")
		}
		return a.cfg.Deploy.CheckNew(id)
	}
	return a.withBundle(c, check, func(b *deploy.Bundle) error {
		req := deploy.Request{ID: id, Version: c.Request().Header.Get(headerFormationVersion), Bundle: b}
		return a.operate(c, operation{
			status: http.StatusCreated,
			// What can be told before the stream opens has its own status.
			check: func() error { return a.cfg.Deploy.CheckNew(id) },
			run: func(ctx context.Context, sink deploy.Sink) (outcome, error) {
				v, err := a.cfg.Deploy.Deploy(ctx, req, sink)
				return outcome{View: v}, err
			},
			result: func(o outcome) any { return a.toLaunched(c, o.View) },
		})
	})
}

func (a *API) toLaunched(c echo.Context, v deploy.View) launched {
	return launched{
		ID: v.ID, FormationID: v.ID, Port: v.Port, Version: semantic(v), Status: string(v.Process.Status),
		URL: a.formationURL(c, v.ID), HealthURL: healthURL(v.Port), PID: v.Process.PID,
	}
}

func semantic(v deploy.View) string {
	if v.Current == nil {
		return ""
	}
	return v.Current.Semantic
}

func (a *API) formationURL(c echo.Context, id string) string { return a.base(c) + "/api/" + id }

func healthURL(port int) string { return fmt.Sprintf("http://localhost:%d/v1/health", port) }
