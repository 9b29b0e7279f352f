package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/archive"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// bundle is a formation that was checked and is ready to be sent.
type bundle struct {
	id      string
	version string // of the manifest, or the default
	tools   bool   // it has tool servers
	file    *os.File
	size    int64
	sum     string // SHA-256, as the supervisor names a bundle
	temp    string // removed by close
}

// openBundle checks the formation at path, a directory or a gzipped tar file,
// and returns its bundle.
func (a *app) openBundle(ctx context.Context, from string, keep func(name string) bool) (*bundle, error) {
	info, err := statFormation(from)
	if err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "formation-")
	if err != nil {
		return nil, fmt.Errorf("make room for the bundle: %w", err)
	}
	b := &bundle{temp: temp}
	if info.IsDir() {
		err = a.packDir(b, from, keep)
	} else {
		err = a.readBundle(ctx, b, from)
	}
	if err == nil {
		err = b.measure()
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// measure takes size and sum of the bundle.
func (b *bundle) measure() error {
	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the bundle: %w", err)
	}
	sum := sha256.New()
	size, err := io.Copy(sum, b.file)
	if err != nil {
		return fmt.Errorf("read the bundle: %w", err)
	}
	b.size, b.sum = size, hex.EncodeToString(sum.Sum(nil))
	return nil
}

func (a *app) packDir(b *bundle, dir string, keep func(string) bool) (err error) {
	if err := a.validate(b, dir, dir); err != nil {
		return err
	}
	if b.file, err = os.Create(filepath.Join(b.temp, "bundle.tar.gz")); err != nil {
		return fmt.Errorf("make the bundle: %w", err)
	}
	err = archive.Pack(b.file, dir, b.id, func(rel string, isDir bool) bool {
		return !keep(path.Base(rel)) || !isDir && isState(rel)
	})
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return nil
}

func (a *app) readBundle(ctx context.Context, b *bundle, file string) (err error) {
	if b.file, err = os.Open(file); err != nil {
		return fmt.Errorf("open bundle: %w", err)
	}
	switch packed, err := isGzip(file); {
	case err != nil:
		return err
	case !packed:
		return notBundle(file)
	}
	dir := filepath.Join(b.temp, "unpacked")
	if _, err := archive.Extract(ctx, b.file, dir, archive.DefaultLimits()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return a.validate(b, dir, file)
}

// validate reads the formation in dir, which the person knows as name, prints
// its warnings and takes its id and version.
func (a *app) validate(b *bundle, dir, name string) error {
	f, warnings, err := manifest.Load(dir)
	for _, w := range warnings {
		a.say("warning: %s", w)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be deployed:\n%w", name, err)
	}
	b.id, b.version = f.ID, cmp.Or(f.Version, manifest.DefaultVersion)
	b.tools = len(f.MCPServers) > 0 || slices.ContainsFunc(f.Agents, func(a manifest.Agent) bool { return len(a.MCPServers) > 0 })
	return nil
}

// close closes the bundle and removes what was made for it.
func (b *bundle) close() error {
	var err error
	if b.file != nil {
		err = b.file.Close()
	}
	return errors.Join(err, os.RemoveAll(b.temp))
}

// isState tells what a formation that ran alone in its directory keeps there: its
// keys and secrets are not those of a deployed one.
func isState(rel string) bool {
	return slices.Contains([]string{secretfile.KeysFile, secretfile.ChangesFile, secretfile.ChangesKeyFile}, rel)
}

// keepsName says whether a file or directory of that name belongs into a
// bundle: local settings, caches and what a formation wrote while it ran alone
// do not.
func keepsName(includeDB bool) func(string) bool {
	return func(name string) bool {
		switch name {
		case ".git", ".svc", "secrets", ".env", "node_modules", "__pycache__", ".DS_Store", ".vscode", ".idea":
			return false
		case "memory.db":
			return includeDB
		case "memory.db-wal", "memory.db-shm":
			return false
		}
		return !strings.HasPrefix(name, ".env.") && !slices.Contains([]string{".pyc", ".log", ".tmp"}, path.Ext(name))
	}
}
