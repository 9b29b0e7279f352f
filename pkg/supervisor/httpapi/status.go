package httpapi

import (
	"fmt"
	"net/http"
	"runtime"

	"github.com/labstack/echo/v4"
)

// statusReply is the supervisor with its fleet in numbers. Some fields stand
// twice, under the names that different clients read.
type statusReply struct {
	Server     serverStatus  `json:"server"`
	Formations fleetStatus   `json:"formations"`
	PortPool   portPool      `json:"port_pool"`
	Ports      portRange     `json:"ports"`
	Runtime    runtimeStatus `json:"runtime"`
}

type serverStatus struct {
	ID       string `json:"id"`
	ServerID string `json:"server_id"`
	Version  string `json:"version"`
	Uptime   int64  `json:"uptime"` // seconds
	Port     int    `json:"port"`
}

type fleetStatus struct {
	Total   int `json:"total"`
	Running int `json:"running"`
	Stopped int `json:"stopped"`
	Crashed int `json:"crashed"`
	Healthy int `json:"healthy"`
}

type portRange struct {
	Allocated int    `json:"allocated"`
	Available int    `json:"available"`
	Range     string `json:"range"`
}

type runtimeStatus struct {
	Type       string   `json:"type"`
	Platform   string   `json:"platform"`
	Versions   []string `json:"versions"`
	Goroutines int      `json:"goroutines"`
	GoVersion  string   `json:"go_version"`
}

func (a *API) status(c echo.Context) error {
	s, n := a.cfg.Server, a.cfg.Deploy.Counts()
	pool := a.portPool(n.Total)
	return reply(c, http.StatusOK, statusReply{
		Server:     serverStatus{ID: s.ID, ServerID: s.ID, Version: s.Version, Uptime: a.uptime(), Port: s.Port},
		Formations: fleetStatus{Total: n.Total, Running: n.Running, Stopped: n.Stopped, Crashed: n.Crashed, Healthy: n.Healthy},
		PortPool:   pool,
		Ports: portRange{
			Allocated: pool.Allocated, Available: pool.Available, Range: fmt.Sprintf("%d-%d", s.PortFirst, s.PortLast),
		},
		Runtime: runtimeStatus{
			Type: "native", Platform: runtime.GOOS + "/" + runtime.GOARCH, Versions: []string{s.Version},
			Goroutines: runtime.NumGoroutine(), GoVersion: runtime.Version(),
		},
	})
}
