package httpapi

import (
	"fmt"
	"net/http"
	"runtime"

	"github.com/labstack/echo/v4"
)

func (a *API) status(c echo.Context) error {
	type object = map[string]any
	s, n := a.cfg.Server, a.cfg.Deploy.Counts()
	pool := a.portPool(n.Total)
	return reply(c, http.StatusOK, object{
		"server": object{"id": s.ID, "server_id": s.ID, "version": s.Version, "uptime": a.uptime(), "port": s.Port},
		"formations": object{
			"total": n.Total, "running": n.Running, "stopped": n.Stopped, "crashed": n.Crashed, "healthy": n.Healthy,
		},
		"port_pool": pool,
		"ports": object{
			"allocated": pool.Allocated, "available": pool.Available, "range": fmt.Sprintf("%d-%d", s.PortFirst, s.PortLast),
		},
		"runtime": object{
			"type": "native", "platform": runtime.GOOS + "/" + runtime.GOARCH, "versions": []string{s.Version},
			"goroutines": runtime.NumGoroutine(), "go_version": runtime.Version(),
		},
	})
}
