package metrics_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/metrics"
	"github.com/agentformation/service/pkg/supervisor/proxy"
)

func TestMain(m *testing.M) {
	deploytest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

// fleet is a rig behind a proxy, with metrics, on real sockets.
type fleet struct {
	*deploytest.Rig
	calls       *httpx.Meter
	front, page string // addresses of the proxy and the metrics
	client      *http.Client
}

// patient waits longer for a child than a scrape does: on a machine that stands
// still for a second, each number would be missing now and then.
type patient struct{ metrics.Fleet }

const patience = time.Minute

func (p patient) ChildStatus(ctx context.Context, id string) (control.Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return p.Fleet.ChildStatus(ctx, id)
}

func start(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{Rig: deploytest.New(t, nil), calls: &httpx.Meter{}, client: &http.Client{Transport: &http.Transport{}, Timeout: patience}}
	service := f.Service
	px := proxy.New(proxy.Config{Log: zerolog.Nop(), Version: "9.9.9", Target: func(ctx context.Context, id string) (proxy.Target, error) {
		to, err := service.Target(ctx, id)
		return proxy.Target{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(to.Port)), Launch: to.Launch}, err
	}})
	m, err := metrics.New(metrics.Config{
		Log: zerolog.Nop(), Fleet: patient{service}, Proxied: px.Counted, Calls: f.calls, Version: "9.9.9", StartedAt: time.Unix(1700000000, 0),
		Ports: func() (int, int) { return f.Ports.Leased(), 10 },
	})
	if err != nil {
		t.Fatal(err)
	}
	e := httpx.NewEcho(httpx.Config{Log: zerolog.Nop()})
	px.Mount(e)
	front, page := httptest.NewServer(e), httptest.NewServer(m)
	f.front, f.page = front.URL, page.URL
	t.Cleanup(func() {
		f.Shutdown(t)
		f.client.CloseIdleConnections()
		front.Close()
		page.Close()
		px.Close()
	})
	return f
}

// ask sends one request through the proxy and returns the status.
func (f *fleet) ask(t *testing.T, method, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.front+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}

// page is one answer to a scrape.
type page struct {
	text   string
	types  map[string]string  // by name of the metric
	series map[string]float64 // by name and labels, as they stand
}

func (f *fleet) scrape(t *testing.T) page {
	t.Helper()
	res, err := f.client.Get(f.page)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%d %v %s", res.StatusCode, res.Header, text)
	}
	return parse(t, string(text))
}

func parse(t *testing.T, text string) page {
	t.Helper()
	p := page{text: text, types: make(map[string]string), series: make(map[string]float64)}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if words := strings.Fields(line); len(words) == 4 && words[1] == "TYPE" {
			p.types[words[2]] = words[3]
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if _, twice := p.series[line[:at]]; twice {
			t.Errorf("%s is there twice", line[:at])
		}
		p.series[line[:at]] = value
	}
	return p
}

// want compares series; a name that begins with - must not be there.
func (p page) want(t *testing.T, all map[string]float64) {
	t.Helper()
	for name, value := range all {
		got, ok := p.series[strings.TrimPrefix(name, "-")]
		if absent := strings.HasPrefix(name, "-"); absent && ok {
			t.Errorf("%s is there: %v", name[1:], got)
		} else if !absent && (!ok || got != value) {
			t.Errorf("%s = %v (there: %v), want %v", name, got, ok, value)
		}
	}
}

// lint returns what Prometheus' own linter says.
func (p page) lint(t *testing.T) []promlint.Problem {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(p.text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	return problems
}
