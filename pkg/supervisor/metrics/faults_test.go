package metrics_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/metrics"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// scripted is a fleet whose children answer as a test says.
type scripted struct {
	ids    []string
	err    error
	status func(ctx context.Context, id string) (control.Status, error)
}

func (s scripted) List(context.Context, process.Status) ([]deploy.View, error) {
	var views []deploy.View
	for _, id := range s.ids {
		views = append(views, deploy.View{
			Formation: registry.Formation{ID: id}, Process: process.Snapshot{Status: process.StatusRunning, PID: os.Getpid()},
		})
	}
	return views, s.err
}

func (s scripted) ChildStatus(ctx context.Context, id string) (control.Status, error) {
	return s.status(ctx, id)
}

func get(t *testing.T, m http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	return w
}

func over(t *testing.T, f metrics.Fleet, log zerolog.Logger) *metrics.Metrics {
	t.Helper()
	m, err := metrics.New(metrics.Config{Log: log, Fleet: f, Version: "9.9.9", StartedAt: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestScrape_LeavesOutAChildThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := over(t, scripted{ids: []string{"dead", "fine", "hung"}, status: func(ctx context.Context, id string) (control.Status, error) {
			switch id {
			case "fine":
				return control.Status{ActiveRequests: 3, TotalRequests: 40}, nil
			case "hung":
				<-ctx.Done()
				return control.Status{}, ctx.Err()
			}
			return control.Status{}, control.ErrNoAnswer
		}}, zerolog.Nop())
		began := time.Now()
		w := get(t, m)
		if took := time.Since(began); took != time.Second {
			t.Errorf("a scrape took %v, want the second that a child has", took)
		}
		if w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		parse(t, w.Body.String()).want(t, map[string]float64{
			`formation_active_requests{formation="fine"}`:                  3,
			`formation_requests_total{formation="fine"}`:                   40,
			`-formation_requests_total{formation="hung"}`:                  0,
			`-formation_requests_total{formation="dead"}`:                  0,
			`formation_status{formation="hung",status="running"}`:          1,
			`formation_status{formation="dead",status="running"}`:          1,
			`-formation_proxy_requests_total{code="2xx",formation="fine"}`: 0, // nobody counts them here
		})
	})
}

func TestScrape_AtMostTwoAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		m := over(t, scripted{ids: []string{"slow"}, status: func(context.Context, string) (control.Status, error) {
			<-release
			return control.Status{}, nil
		}}, zerolog.Nop())
		codes := make(chan int, 2)
		for range 2 {
			go func() { codes <- get(t, m).Code }()
		}
		synctest.Wait()
		if w := get(t, m); w.Code != http.StatusServiceUnavailable {
			t.Errorf("the third scrape: %d", w.Code)
		}
		close(release)
		for range 2 {
			if code := <-codes; code != http.StatusOK {
				t.Errorf("a scrape: %d", code)
			}
		}
		if w := get(t, m); w.Code != http.StatusOK {
			t.Errorf("afterwards: %d", w.Code)
		}
	})
}

func TestScrape_AFleetThatCannotBeReadIsAnErrorOfTheScrape(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	m := over(t, scripted{err: errors.New("the registry is gone")}, zerolog.New(&log))
	if w := get(t, m); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "the registry is gone") {
		t.Errorf("log: %s", log.String())
	}
}

func TestNew_NeedsAFleet(t *testing.T) {
	t.Parallel()
	if _, err := metrics.New(metrics.Config{}); err == nil || !strings.Contains(err.Error(), "Fleet") {
		t.Errorf("error = %v", err)
	}
}
