package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
)

// root answers people who open the address in a browser.
func (a *api) root(c echo.Context) error {
	word := "Up"
	if a.cfg.Draining() {
		word = "Down"
	}
	return c.HTML(http.StatusOK, "<!doctype html><title>Formation</title><p>"+word+"</p>\n")
}

// healthDocument serves readers of both shapes in use: plain and enveloped.
// Only here timestamp is a string (reference runtime.md 2.1).
type healthDocument struct {
	Object  string    `json:"object"`
	Type    string    `json:"type"`
	Success bool      `json:"success"`
	Error   *struct{} `json:"error"`
	healthData
	Data healthData `json:"data"`
}

type healthData struct {
	Status      string   `json:"status"`
	FormationID string   `json:"formation_id"`
	Version     string   `json:"version"`
	Timestamp   jsonTime `json:"timestamp"`
}

// health tells load balancers and people that the formation answers. The
// supervisor asks over the control socket instead.
func (a *api) health(c echo.Context) error {
	d := healthData{
		Status: "healthy", FormationID: a.cfg.Formation.ID,
		Version: a.cfg.Version, Timestamp: jsonTime(a.cfg.Now()),
	}
	return httpx.JSON(c, http.StatusOK, &healthDocument{
		Object: objectHealth, Type: typeStatus, Success: true, healthData: d, Data: d,
	})
}
