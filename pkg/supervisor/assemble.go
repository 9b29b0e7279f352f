package supervisor

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
	"github.com/agentformation/service/pkg/supervisor/limits"
	"github.com/agentformation/service/pkg/supervisor/logs"
	"github.com/agentformation/service/pkg/supervisor/metrics"
	"github.com/agentformation/service/pkg/supervisor/notify"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/pkg/supervisor/registry"
	"github.com/agentformation/service/pkg/tracing"
	"github.com/agentformation/service/pkg/version"
)

// childLameDuck is how long a replaced child waits for idle clients: they need
// to learn that it ends.
const childLameDuck = 2 * time.Second

// house is all parts of a running supervisor.
type house struct {
	registry *registry.Registry
	ports    *ports.Pool
	auth     *auth.Verifier
	deploy   *deploy.Service
	proxy    *proxy.Proxy
	api      *httpapi.API
	auditLog *os.File
	tracing  *tracing.Tracing
	tls      *tls.Config // nil without TLS
	// startedAt is when this program began to serve; runs are what it does beside
	// answering requests.
	startedAt time.Time
	runs      []func(context.Context)
}

// close frees what assemble opened; the children are not its business.
func (h *house) close(ctx context.Context) error {
	var errs []error
	if h.proxy != nil {
		h.proxy.Close()
	}
	if h.ports != nil {
		errs = append(errs, h.ports.Close())
	}
	if h.auditLog != nil {
		errs = append(errs, h.auditLog.Close())
	}
	if h.registry != nil {
		errs = append(errs, h.registry.Close())
	}
	h.tracing.Close(ctx)
	return errors.Join(errs...)
}

// assemble opens and connects the parts, lowest floor first.
func (s *Supervisor) assemble(ctx context.Context, e *estate) (_ *house, err error) {
	h := &house{startedAt: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close(ctx))
		}
	}()
	c := s.cfg
	if h.registry, err = registry.Open(ctx, registry.Config{Path: s.path("registry.db")}); err != nil {
		return nil, err
	}
	h.ports, err = ports.New(ports.Config{Host: c.Formations.BindHost, First: c.Formations.PortFirst, Last: c.Formations.PortLast})
	if err != nil {
		return nil, err
	}
	if err := s.claimSockets(ctx, e, h); err != nil {
		return nil, err
	}
	h.auth, err = auth.New(auth.Config{
		Keys: c.Auth.Keys, HeaderPrefix: c.HeaderPrefix, Tolerance: c.Auth.TimestampTolerance,
		RequireBodyHash: c.Auth.RequireBodyHash, Disabled: !c.Auth.Enabled,
	})
	if err != nil {
		return nil, err
	}
	port := portOf(e.door.addr)
	cfg := s.deployConfig(h, port)
	if cfg.Alert, err = s.alert(h); err != nil {
		return nil, err
	}
	if h.deploy, err = deploy.New(cfg); err != nil {
		return nil, err
	}
	if err := s.assembleDoor(ctx, h, port); err != nil {
		return nil, err
	}
	h.runs = append(h.runs, h.api.Run, func(ctx context.Context) { s.watchKeys(ctx, h.auth.SetKeys) }, s.keepEmbedder)
	if r := s.rotator(); r != nil {
		h.runs = append(h.runs, r.Run)
	}
	return h, nil
}

// claimSockets gives the formations the sockets that a former program kept.
func (s *Supervisor) claimSockets(ctx context.Context, e *estate, h *house) error {
	if len(e.sockets) == 0 {
		return nil
	}
	rows, err := h.registry.List(ctx)
	if err != nil {
		return fmt.Errorf("list the formations: %w", err)
	}
	for _, row := range rows {
		fd, left := e.sockets[row.Port]
		if !left {
			continue
		}
		socket, err := h.ports.Reserve(row.ID, row.Port)
		if err == nil {
			err = socket.Take(fd)
		}
		if err != nil {
			s.log.Warn().Err(err).Str("formation", row.ID).Msg("a socket is not kept over the reload")
			continue
		}
		delete(e.sockets, row.Port)
	}
	return nil
}

