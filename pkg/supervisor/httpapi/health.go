package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
)

func (a *API) ping(c echo.Context) error {
	return c.String(http.StatusOK, "pong")
}

type health struct {
	Status     string `json:"status" enum:"ok"`
	Version    string `json:"version"`
	Formations int    `json:"formations"`
	Uptime     int64  `json:"uptime"` // seconds
}

// healthReply repeats the fields at top level for monitors that know no
// envelope.
type healthReply struct {
	Success bool `json:"success"`
	health
	Data healthData `json:"data"`
}

type healthData struct {
	health
	PortPool portPool `json:"port_pool"`
}

func (a *API) health(c echo.Context) error {
	h := health{Status: "ok", Version: a.cfg.Server.Version, Formations: a.cfg.Deploy.Counts().Total, Uptime: a.uptime()}
	return httpx.JSON(c, http.StatusOK, healthReply{true, h, healthData{h, a.portPool(h.Formations)}})
}

// portPool tells how many ports of the formations' range are given out, to
// drafts as well.
type portPool struct {
	Allocated int `json:"allocated"`
	Available int `json:"available"`
	Total     int `json:"total"`
}

func (a *API) portPool(formations int) portPool {
	total, leased := a.cfg.Server.PortLast-a.cfg.Server.PortFirst+1, formations
	if a.cfg.LeasedPorts != nil {
		leased = a.cfg.LeasedPorts()
	}
	return portPool{Allocated: leased, Available: max(0, total-leased), Total: total}
}
