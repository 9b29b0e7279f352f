package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/agentformation/service/pkg/client"
)

// maxProfiles is the largest profiles file that is read, in bytes.
const maxProfiles = 1 << 20

// profiles is the file ~/.svc/cli/profiles.yaml: supervisors under a name.
type profiles struct {
	Version  any                `yaml:"version"`
	Default  string             `yaml:"default"`
	Profiles map[string]profile `yaml:"profiles"`

	path string
}

// profile is one supervisor. Keys may hold client keys of its formations by id.
type profile struct {
	URL          string                   `yaml:"url"`
	KeyID        string                   `yaml:"key_id"`
	SecretKey    client.Secret            `yaml:"secret_key"`
	HeaderPrefix string                   `yaml:"header_prefix"`
	CAFile       string                   `yaml:"ca_file"`
	Keys         map[string]client.Secret `yaml:"keys"`
}

func (a *app) profilesPath() string { return filepath.Join(a.userHome, ".svc", "cli", "profiles.yaml") }

// readProfiles reads the file; a missing one has no profiles.
func readProfiles(path string) (*profiles, error) {
	p := &profiles{path: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read profiles: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxProfiles+1))
	if err != nil {
		return nil, fmt.Errorf("read profiles: %w", err)
	}
	if len(raw) > maxProfiles {
		return nil, fmt.Errorf("%s is over the limit of %d bytes", path, maxProfiles)
	}
	if err := yaml.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, false))
	}
	return p, nil
}

// has refuses a name that no profile has.
func (p *profiles) has(name string) error {
	if _, ok := p.Profiles[name]; ok {
		return nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(p.Profiles)), ", ")
	if known == "" {
		known = "none"
	}
	return usagef("there is no profile %q in %s (it has: %s)", name, p.path, known)
}

// target returns the supervisor with the given name.
func (p *profiles) target(name string) (*target, error) {
	if err := p.has(name); err != nil {
		return nil, err
	}
	got := p.Profiles[name]
	trust, err := trustFile(got.CAFile)
	if err != nil {
		return nil, err
	}
	return &target{
		url: got.URL, keyID: got.KeyID, secret: got.SecretKey, prefix: got.HeaderPrefix, keys: got.Keys, trust: trust,
		origin: fmt.Sprintf("profile %s in %s", name, p.path),
	}, nil
}