// assembleDoor makes what stands between the use cases and the clients.
func (s *Supervisor) assembleDoor(ctx context.Context, h *house, port int) (err error) {
	c := s.cfg
	if h.tls, err = s.useTLS(h); err != nil {
		return err
	}
	if h.tracing, err = s.openTracing(ctx); err != nil {
		return err
	}
	h.proxy = proxy.New(proxy.Config{
		Log: s.log, HeaderPrefix: c.HeaderPrefix, Version: version.Version, TrustedProxies: c.Server.TrustedProxies,
		Target: s.find(h.deploy.Target), Draft: s.find(h.deploy.DraftTarget),
	})
	calls := &httpx.Meter{}
	numbers, err := metrics.New(metrics.Config{
		Log: s.log, Fleet: h.deploy, Proxied: h.proxy.Counted, Calls: calls, Version: version.Version, StartedAt: h.startedAt,
		Ports: func() (leased, total int) {
			return h.ports.Leased(), c.Formations.PortLast - c.Formations.PortFirst + 1
		},
	})
	if err != nil {
		return err
	}
	audit := s.path(c.Logging.AuditLog)
	if h.auditLog, err = openLogFile(audit); err != nil {
		return err
	}
	h.api, err = httpapi.New(httpapi.Config{
		Log: s.log, Deploy: h.deploy, Registry: h.registry, Auth: h.auth, Proxy: h.proxy, AuditLog: h.auditLog,
		AuditLogPath: audit,
		Server: httpapi.Server{
			ID: s.serverID(), Version: version.Version, Port: port,
			PortFirst: c.Formations.PortFirst, PortLast: c.Formations.PortLast, StartedAt: h.startedAt,
		},
		HeaderPrefix: c.HeaderPrefix, TrustedProxies: c.Server.TrustedProxies,
		MaxBundle: int64(c.Limits.Bundle.MaxBytes), LeasedPorts: h.ports.Leased,
		RateLimit: httpapi.RateLimit{PerMinute: c.Server.Limits.PerMinute, Burst: c.Server.Limits.Burst},
		Metrics:   numbers, MetricsToken: string(c.Metrics.Token), Calls: calls, Tracer: h.tracing.Provider(),
	})
	return err
}

// useTLS reads the certificate and follows its files; nil without one.
func (s *Supervisor) useTLS(h *house) (*tls.Config, error) {
	t := s.cfg.Server.TLS
	if !t.On() {
		return nil, nil
	}
	cert, err := loadCertificate(s.path(t.Cert), s.path(t.Key), s.log)
	if err != nil {
		return nil, err
	}
	h.runs = append(h.runs, cert.watch)
	return cert.config(), nil
}

// rotator is nil when logs are not rotated.
func (s *Supervisor) rotator() *logs.Rotator {
	f := s.cfg.Formations
	if !f.LogRotation {
		return nil
	}
	return &logs.Rotator{
		Log: s.log, MaxSize: int64(f.LogMaxSize), MaxFiles: f.LogMaxFiles,
		Paths: func() []string {
			paths, _ := filepath.Glob(filepath.Join(s.path(f.LogsDir), "*.log")) // the pattern is well-formed unless the directory's name is not
			paths = append(paths, s.cfg.logFiles()...)
			slices.Sort(paths)
			return slices.Compact(paths)
		},
	}
}

// alert returns what posts notices to the webhook, nil when there is none.
func (s *Supervisor) alert(h *house) (func(deploy.Notice), error) {
	c := s.cfg.Notify
	if c.Webhook == "" {
		return nil, nil
	}
	n, err := notify.New(notify.Config{
		Log: s.log, URL: string(c.Webhook), Secret: string(c.Secret), HeaderPrefix: s.cfg.HeaderPrefix,
	})
	if err != nil {
		return nil, err
	}
	h.runs = append(h.runs, n.Run)
	return func(x deploy.Notice) {
		n.Send(notify.Notice{Event: x.Event, FormationID: x.FormationID, Time: x.Time, Message: x.Message, Detail: x.Detail})
	}, nil
}

