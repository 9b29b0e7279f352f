package httpapi

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

const (
	headerFormationID      = "X-Formation-ID"
	headerFormationVersion = "X-Formation-Version"
)

// launched is the answer to a deploy.
type launched struct {
	ID          string `json:"id"`
	FormationID string `json:"formation_id"`
	Port        int    `json:"port"`
	Version     string `json:"version"`
	Status      string `json:"status"`
	URL         string `json:"url"`
	HealthURL   string `json:"health_url"`
	PID         int    `json:"pid"`
}

func (a *API) deploy(c echo.Context) error {
	k := callOf(c)
	var bundle *deploy.Bundle
	defer func() { bundle.Discard() }()
	var err error
	if !k.claim.Verified() {
		// The signature covers the body: nothing is told or done before it is right.
		if bundle, err = a.receiveUnproven(c, k); err != nil {
			return err
		}
	}
	id := c.Request().Header.Get(headerFormationID)
	if err := a.checkDeploy(c, id); err != nil {
		return err
	}
	if bundle == nil {
		if bundle, err = a.receive(c, k); err != nil {
			return err
		}
	}
	req := deploy.Request{ID: id, Version: c.Request().Header.Get(headerFormationVersion), Bundle: bundle}
	return a.operate(c, operation{
		status: http.StatusCreated,
		// What can be told before the stream opens has its own status.
		check: func() error { return a.cfg.Deploy.CheckNew(id) },
		run: func(ctx context.Context, sink deploy.Sink) (deploy.View, error) {
			return a.cfg.Deploy.Deploy(ctx, req, sink)
		},
		result: func(v deploy.View) any {
			return launched{
				ID: v.ID, FormationID: v.ID, Port: v.Port, Version: semantic(v), Status: string(v.Process.Status),
				URL: a.formationURL(c, v.ID), HealthURL: healthURL(v.Port), PID: v.Process.PID,
			}
		},
	})
}

// checkDeploy refuses what the headers alone show to be wrong.
func (a *API) checkDeploy(c echo.Context, id string) error {
	kind, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type"))
	if err != nil || !slices.Contains([]string{"application/gzip", "application/x-gzip", "application/octet-stream"}, kind) {
		return fault.New(fault.Invalid, "InvalidContentType", "Content-Type must be application/gzip")
	}
	if id == "" {
		return fault.New(fault.Invalid, "MissingHeader", headerFormationID+" header is required")
	}
	return a.cfg.Deploy.CheckNew(id)
}

func (a *API) receiveUnproven(c echo.Context, k *call) (*deploy.Bundle, error) {
	select {
	case a.unproven <- struct{}{}:
		defer func() { <-a.unproven }()
		return a.receive(c, k)
	default:
		return nil, fault.New(fault.RateLimited, "RateLimited", "too many uploads at once; try again")
	}
}

// receive stores the body and finishes the claim of a signature that covers it.
func (a *API) receive(c echo.Context, k *call) (*deploy.Bundle, error) {
	if n := c.Request().ContentLength; n > a.cfg.MaxBundle {
		return nil, fault.Errorf(fault.TooLarge, "PayloadTooLarge",
			"the bundle has %d bytes; at most %d are allowed (limits.bundle.max_bytes)", n, a.cfg.MaxBundle)
	}
	b, err := a.cfg.Deploy.Receive(c.Request().Context(), c.Request().Body)
	if err != nil {
		return nil, err
	}
	if err := k.claim.Finish(b.Sum, b.Size); err != nil {
		b.Discard()
		return nil, err
	}
	return b, nil
}

func semantic(v deploy.View) string {
	if v.Current == nil {
		return ""
	}
	return v.Current.Semantic
}

func (a *API) formationURL(c echo.Context, id string) string { return a.base(c) + "/api/" + id }

func healthURL(port int) string { return fmt.Sprintf("http://localhost:%d/v1/health", port) }
