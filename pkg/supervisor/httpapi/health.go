package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
)

func (a *API) ping(c echo.Context) error {
	return c.String(http.StatusOK, "pong")
}

// health repeats the fields at top level for monitors that know no envelope.
func (a *API) health(c echo.Context) error {
	type body struct {
		Status     string `json:"status"`
		Version    string `json:"version"`
		Formations int    `json:"formations"`
		Uptime     int64  `json:"uptime"`
	}
	b := body{Status: "ok", Version: a.cfg.Server.Version, Formations: a.cfg.Deploy.Counts().Total, Uptime: a.uptime()}
	return httpx.JSON(c, http.StatusOK, struct {
		Success bool `json:"success"`
		body
		Data any `json:"data"`
	}{true, b, struct {
		body
		PortPool portPool `json:"port_pool"`
	}{b, a.portPool(b.Formations)}})
}

// portPool tells how many ports of the formations' range are given out.
type portPool struct {
	Allocated int `json:"allocated"`
	Available int `json:"available"`
	Total     int `json:"total"`
}

func (a *API) portPool(formations int) portPool {
	total := a.cfg.Server.PortLast - a.cfg.Server.PortFirst + 1
	return portPool{Allocated: formations, Available: max(0, total-formations), Total: total}
}
