package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"

	"github.com/agentformation/service/pkg/client"
)

// retries is how often a command asks again when a supervisor is busy or
// restarting.
const retries = 2

// target is the supervisor that a command calls.
type target struct {
	url    string
	keyID  string
	secret client.Secret
	prefix string      // of header names, "" for the default
	trust  *tls.Config // whom at https addresses; nil for the system's authorities
	home   *home       // the local home it was read from, else nil
	origin string      // where the key comes from, in words
	from   string      // where the address comes from, "" for origin
	// keys are saved client keys by formation id.
	keys map[string]client.Secret
}

// connect finds the supervisor to call and makes a client of it.
func (a *app) connect() (*target, *client.Server, error) {
	t, err := a.target()
	if err != nil {
		return nil, nil, err
	}
	if a.server != "" {
		t.url, t.from = a.server, "--server"
	}
	s, err := t.client()
	return t, s, err
}

// client makes a client of the supervisor.
func (t *target) client() (*client.Server, error) {
	s, err := client.NewServer(client.ServerConfig{
		URL: t.url, KeyID: t.keyID, SecretKey: t.secret, HeaderPrefix: t.prefix, Retries: retries, TLS: t.trust,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(t.from, t.origin), err)
	}
	return s, nil
}

// target looks where the help text says, most explicit first.
func (a *app) target() (*target, error) {
	if a.home != "" && a.profile != "" {
		return nil, usagef("--home and --profile name two supervisors: give one")
	}
	if a.home != "" {
		return a.targetOfHome(a.home)
	}
	name := a.profile
	if name == "" {
		name = a.getenv("SVC_PROFILE")
	}
	profiles, err := readProfiles(a.profilesPath())
	if err != nil {
		return nil, err
	}
	if name != "" {
		return profiles.target(name)
	}
	if a.getenv("SVC_SERVER_URL") != "" {
		return a.targetOfEnvironment()
	}
	if profiles.Default != "" {
		return profiles.target(profiles.Default)
	}
	if !isHome(a.defaultHome()) {
		if a.server != "" {
			return a.targetOfEnvironment()
		}
		return nil, usagef("no supervisor is named: give --home, --profile or SVC_SERVER_URL, or make one of your own with `supervisor init` and `supervisor serve`")
	}
	return a.targetOfHome(a.defaultHome())
}

func (a *app) targetOfEnvironment() (*target, error) {
	trust, err := trustFile(a.getenv("SVC_CA_FILE"))
	if err != nil {
		return nil, err
	}
	return &target{
		url: a.getenv("SVC_SERVER_URL"), keyID: a.getenv("SVC_KEY_ID"),
		secret: client.Secret(a.getenv("SVC_SECRET_KEY")), prefix: a.getenv("SVC_HEADER_PREFIX"), trust: trust,
		origin: "SVC_SERVER_URL and SVC_KEY_ID",
	}, nil
}

// trustFile trusts the authorities in a file; without one, those of the system.
func trustFile(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // the nil config is one that works
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the authority: %w", err)
	}
	trust, err := client.TrustCA(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return trust, nil
}

// formation makes a client of one formation behind the supervisor.
func (t *target) formation(id string, cfg client.FormationConfig) (*client.Formation, error) {
	cfg.URL, cfg.ID, cfg.HeaderPrefix, cfg.Retries, cfg.TLS = t.url, id, t.prefix, retries, t.trust
	return client.NewFormation(cfg)
}
