package main

import (
	"fmt"
	"os"
	"path/filepath"

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
	prefix string // of header names, "" for the default
	home   *home  // the local home it was read from, else nil
	origin string // where address and key come from, in words
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
		t.url = a.server
	}
	s, err := client.NewServer(client.ServerConfig{
		URL: t.url, KeyID: t.keyID, SecretKey: t.secret, HeaderPrefix: t.prefix, Retries: retries,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", t.origin, err)
	}
	return t, s, nil
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
		return a.targetOfEnvironment(), nil
	}
	if profiles.Default != "" {
		return profiles.target(profiles.Default)
	}
	if _, err := os.Stat(filepath.Join(a.defaultHome(), "config.yaml")); err != nil {
		if a.server != "" {
			return a.targetOfEnvironment(), nil
		}
		return nil, usagef("no supervisor is named: give --home, --profile or SVC_SERVER_URL")
	}
	return a.targetOfHome(a.defaultHome())
}

func (a *app) targetOfEnvironment() *target {
	return &target{
		url: a.getenv("SVC_SERVER_URL"), keyID: a.getenv("SVC_KEY_ID"),
		secret: client.Secret(a.getenv("SVC_SECRET_KEY")), prefix: a.getenv("SVC_HEADER_PREFIX"),
		origin: "SVC_SERVER_URL and SVC_KEY_ID",
	}
}

// formation makes a client of one formation behind the supervisor.
func (t *target) formation(id string, cfg client.FormationConfig) (*client.Formation, error) {
	cfg.URL, cfg.ID, cfg.HeaderPrefix, cfg.Retries = t.url, id, t.prefix, retries
	return client.NewFormation(cfg)
}
