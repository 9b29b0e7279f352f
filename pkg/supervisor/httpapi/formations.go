package httpapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
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
	LastExit        *exit      `json:"last_exit,omitempty"`
	Exits           []exit     `json:"exits"`              // the newest first
	Warnings        []string   `json:"warnings,omitempty"` // of the last load
}

// exit tells how a process ended, and its last words.
type exit struct {
	Reason   string    `json:"reason"`
	ExitCode *int      `json:"exit_code,omitempty"` // absent when a signal ended it or nobody knows
	Signal   string    `json:"signal,omitempty"`
	At       time.Time `json:"at"`
	Launch   string    `json:"launch,omitempty"`
	Served   float64   `json:"served"` // seconds
	Stderr   []string  `json:"stderr,omitempty"`
}

type listReply struct {
	Formations []item `json:"formations"`
	Total      int    `json:"total"`
}

type removed struct {
	ID      string `json:"id"`
	Message string `json:"message"`
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
	return reply(c, http.StatusOK, listReply{Formations: items, Total: len(items)})
}

func (a *API) get(c echo.Context) error {
	id := httpx.Param(c, "id")
	v, err := a.cfg.Deploy.Get(c.Request().Context(), id)
	if err != nil {
		return err
	}
	exits, err := a.cfg.Deploy.Exits(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, toDetail(v, exits))
}

func (a *API) remove(c echo.Context) error {
	id := httpx.Param(c, "id")
	if err := a.cfg.Deploy.Delete(c.Request().Context(), id); err != nil {
		return err
	}
	return reply(c, http.StatusOK, removed{ID: id, Message: "Formation '" + id + "' deleted"})
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

func toDetail(v deploy.View, exits []registry.Exit) detail {
	d := detail{
		item: toItem(v), CreatedAt: v.CreatedAt, DeployedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt,
		Exits: make([]exit, len(exits)), Warnings: v.Process.Warnings,
	}
	if v.Current != nil {
		d.DeployedAt = v.Current.DeployedAt
	}
	if at := v.Process.LastHealth; !at.IsZero() {
		at = at.UTC()
		d.LastHealthCheck = &at
	}
	for i, e := range exits {
		d.Exits[i] = toExit(e)
	}
	if e := v.Process.LastExit; e != nil {
		last := toExit(registry.Exit{Time: e.Time, Code: e.Code, Signal: e.Signal, Reason: e.Reason, Served: e.Served, Stderr: e.Stderr})
		d.LastExit = &last
	}
	return d
}

func toExit(e registry.Exit) exit {
	x := exit{
		Reason: e.Reason, Signal: e.Signal, At: e.Time.UTC(), Launch: e.Launch,
		Served: e.Served.Round(time.Millisecond).Seconds(), Stderr: e.Stderr,
	}
	if e.Code >= 0 {
		x.ExitCode = &e.Code
	}
	return x
}
