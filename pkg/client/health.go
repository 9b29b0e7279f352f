package client

import (
	"context"
	"net/http"
)

// ServerHealth is what a supervisor says of itself to anyone.
type ServerHealth struct {
	Status     string `json:"status"`
	Version    string `json:"version"`
	Formations int    `json:"formations"`
	Uptime     int64  `json:"uptime"` // seconds
	PortPool   struct {
		Allocated int `json:"allocated"`
		Available int `json:"available"`
		Total     int `json:"total"`
	} `json:"port_pool"`
}

// Health asks the supervisor how it is.
func (s *Server) Health(ctx context.Context) (*ServerHealth, error) {
	var out ServerHealth
	if err := s.caller.json(ctx, newCall(http.MethodGet, "health"), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Ping checks that a supervisor answers at the address.
func (s *Server) Ping(ctx context.Context) error {
	body, err := s.caller.fetch(ctx, newCall(http.MethodGet, "ping"))
	if err != nil {
		return err
	}
	if string(body) != "pong" {
		return badReply(http.StatusOK, "ping was not answered with pong")
	}
	return nil
}
