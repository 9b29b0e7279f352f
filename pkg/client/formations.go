package client

import (
	"context"
	"net/http"
	"time"
)

// Info is one formation as the supervisor sees it.
type Info struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Port   int    `json:"port"`
	Status string `json:"status"` // stopped, starting, running, stopping, crashed, restarting
	PID    int    `json:"pid"`
	// Uptime is in seconds.
	Uptime       int64 `json:"uptime"`
	RestartCount int   `json:"restart_count"`
	// Healthy is nil while it is not known.
	Healthy *bool   `json:"healthy"`
	Version Version `json:"version"`

	// The fields from here on are set by Get only.

	CreatedAt       *time.Time `json:"created_at,omitempty"`
	DeployedAt      *time.Time `json:"deployed_at,omitempty"`
	UpdatedAt       *time.Time `json:"updated_at,omitempty"`
	LastHealthCheck *time.Time `json:"last_health_check,omitempty"`
	LastExit        *Exit      `json:"last_exit,omitempty"`
}

// Version names what is deployed: the manifest's version and the SHA-256 of
// the current and the previous bundle.
type Version struct {
	Semantic string `json:"semantic"`
	Current  string `json:"current"`
	Previous string `json:"previous"`
}

// Exit is how a formation's process last ended.
type Exit struct {
	Reason   string     `json:"reason"`
	ExitCode *int       `json:"exit_code,omitempty"` // nil when not known
	Signal   string     `json:"signal,omitempty"`
	At       *time.Time `json:"at,omitempty"`
	// Stderr has the last lines of it.
	Stderr []string `json:"stderr,omitempty"`
}

// List returns the formations with the given status, all of them for "".
func (s *Server) List(ctx context.Context, status string) ([]Info, error) {
	c := newCall(http.MethodGet, "rpc", "formations")
	if status != "" {
		c.query.Set("status", status)
	}
	var out struct {
		Formations []Info `json:"formations"`
	}
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return out.Formations, nil
}

// Get returns one formation.
func (s *Server) Get(ctx context.Context, id string) (*Info, error) {
	var out Info
	if err := s.caller.json(ctx, newCall(http.MethodGet, "rpc", "formations", id), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Stop drains a formation's open work and stops it.
func (s *Server) Stop(ctx context.Context, id string) error {
	c := newCall(http.MethodPost, "rpc", "formations", id, "stop")
	c.timeout = DeployTimeout // as long as the drain may take
	return s.caller.json(ctx, c, nil)
}

// Delete stops a formation and removes it with its data.
func (s *Server) Delete(ctx context.Context, id string) error {
	c := newCall(http.MethodDelete, "rpc", "formations", id)
	c.timeout = DeployTimeout
	return s.caller.json(ctx, c, nil)
}
