package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor"
)

// home is a supervisor's directory on this machine.
type home struct {
	dir string
	cfg supervisor.Config
}

// systemHome is where deploy/install.sh puts the home of a host's supervisor.
const systemHome = "/var/lib/svc"

// ownHome is the home of a user's own supervisor.
func (a *app) ownHome() string { return filepath.Join(a.userHome, ".svc", "server") }

// defaultHome is the home of a user's own supervisor, or that of the host where
// the user has none and the host has one.
func (a *app) defaultHome() string {
	if a.systemHome == "" || isHome(a.ownHome()) || !isHome(a.systemHome) {
		return a.ownHome()
	}
	return a.systemHome
}

// isHome tells whether a directory has settings, as far as it can be seen: what
// is closed to this user is taken for one, and what follows says so.
func isHome(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "config.yaml"))
	return err == nil || errors.Is(err, fs.ErrPermission)
}

// openHome reads the settings of --home or of the default home.
func (a *app) openHome() (*home, error) {
	dir := a.homeDir()
	return a.loadHome(dir)
}

func (a *app) loadHome(dir string) (*home, error) {
	cfg, err := supervisor.LoadConfig(dir, a.getenv)
	if errors.Is(err, fs.ErrPermission) {
		return nil, &hint{err, "run this as the user that the supervisor runs as, or as root; --profile calls it without its home"}
	}
	if err != nil {
		return nil, err
	}
	return &home{dir: dir, cfg: cfg}, nil
}

// targetOfHome returns the supervisor that serves a home: the address that a
// running one left there, else the one of its settings.
func (a *app) targetOfHome(dir string) (*target, error) {
	h, err := a.loadHome(dir)
	if err != nil {
		return nil, err
	}
	cfg := h.cfg
	t := &target{url: cfg.URL(), prefix: cfg.HeaderPrefix, home: h, origin: filepath.Join(dir, "config.yaml")}
	if k := cfg.Auth.First(); cfg.Auth.Enabled {
		t.keyID, t.secret = k.ID, client.Secret(k.Secret)
	}
	served, err := h.servedAt()
	if err != nil {
		return nil, err
	}
	if served != "" {
		t.url = served
	}
	return t, h.trust(t)
}

// trust lets t call this home's supervisor over TLS: it trusts the certificate
// in the settings and no other, whatever name that is for.
func (h *home) trust(t *target) error {
	if !h.cfg.Server.TLS.On() {
		return nil
	}
	path := h.absolute(h.cfg.Server.TLS.Cert)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the supervisor's certificate: %w", err)
	}
	if t.trust, err = client.TrustOnly(text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// addressPath is the file in which a running supervisor leaves its address:
// --listen, or port 0, makes it another than the settings say.
func (h *home) addressPath() string { return filepath.Join(h.cfg.Home, "run", "address") }

// servedAt returns the address that a supervisor left, "" when none did.
func (h *home) servedAt() (string, error) {
	raw, err := os.ReadFile(h.addressPath())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the supervisor's address: %w", err)
	}
	text, secure := strings.CutPrefix(strings.TrimSpace(string(raw)), "https://")
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return "", fmt.Errorf("%s holds no address: remove it", h.addressPath())
	}
	if secure {
		return "https://" + reachable(addr).String(), nil
	}
	return "http://" + reachable(addr).String(), nil
}

// reachable replaces "every interface" by this machine.
func reachable(addr netip.AddrPort) netip.AddrPort {
	switch ip := addr.Addr().Unmap(); {
	case ip == netip.IPv4Unspecified() || ip == netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	default:
		return netip.AddrPortFrom(ip, addr.Port())
	}
}

// formationDir is where the files of one formation lie.
func (h *home) formationDir(id string) string {
	return filepath.Join(h.absolute(h.cfg.Formations.Dir), id)
}

// absolute resolves a path of the settings, which may be relative to the home.
func (h *home) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(h.cfg.Home, path)
}
