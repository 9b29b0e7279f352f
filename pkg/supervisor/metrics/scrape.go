package metrics

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// scrape reads the fleet once, for one answer.
type scrape struct {
	ctx context.Context //nolint:containedctx // a Collector takes none, and a scrape lives as long as its request
	cfg *Config
}

// Describe names nothing beforehand: what there is to tell depends on the fleet.
func (s *scrape) Describe(chan<- *prometheus.Desc) {}

// Collect reads everything.
func (s *scrape) Collect(out chan<- prometheus.Metric) {
	w := writer{out}
	w.gauge("supervisor_build_info", "The running build; always 1.", 1,
		"version", s.cfg.Version, "go_version", runtime.Version())
	w.gauge("supervisor_start_time_seconds", "When this supervisor began, in Unix seconds.", float64(s.cfg.StartedAt.Unix()))
	if s.cfg.Ports != nil {
		leased, total := s.cfg.Ports()
		w.gauge("supervisor_ports_leased", "Ports that formations and drafts have.", float64(leased))
		w.gauge("supervisor_ports_available", "Ports of the range that nobody has.", float64(max(0, total-leased)))
	}
	if s.cfg.Calls != nil {
		w.meter("supervisor_requests", "supervisor_request_duration_seconds", "management calls", s.cfg.Calls.Read())
	}
	views, err := s.cfg.Fleet.List(s.ctx, "")
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewDesc("supervisor_formations", "Formations by status.", nil, nil), err)
		return
	}
	s.fleet(w, views)
}

// statuses are all that a formation can have, so that each is told at any time.
func statuses() []process.Status {
	return []process.Status{
		process.StatusStopped, process.StatusStarting, process.StatusRunning, process.StatusStopping,
		process.StatusCrashed, process.StatusRestarting,
	}
}

func (s *scrape) fleet(w writer, views []deploy.View) {
	count := make(map[process.Status]int)
	for _, v := range views {
		count[v.Process.Status]++
	}
	for _, status := range statuses() {
		w.gauge("supervisor_formations", "Formations by status.", float64(count[status]), "status", string(status))
	}
	children := s.children(views)
	for i, v := range views {
		s.formation(w, v)
		if child := children[i]; child != nil {
			w.gauge("formation_active_requests", "Requests that the formation works on.", float64(child.ActiveRequests), "formation", v.ID)
			w.counter("formation_requests_total", "Requests that the formation's present process has taken.", float64(child.TotalRequests), "formation", v.ID)
		}
	}
}

// children asks all serving children side by side; who does not answer in time
// has nil.
func (s *scrape) children(views []deploy.View) []*control.Status {
	ctx, cancel := context.WithTimeout(s.ctx, childTimeout)
	defer cancel()
	all := make([]*control.Status, len(views))
	var wg sync.WaitGroup
	for i, v := range views {
		if v.Process.PID == 0 {
			continue
		}
		wg.Go(func() {
			if status, err := s.cfg.Fleet.ChildStatus(ctx, v.ID); err == nil {
				all[i] = &status
			}
		})
	}
	wg.Wait()
	return all
}

func (s *scrape) formation(w writer, v deploy.View) {
	for _, status := range statuses() {
		w.gauge("formation_status", "1 for the status that the formation has.", flag(v.Process.Status == status),
			"formation", v.ID, "status", string(status))
	}
	if v.Current != nil {
		w.gauge("formation_version_info", "The deployed version; always 1.", 1,
			"formation", v.ID, "version", v.Current.Semantic, "sha256", v.Current.SHA256)
	}
	w.counter("formation_restarts_total", "Restarts since the formation was deployed.", float64(v.RestartCount), "formation", v.ID)
	if s.cfg.Proxied != nil {
		w.meter("formation_proxy_requests", "formation_proxy_request_duration_seconds", "requests through the proxy",
			s.cfg.Proxied(v.ID), "formation", v.ID)
	}
	if v.Process.Healthy != nil {
		w.gauge("formation_healthy", "Whether the formation's process says it is ready.", flag(*v.Process.Healthy), "formation", v.ID)
	}
	if v.Process.PID == 0 {
		return
	}
	w.gauge("formation_uptime_seconds", "How long the present process has served.", v.Uptime.Truncate(time.Millisecond).Seconds(), "formation", v.ID)
	stat, err := statOf(v.Process.PID)
	if err != nil {
		return // it has just ended
	}
	w.gauge("formation_process_resident_memory_bytes", "Resident memory of the formation's process.", float64(stat.ResidentMemory()), "formation", v.ID)
	w.counter("formation_process_cpu_seconds_total", "CPU time of the formation's present process.", stat.CPUTime(), "formation", v.ID)
}

func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// writer makes metrics of numbers. labels are names and values in turns.
type writer struct{ out chan<- prometheus.Metric }

func (w writer) gauge(name, help string, value float64, labels ...string) {
	w.write(prometheus.GaugeValue, name, help, value, labels)
}

func (w writer) counter(name, help string, value float64, labels ...string) {
	w.write(prometheus.CounterValue, name, help, value, labels)
}

func (w writer) write(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	desc, values := describe(name, help, labels)
	w.out <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}

// meter writes a count by class of status and a histogram. The class is
// "none" when the client left before an answer.
func (w writer) meter(count, duration, what string, r httpx.MeterReading, labels ...string) {
	for class, n := range r.Classes {
		code := "none"
		if class > 0 {
			code = strconv.Itoa(class) + "xx"
		}
		w.counter(count+"_total", "Answered "+what+" by class of status.", float64(n), append(slices.Clip(labels), "code", code)...)
	}
	buckets := make(map[float64]uint64, len(r.Bounds))
	for i, bound := range r.Bounds {
		buckets[bound] = r.Within[i]
	}
	desc, values := describe(duration, "How long "+what+" took, to the end of the answer.", labels)
	w.out <- prometheus.MustNewConstHistogram(desc, r.Count, r.Sum.Seconds(), buckets, values...)
}

func describe(name, help string, labels []string) (*prometheus.Desc, []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return prometheus.NewDesc(name, help, names, nil), values
}
