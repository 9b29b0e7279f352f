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

func (a *API) start(c echo.Context) error {
	id := httpx.Param(c, "id")
	return a.operate(c, operation{
		status: http.StatusOK,
		check:  func() error { return checkEmpty(callOf(c).body) },
		run: func(ctx context.Context, sink deploy.Sink) (deploy.View, error) {
			return a.cfg.Deploy.Start(ctx, id, sink)
		},
		result: func(v deploy.View) any {
			return map[string]any{
				"id": v.ID, "status": v.Process.Status, "message": "Formation '" + v.ID + "' started", "port": v.Port,
			}
		},
	})
}

func (a *API) restart(c echo.Context) error {
	id := httpx.Param(c, "id")
	return a.operate(c, operation{
		status:  http.StatusOK,
		counted: true,
		check:   func() error { return checkEmpty(callOf(c).body) },
		run: func(ctx context.Context, sink deploy.Sink) (deploy.View, error) {
			return a.cfg.Deploy.Restart(ctx, id, sink)
		},
		result: func(v deploy.View) any {
			return map[string]any{
				"id": v.ID, "status": v.Process.Status, "message": "Formation '" + v.ID + "' restarted",
				"restart_count": v.RestartCount, "port": v.Port,
			}
		},
	})
}

func (a *API) stop(c echo.Context) error {
	if err := checkEmpty(callOf(c).body); err != nil {
		return err
	}
	v, err := a.cfg.Deploy.Stop(c.Request().Context(), httpx.Param(c, "id"))
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, map[string]any{
		"id": v.ID, "status": v.Process.Status, "message": "Formation '" + v.ID + "' stopped",
	})
}

// checkEmpty accepts no body or a JSON object, whose keys mean nothing here.
func checkEmpty(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		return invalid("the body must be empty or a JSON object such as {}")
	}
	return nil
}
