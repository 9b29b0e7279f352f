package metrics_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestScrape_StateOfEachFormation(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.MustDeploy(t, "first", nil)
	f.MustDeploy(t, "second", nil)
	p := f.scrape(t)
	p.want(t, map[string]float64{
		`supervisor_formations{status="running"}`:                      2,
		`supervisor_formations{status="stopped"}`:                      0,
		`supervisor_formations{status="crashed"}`:                      0,
		`supervisor_ports_leased`:                                      2,
		`supervisor_ports_available`:                                   8,
		`supervisor_start_time_seconds`:                                1700000000,
		`formation_status{formation="first",status="running"}`:         1,
		`formation_status{formation="first",status="stopped"}`:         0,
		`formation_status{formation="first",status="starting"}`:        0,
		`formation_status{formation="first",status="stopping"}`:        0,
		`formation_status{formation="first",status="crashed"}`:         0,
		`formation_status{formation="first",status="restarting"}`:      0,
		`formation_healthy{formation="first"}`:                         1,
		`formation_restarts_total{formation="first"}`:                  0,
		`formation_active_requests{formation="first"}`:                 0,
		`formation_requests_total{formation="first"}`:                  0,
		`formation_proxy_requests_total{code="2xx",formation="first"}`: 0,
	})
	if !strings.Contains(p.text, `formation_version_info{formation="first",sha256="`) || !strings.Contains(p.text, `version="1.2.3"} 1`) {
		t.Error("the version is not told")
	}
	if _, err := f.Service.Stop(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	f.scrape(t).want(t, map[string]float64{
		`supervisor_formations{status="running"}`:                      1,
		`supervisor_formations{status="stopped"}`:                      1,
		`formation_status{formation="second",status="stopped"}`:        1,
		`formation_status{formation="second",status="running"}`:        0,
		`formation_restarts_total{formation="second"}`:                 0,
		`-formation_healthy{formation="second"}`:                       0, // nothing is known
		`-formation_uptime_seconds{formation="second"}`:                0,
		`-formation_process_resident_memory_bytes{formation="second"}`: 0,
		`-formation_process_cpu_seconds_total{formation="second"}`:     0,
		`-formation_requests_total{formation="second"}`:                0,
		`formation_healthy{formation="first"}`:                         1,
	})
}

func TestScrape_ACrashedProcessIsCountedAndReplaced(t *testing.T) {
	t.Parallel()
	f := start(t)
	before := f.MustDeploy(t, "hello", nil).Process.PID
	f.ask(t, http.MethodPost, "/api/hello/exit") // it dies of it
	deploytest.Eventually(t, "the process is replaced", func() bool {
		v, err := f.Service.Get(t.Context(), "hello")
		return err == nil && v.Process.PID != 0 && v.Process.PID != before
	})
	f.scrape(t).want(t, map[string]float64{
		`formation_restarts_total{formation="hello"}`:                  1,
		`formation_status{formation="hello",status="running"}`:         1,
		`formation_proxy_requests_total{code="5xx",formation="hello"}`: 1,
	})
}

func TestScrape_MemoryTimeAndAgeAreThoseOfTheProcess(t *testing.T) {
	t.Parallel()
	f := start(t)
	v := f.MustDeploy(t, "hello", nil)
	stat := func() procfs.ProcStat {
		p, err := procfs.NewProc(v.Process.PID)
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	deploytest.Eventually(t, "the process has worked a while", func() bool {
		for range 20 {
			f.ask(t, http.MethodGet, "/api/hello/")
		}
		return stat().CPUTime() >= 0.03
	})
	before := stat()
	p := f.scrape(t)
	after := stat()
	seconds, ok := p.series[`formation_process_cpu_seconds_total{formation="hello"}`]
	if !ok || seconds < before.CPUTime() || seconds > after.CPUTime() {
		t.Errorf("processor time = %v, want %v to %v", seconds, before.CPUTime(), after.CPUTime())
	}
	// It breathes a little; bytes are not to be mistaken for pages or kilobytes.
	size := p.series[`formation_process_resident_memory_bytes{formation="hello"}`]
	if real := float64(after.ResidentMemory()); size < real/2 || size > real*2 || size < 1<<20 {
		t.Errorf("resident memory = %v, want about %v", size, real)
	}
	age := p.series[`formation_uptime_seconds{formation="hello"}`]
	if most := time.Since(v.Process.StartedAt).Seconds(); age <= 0 || age > most {
		t.Errorf("uptime = %v, want at most %v", age, most)
	}
}

func TestScrape_RequestsAndTheirLatencyPerFormation(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.MustDeploy(t, "first", nil)
	f.MustDeploy(t, "second", nil)
	for range 3 {
		if code := f.ask(t, http.MethodGet, "/api/first/"); code != http.StatusOK {
			t.Fatalf("status %d", code)
		}
	}
	f.ask(t, http.MethodGet, "/api/second/ticks?10") // ten events, ten milliseconds each
	p := f.scrape(t)
	p.want(t, map[string]float64{
		`formation_proxy_requests_total{code="2xx",formation="first"}`:                  3,
		`formation_proxy_requests_total{code="4xx",formation="first"}`:                  0,
		`formation_proxy_requests_total{code="5xx",formation="first"}`:                  0,
		`formation_proxy_requests_total{code="none",formation="first"}`:                 0,
		`formation_proxy_request_duration_seconds_count{formation="first"}`:             3,
		`formation_proxy_request_duration_seconds_bucket{formation="first",le="+Inf"}`:  3,
		`formation_proxy_requests_total{code="2xx",formation="second"}`:                 1,
		`formation_proxy_request_duration_seconds_count{formation="second"}`:            1,
		`formation_proxy_request_duration_seconds_bucket{formation="second",le="0.05"}`: 0,
		`formation_proxy_request_duration_seconds_bucket{formation="second",le="300"}`:  1,
		`formation_proxy_request_duration_seconds_bucket{formation="second",le="+Inf"}`: 1,
		`-formation_proxy_request_duration_seconds_count{formation="nobody"}`:           0,
		`supervisor_requests_total{code="2xx"}`:                                         0,
	})
	if sum := p.series[`formation_proxy_request_duration_seconds_sum{formation="second"}`]; sum < 0.05 || sum > 60 {
		t.Errorf("a stream of 100 ms took %v s", sum)
	}
	f.calls.Observe(http.StatusCreated, 1500*time.Millisecond)
	f.calls.Observe(http.StatusNotFound, time.Millisecond)
	f.scrape(t).want(t, map[string]float64{
		`supervisor_requests_total{code="2xx"}`:                  1,
		`supervisor_requests_total{code="4xx"}`:                  1,
		`supervisor_request_duration_seconds_sum`:                1.501,
		`supervisor_request_duration_seconds_bucket{le="0.001"}`: 1,
		`supervisor_request_duration_seconds_bucket{le="1"}`:     1,
		`supervisor_request_duration_seconds_bucket{le="2.5"}`:   2,
		`supervisor_request_duration_seconds_count`:              2,
	})
}

func TestScrape_ADeletedFormationDisappears(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.MustDeploy(t, "first", nil)
	f.MustDeploy(t, "second", nil)
	f.ask(t, http.MethodGet, "/api/first/")
	of := func(p page, id string) (n int) {
		for series := range p.series {
			if strings.Contains(series, `formation="`+id+`"`) {
				n++
			}
		}
		return n
	}
	p := f.scrape(t)
	if a, b := of(p, "first"), of(p, "second"); a != b || a < 30 {
		t.Errorf("series: %d of the first, %d of the second", a, b)
	}
	if err := f.Service.Delete(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	after := f.scrape(t)
	if n := of(after, "first"); n != 0 {
		t.Errorf("%d series of a deleted formation", n)
	}
	if a, b := of(p, "second"), of(after, "second"); a != b {
		t.Errorf("the other one had %d series and has %d", a, b)
	}
	after.want(t, map[string]float64{`supervisor_formations{status="running"}`: 1, `supervisor_ports_leased`: 1})
}

func TestScrape_NamesAndUnitsFollowTheConventions(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.MustDeploy(t, "hello", nil)
	f.ask(t, http.MethodGet, "/api/hello/")
	p := f.scrape(t)
	for _, problem := range p.lint(t) {
		if ours(problem.Metric) {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
	n := 0
	for name, kind := range p.types {
		if !ours(name) {
			continue
		}
		n++
		switch total := strings.HasSuffix(name, "_total"); {
		case kind == "counter" != total:
			t.Errorf("%s is a %s", name, kind)
		case kind == "histogram" && !strings.HasSuffix(name, "_seconds"):
			t.Errorf("%s has no unit", name)
		case kind == "untyped":
			t.Errorf("%s has no type", name)
		}
		if !strings.Contains(p.text, "# HELP "+name+" ") {
			t.Errorf("%s has no help", name)
		}
	}
	if n < 15 {
		t.Errorf("only %d metrics are ours", n)
	}
	for _, usual := range []string{"go_goroutines", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} {
		if p.types[usual] == "" {
			t.Errorf("%s of the supervisor itself is missing", usual)
		}
	}
}

func ours(metric string) bool {
	return strings.HasPrefix(metric, "supervisor_") || strings.HasPrefix(metric, "formation_")
}
