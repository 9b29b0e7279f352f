package httpapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// item is a formation in a list.
type item struct {
	ID           string         `json:"id"`
	Name         string         `json:"name"`
	Port         int            `json:"port"`
	Status       process.Status `json:"status"`
	PID          int            `json:"pid"`
	Uptime       int64          `json:"uptime"` // seconds
	RestartCount int            `json:"restart_count"`
	Healthy      *bool          `json:"healthy"` // null while nothing is known
	Version      itemVersion    `json:"version"`
}

type itemVersion struct {
	Semantic string `json:"semantic"`
	Current  string `json:"current"`  // SHA-256 of the bundle
	Previous string `json:"previous"` // "" when there is none
}

// detail is one formation with all that is known.
type detail struct {
	item
	CreatedAt       time.Time  `json:"created_at"`
	DeployedAt      time.Time  `json:"deployed_at"`
	UpdatedAt       time.Time  `json:"updated_at"`
	LastHealthCheck *time.Time `json:"last_health_check,omitempty"`
	LastExit        *lastExit  `json:"last_exit,omitempty"`
	Warnings        []string   `json:"warnings,omitempty"` // of the last load
}

// lastExit tells how the last process ended, and its last words.
type lastExit struct {
	Reason   string    `json:"reason"`
	ExitCode *int      `json:"exit_code,omitempty"` // absent when a signal ended it or nobody knows
	Signal   string    `json:"signal,omitempty"`
	At       time.Time `json:"at"`
	Stderr   []string  `json:"stderr,omitempty"`
}

func (a *API) list(c echo.Context) error {
	views, err := a.cfg.Deploy.List(c.Request().Context(), process.Status(c.QueryParam("status")))
	if err != nil {
		return err
	}
	items := make([]item, len(views))
	for i, v := range views {
		items[i] = toItem(v)
	}
	return reply(c, http.StatusOK, map[string]any{"formations": items, "total": len(items)})
}

func (a *API) get(c echo.Context) error {
	v, err := a.cfg.Deploy.Get(c.Request().Context(), httpx.Param(c, "id"))
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, toDetail(v))
}

func (a *API) remove(c echo.Context) error {
	id := httpx.Param(c, "id")
	if err := a.cfg.Deploy.Delete(c.Request().Context(), id); err != nil {
		return err
	}
	return reply(c, http.StatusOK, map[string]any{"id": id, "message": "Formation '" + id + "' deleted"})
}

func toItem(v deploy.View) item {
	i := item{
		ID: v.ID, Name: v.Name, Port: v.Port, Status: v.Process.Status, PID: v.Process.PID,
		Uptime: int64(v.Uptime / time.Second), RestartCount: v.RestartCount, Healthy: v.Process.Healthy,
	}
	if v.Current != nil {
		i.Version.Semantic, i.Version.Current = v.Current.Semantic, v.Current.SHA256
	}
	if v.Previous != nil {
		i.Version.Previous = v.Previous.SHA256
	}
	return i
}

func toDetail(v deploy.View) detail {
	d := detail{
		item: toItem(v), CreatedAt: v.CreatedAt, DeployedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt,
		Warnings: v.Process.Warnings,
	}
	if v.Current != nil {
		d.DeployedAt = v.Current.DeployedAt
	}
	if at := v.Process.LastHealth; !at.IsZero() {
		at = at.UTC()
		d.LastHealthCheck = &at
	}
	if e := v.Process.LastExit; e != nil {
		d.LastExit = &lastExit{Reason: e.Reason, Signal: e.Signal, At: e.Time.UTC(), Stderr: e.Stderr}
		if e.Code >= 0 {
			d.LastExit.ExitCode = &e.Code
		}
	}
	return d
}
