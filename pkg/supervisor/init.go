package supervisor

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// InitOptions say what a new home directory is like.
type InitOptions struct {
	Home string
	// Host is where the management API will listen; "" means 127.0.0.1.
	Host string
	// Port of the management API; 0 means 7890.
	Port int
	// Name begins the server_id; "" means the name of the host.
	Name string
}

// InitResult tells what Init made or found.
type InitResult struct {
	ConfigPath string
	Created    bool // false when a config.yaml was there, which is never changed
	URL        string
	// KeyID and Secret are the first pair of the file, for a client's profile.
	KeyID, Secret string
}

// Init makes a home directory with a config.yaml (0600) that holds a new random
// key pair. Where one exists already it is left alone and read. Init never
// asks and prints nothing.
func Init(opts InitOptions) (InitResult, error) {
	home, err := checkHome(opts.Home)
	if err != nil {
		return InitResult{}, err
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return InitResult{}, fmt.Errorf("make home directory: %w", err)
	}
	path := filepath.Join(home, configName)
	created, err := writeNew(path, initialConfig(opts))
	if err != nil {
		return InitResult{}, err
	}
	cfg, err := LoadConfig(home, nil)
	if err != nil && created { // else the next Init would keep what is wrong
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return InitResult{}, err
	}
	r := InitResult{ConfigPath: path, Created: created, URL: cfg.URL()}
	first := cfg.Auth.First()
	r.KeyID, r.Secret = first.ID, string(first.Secret)
	return r, nil
}

// URL is the address by which a client on this machine reaches the management
// API.
func (c Config) URL() string {
	host, port := c.Server.Host, strconv.Itoa(c.Server.Port)
	if c.Listen != "" {
		if h, p, err := net.SplitHostPort(c.Listen); err == nil {
			host, port = h, p
		}
	}
	switch host {
	case "", "0.0.0.0", "::":
		host = "127.0.0.1"
	}
	scheme := "http://"
	if c.Server.TLS.On() {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

func initialConfig(opts InitOptions) string {
	if opts.Host == "" {
		opts.Host = "127.0.0.1"
	}
	if opts.Port == 0 {
		opts.Port = 7890
	}
	name := opts.Name
	if name == "" {
		name, _ = os.Hostname() // without one the id is random alone
	}
	return fmt.Sprintf(`# Settings of the supervisor. Whole numbers are seconds; "30s" and "5m" work too.
# A change of auth.keys takes effect at once ("supervisor keys" makes them), any
# other at "supervisor reload".
server_id: %s

server:
  host: %q   # 0.0.0.0 serves every network interface
  port: %d

auth:
  keys:
    - id: %s
      secret: %s

formations:
  port_range_start: 8000
  port_range_end: 9000
`, serverID(name), opts.Host, opts.Port, "svc_pk_"+randomHex(12), "svc_sk_"+randomHex(28))
}

// serverID is "server-<host, at most 16 characters>-<8 hex>".
func serverID(host string) string {
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return -1
	}, host)
	return "server-" + host[:min(len(host), 16)] + "-" + randomHex(4)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // ends the program instead of failing
	return hex.EncodeToString(b)
}

// writeNew writes text to path (0600) unless there is a file already. A reader
// sees the whole file or none.
func writeNew(path, text string) (created bool, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".config-*")
	if err != nil {
		return false, fmt.Errorf("write settings: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return false, fmt.Errorf("write settings: %w", err)
	}
	switch err := os.Link(tmp.Name(), path); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrExist):
		return false, nil
	default:
		return false, fault.Wrap(fault.Failed, "InitError", "write "+path+": "+err.Error(), err)
	}
}
