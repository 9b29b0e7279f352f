// Package metrics tells Prometheus how the supervisor and its formations are.
//
// It promises to cost nothing between two scrapes: everything is read when it
// is asked for, from the fleet, from /proc and from the counters that the doors
// keep anyway. A child that does not answer its share of a scrape in time is
// left out of it. httpapi serves the Handler that pkg/supervisor makes.
package metrics

import (
	"context"
	"errors"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// Fleet is what is read of the formations. *deploy.Service is one.
type Fleet interface {
	List(ctx context.Context, status process.Status) ([]deploy.View, error)
	ChildStatus(ctx context.Context, id string) (control.Status, error)
}

// Config says where the numbers come from. Fleet must be set.
type Config struct {
	Log   zerolog.Logger
	Fleet Fleet
	// Proxied reads what the proxy counted for a formation; nil leaves it out.
	Proxied func(id string) httpx.MeterReading
	// Calls counts the management calls; nil leaves them out.
	Calls *httpx.Meter
	// Ports are how many ports are leased and how many there are; nil leaves them out.
	Ports     func() (leased, total int)
	Version   string
	StartedAt time.Time
}

const (
	// scrapeTimeout bounds one scrape, childTimeout its wait for the children.
	scrapeTimeout = 10 * time.Second
	childTimeout  = time.Second
	maxScrapes    = 2 // at once; more would only wait for the same children
)

// Metrics answers scrapes.
type Metrics struct {
	cfg   Config
	own   *prometheus.Registry // of this process; read anew at each scrape
	slots chan struct{}
}

// New returns Metrics over cfg.
func New(cfg Config) (*Metrics, error) {
	if cfg.Fleet == nil {
		return nil, errors.New("metrics: Fleet must be set")
	}
	own := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := own.Register(c); err != nil {
			return nil, err
		}
	}
	return &Metrics{cfg: cfg, own: own, slots: make(chan struct{}, maxScrapes)}, nil
}

// ServeHTTP answers one scrape in the format that the client asks for. More
// scrapes than two at once are 503.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		http.Error(w, "two scrapes are in progress", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	fleet := prometheus.NewRegistry()
	if err := fleet.Register(&scrape{ctx: ctx, cfg: &m.cfg}); err != nil {
		m.cfg.Log.Error().Err(err).Msg("metrics cannot be read")
		http.Error(w, "metrics cannot be read", http.StatusInternalServerError)
		return
	}
	promhttp.HandlerFor(prometheus.Gatherers{m.own, fleet}, promhttp.HandlerOpts{
		ErrorLog: log.New(errorLog{m.cfg.Log}, "", 0), ErrorHandling: promhttp.HTTPErrorOnError,
	}).ServeHTTP(w, r)
}

// errorLog takes the lines of promhttp.
type errorLog struct{ log zerolog.Logger }

// Write logs one line.
func (l errorLog) Write(p []byte) (int, error) {
	l.log.Warn().Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
