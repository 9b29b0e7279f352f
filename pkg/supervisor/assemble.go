package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/pkg/supervisor/registry"
	"github.com/agentformation/service/pkg/version"
)

// house is all parts of a running supervisor.
type house struct {
	registry *registry.Registry
	ports    *ports.Pool
	auth     *auth.Verifier
	deploy   *deploy.Service
	proxy    *proxy.Proxy
	api      *httpapi.API
	auditLog *os.File
}

// close frees what assemble opened; the children are not its business.
func (h *house) close() error {
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
	return errors.Join(errs...)
}

// assemble opens and connects the parts, lowest floor first.
func (s *Supervisor) assemble(ctx context.Context, addr net.Addr) (_ *house, err error) {
	h := &house{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	c := s.cfg
	if h.registry, err = registry.Open(ctx, registry.Config{Path: filepath.Join(c.Home, "registry.db")}); err != nil {
		return nil, err
	}
	h.ports, err = ports.New(ports.Config{Host: c.Formations.BindHost, First: c.Formations.PortFirst, Last: c.Formations.PortLast})
	if err != nil {
		return nil, err
	}
	h.auth, err = auth.New(auth.Config{
		Keys: c.Auth.Keys, HeaderPrefix: c.HeaderPrefix, Tolerance: c.Auth.TimestampTolerance,
		RequireBodyHash: c.Auth.RequireBodyHash, Disabled: !c.Auth.Enabled,
	})
	if err != nil {
		return nil, err
	}
	port := portOf(addr)
	if h.deploy, err = deploy.New(s.deployConfig(h, port)); err != nil {
		return nil, err
	}
	h.proxy = proxy.New(proxy.Config{
		Log: s.log, Target: proxyTarget(h.deploy, c.Formations.BindHost), HeaderPrefix: c.HeaderPrefix,
		Version: version.Version, TrustedProxies: c.Server.TrustedProxies,
	})
	if h.auditLog, err = openLogFile(s.path(c.Logging.AuditLog)); err != nil {
		return nil, err
	}
	h.api, err = httpapi.New(httpapi.Config{
		Log: s.log, Deploy: h.deploy, Registry: h.registry, Auth: h.auth, Proxy: h.proxy, AuditLog: h.auditLog,
		Server: httpapi.Server{
			ID: s.serverID(), Version: version.Version, Port: port,
			PortFirst: c.Formations.PortFirst, PortLast: c.Formations.PortLast, StartedAt: time.Now(),
		},
		HeaderPrefix: c.HeaderPrefix, TrustedProxies: c.Server.TrustedProxies,
		MaxBundle: int64(c.Limits.Bundle.MaxBytes),
	})
	return h, err
}

func (s *Supervisor) deployConfig(h *house, port int) deploy.Config {
	f, b := s.cfg.Formations, s.cfg.Limits.Bundle
	ready := f.Deployment.HealthCheck.Timeout // 0 is the longer default of the process
	return deploy.Config{
		Log: s.log, Registry: h.registry, Ports: h.ports,
		Dirs: deploy.Dirs{
			Formations: s.path(f.Dir), Logs: s.path(f.LogsDir), Run: s.path("run"), Tmp: s.path("tmp"),
			Cache: s.path("cache"), Keys: s.path("keys"),
		},
		Limits: archive.Limits{
			MaxBytes: int64(b.MaxBytes), MaxUnpacked: int64(b.MaxUnpacked), MaxEntries: b.MaxEntries, MaxRatio: b.MaxRatio,
		},
		MaxFormations: f.MaxFormations,
		AutoRestart:   f.AutoRestart,
		Child: deploy.Child{
			Binary: s.cfg.Runtime, Env: s.allowedEnv(),
			ServerURL: "http://localhost:" + strconv.Itoa(port), ServerID: s.serverID(), HeaderPrefix: s.cfg.HeaderPrefix,
			ReadyTimeout: ready, DrainTimeout: f.DrainTimeout, KillTimeout: f.Deployment.ForceKillTimeout,
			OrphanTimeout: f.OrphanTimeout,
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
	var env []string
	for _, name := range append([]string{"TZ"}, s.cfg.Formations.EnvAllow...) {
		if v, ok := s.cfg.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// proxyTarget tells the proxy where formations answer: on the address they are
// bound to, or on loopback when they are bound to all.
func proxyTarget(d *deploy.Service, bindHost string) func(context.Context, string) (proxy.Target, error) {
	host := bindHost
	if ip, err := netip.ParseAddr(bindHost); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	return func(ctx context.Context, id string) (proxy.Target, error) {
		t, err := d.Target(ctx, id)
		if err != nil {
			return proxy.Target{}, err
		}
		return proxy.Target{Addr: net.JoinHostPort(host, strconv.Itoa(t.Port)), Launch: t.Launch}, nil
	}
}

func portOf(addr net.Addr) int {
	if a, ok := addr.(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}
