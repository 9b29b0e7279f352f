package client

import (
	"context"
	"net/http"
	"strconv"
)

// ServerStatus is a supervisor with its fleet.
type ServerStatus struct {
	Server struct {
		ID      string `json:"id"`
		Version string `json:"version"`
		Uptime  int64  `json:"uptime"` // seconds
		Port    int    `json:"port"`
	} `json:"server"`
	Formations struct {
		Total   int `json:"total"`
		Running int `json:"running"`
		Stopped int `json:"stopped"`
		Crashed int `json:"crashed"`
		Healthy int `json:"healthy"`
	} `json:"formations"`
	Ports struct {
		Allocated int    `json:"allocated"`
		Available int    `json:"available"`
		Range     string `json:"range"` // "8000-9000"
	} `json:"ports"`
	Runtime struct {
		Type       string   `json:"type"`
		Platform   string   `json:"platform"`
		Versions   []string `json:"versions"`
		Goroutines int      `json:"goroutines"`
		GoVersion  string   `json:"go_version"`
	} `json:"runtime"`
}

// Status returns the supervisor and the sum of its fleet.
func (s *Server) Status(ctx context.Context) (*ServerStatus, error) {
	var out ServerStatus
	if err := s.caller.json(ctx, newCall(http.MethodGet, "rpc", "server", "status"), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// ServerLogs returns the last lines of the audit log file (0: 100, at most
// 10000) as they are in it, one JSON object a line.
func (s *Server) ServerLogs(ctx context.Context, lines int) ([]byte, error) {
	c := newCall(http.MethodGet, "rpc", "server", "logs")
	if lines > 0 {
		c.query.Set("lines", strconv.Itoa(lines))
	}
	return s.caller.fetch(ctx, c)
}
