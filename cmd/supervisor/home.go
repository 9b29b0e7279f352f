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

// defaultHome is the home of a user's own supervisor.
func (a *app) defaultHome() string { return filepath.Join(a.userHome, ".svc", "server") }

// openHome reads the settings of --home or of the default home.
func (a *app) openHome() (*home, error) {
	dir := a.home
	if dir == "" {
		dir = a.defaultHome()
	}
	cfg, err := supervisor.LoadConfig(dir, a.getenv)
	if err != nil {
		return nil, err
	}
	return &home{dir: dir, cfg: cfg}, nil
}

// targetOfHome returns the supervisor that serves a home: the address that a
// running one left there, else the one of its settings.
func (a *app) targetOfHome(dir string) (*target, error) {
	cfg, err := supervisor.LoadConfig(dir, a.getenv)
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir, cfg: cfg}
	t := &target{url: cfg.URL(), prefix: cfg.HeaderPrefix, home: h, origin: filepath.Join(dir, "config.yaml")}
	if len(cfg.Auth.Keys) > 0 && cfg.Auth.Enabled {
		t.keyID, t.secret = cfg.Auth.Keys[0].ID, client.Secret(cfg.Auth.Keys[0].Secret)
	}
	served, err := h.servedAt()
	if served != "" {
		t.url = served
	}
	return t, err
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
	addr, err := netip.ParseAddrPort(strings.TrimSpace(string(raw)))
	if err != nil {
		return "", fmt.Errorf("%s holds no address: remove it", h.addressPath())
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
	dir := h.cfg.Formations.Dir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(h.cfg.Home, dir)
	}
	return filepath.Join(dir, id)
}