func (s *Supervisor) deployConfig(h *house, port int) deploy.Config {
	f, b := s.cfg.Formations, s.cfg.Limits.Bundle
	ready := f.Deployment.HealthCheck.Timeout // 0 is the longer default of the process
	return deploy.Config{
		Log: s.log, Registry: h.registry, Ports: h.ports,
		Dirs: deploy.Dirs{
			Formations: s.path(f.Dir), Logs: s.path(f.LogsDir), Run: s.path("run"), Tmp: s.path("tmp"),
			Cache: s.cfg.CacheDir, Keys: s.path("keys"),
		},
		Limits: archive.Limits{
			MaxBytes: int64(b.MaxBytes), MaxUnpacked: int64(b.MaxUnpacked), MaxEntries: b.MaxEntries, MaxRatio: b.MaxRatio,
		},
		MaxFormations: f.MaxFormations, KeepVersions: f.KeepVersions,
		AutoRestart: f.AutoRestart,
		Probation:   f.Deployment.Probation, LameDuck: childLameDuck,
		Guards: s.guards(),
		Child: deploy.Child{
			Binary: s.cfg.Runtime, Env: s.allowedEnv(),
			ServerURL: s.scheme() + "://localhost:" + strconv.Itoa(port), ServerID: s.serverID(), HeaderPrefix: s.cfg.HeaderPrefix,
			ReadyTimeout: ready, DrainTimeout: f.DrainTimeout, KillTimeout: f.Deployment.ForceKillTimeout,
			OrphanTimeout: f.OrphanTimeout, Budgets: s.cfg.budgetsOf,
		},
		Manager: process.ManagerConfig{
			Policy: process.Policy{
				Max: f.Restart.Max, Window: f.Restart.Window, Base: f.Restart.Base,
				MaxDelay: f.Restart.MaxDelay, Healthy: f.Restart.Healthy,
			},
			HealthInterval: f.HealthInterval, HealthTimeout: f.HealthTimeout,
			Unavailable: http.HandlerFunc(httpapi.Unavailable),
		},
	}
}

func (s *Supervisor) path(p string) string { return s.cfg.path(p) }

// guards hold the children within the operator's limits.
func (s *Supervisor) guards() *deploy.Guards {
	f := s.cfg.Formations
	p := limits.Policy{
		Default: f.Limits[defaultLimits].limits(), ByID: make(map[string]limits.Limits), MaxMemory: int64(f.MaxMemory),
		Users: f.UserRange, CgroupRoot: f.CgroupRoot, NoLandlock: !f.Landlock, Readable: f.Readable, Writable: f.Writable,
	}
	if p.Default.Memory == 0 {
		p.Default.Memory = int64(f.DefaultMemory)
	}
	for id, l := range f.Limits {
		if id != defaultLimits {
			p.ByID[id] = l.limits()
		}
	}
	return &deploy.Guards{Policy: p, Home: s.cfg.Home, ConfigDir: s.cfg.Home, FirstPort: f.PortFirst}
}

func (s *Supervisor) scheme() string {
	if s.cfg.Server.TLS.On() {
		return "https"
	}
	return "http"
}

// serverID is the configured id, else one that is the same at every start.
func (s *Supervisor) serverID() string {
	if s.cfg.ServerID != "" {
		return s.cfg.ServerID
	}
	sum := sha256.Sum256([]byte(s.cfg.Home))
	return "server-" + hex.EncodeToString(sum[:4])
}

// allowedEnv is what children see of our environment: the time zone and what
// the operator names.
func (s *Supervisor) allowedEnv() []string {
	env := []string{embedder.DirEnv + "=" + s.embedderDir()}
	for _, name := range append([]string{"TZ"}, s.cfg.Formations.EnvAllow...) {
		if v, ok := s.cfg.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// find tells the proxy where formations answer: on the address they are bound
// to, or on loopback when they are bound to all.
func (s *Supervisor) find(target func(context.Context, string) (deploy.Target, error)) proxy.FindFunc {
	host := reachableHost(s.cfg.Formations.BindHost)
	return func(ctx context.Context, id string) (proxy.Target, error) {
		t, err := target(ctx, id)
		if err != nil {
			return proxy.Target{}, err
		}
		return proxy.Target{Addr: net.JoinHostPort(host, strconv.Itoa(t.Port)), Launch: t.Launch}, nil
	}
}

// reachableHost replaces "every interface" by loopback.
func reachableHost(host string) string {
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil || !ip.IsUnspecified():
		return host
	case ip.Is6():
		return "::1"
	default:
		return "127.0.0.1"
	}
}

func portOf(addr net.Addr) int {
	if a, ok := addr.(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}
