package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// The names of the files beside a manifest.
const (
	sealedName = "secrets.enc"
	keyName    = ".key"
)

// The places of a key, as --key-from names them.
const (
	keyAuto  = "auto"
	keyEnv   = "env"   // SVC_SECRETS_KEY
	keyStore = "store" // keys/ID.key in the home of the supervisor
	keyFile  = "file"  // .key beside the manifest
)

// envSecretsKey holds the key of the secrets, here as for a formation.
const envSecretsKey = "SVC_SECRETS_KEY"

// vaultWait is how long a change waits for another one to end.
const vaultWait = 10 * time.Second

// vaultFlags say which secrets are meant.
type vaultFlags struct{ path, from string }

// vault is the secrets of one formation that somebody writes.
type vault struct {
	dir, enc string
	from     string          // where the key is, or will be: keyEnv, keyStore or keyFile
	keyPath  string          // of keyStore and keyFile
	keys     secretfile.Keys // none before the first secret
	values   map[string]string
	home     *home  // of the key store, nil without one
	id       string // of the formation, with home
}

// openVault reads the secrets and their key.
func (a *app) openVault(flags *vaultFlags) (*vault, error) {
	v, err := a.findVault(flags)
	if err != nil {
		return nil, err
	}
	v.values, err = secretfile.Open(v.enc, v.keys...)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.values = make(map[string]string)
	case err != nil && len(v.keys) == 0:
		return nil, &hint{
			fault.Errorf(fault.Invalid, "SecretsError", "%s has no key", v.enc),
			"put its key into " + filepath.Join(v.dir, keyName) + " or " + envSecretsKey + ", or name the supervisor that keeps it with --home",
		}
	case err != nil:
		return nil, &hint{err, "the key is from " + v.source()}
	}
	return v, nil
}

// readVault reads the secrets between two changes.
func (a *app) readVault(flags *vaultFlags) (*vault, error) {
	unlock, err := flags.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return a.openVault(flags)
}

// changeVault changes the secrets in one step, one change at a time.
func (a *app) changeVault(flags *vaultFlags, change func(*vault) error) (*vault, error) {
	unlock, err := flags.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, err := a.openVault(flags)
	if err != nil {
		return nil, err
	}
	if err := change(v); err != nil {
		return nil, err
	}
	return v, a.saveVault(v)
}

func (f *vaultFlags) lock() (unlock func(), err error) {
	if info, err := os.Stat(f.path); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("--path %s: there is no such directory", f.path)
	}
	return secretfile.Lock(f.path, vaultWait)
}

// saveVault writes the secrets, and before the first ones a key.
func (a *app) saveVault(v *vault) error {
	if len(v.keys) == 0 {
		if err := v.saveKeys(secretfile.Keys{secretfile.GenerateKey()}); err != nil {
			return err
		}
		if v.from == keyFile {
			a.say("made the key %s: keep it, and keep it out of version control", v.keyPath)
		} else {
			a.say("made the key %s", v.keyPath)
		}
	}
	return secretfile.Save(v.enc, v.keys[0], v.values)
}

func (v *vault) saveKeys(keys secretfile.Keys) error {
	if v.from == keyStore {
		if err := os.MkdirAll(filepath.Dir(v.keyPath), 0o700); err != nil {
			return fmt.Errorf("make the key store: %w", err)
		}
		keys = append(keys, v.needed(keys)...)
		keys = keys[:min(len(keys), secretfile.MaxKeys)]
	}
	if err := secretfile.SaveKeys(v.keyPath, keys); err != nil {
		return err
	}
	v.keys = keys
	return nil
}

// needed returns the keys beside keys that open the secrets of versions which
// are deployed: the store's key is tried instead of the one in the bundle, and
// a restart or a rollback needs it.
func (v *vault) needed(keys secretfile.Keys) secretfile.Keys {
	dirs, err := versionDirs(filepath.Join(v.home.formationDir(v.id), "versions"))
	if err != nil {
		return nil // nothing is deployed
	}
	var more secretfile.Keys
	for _, dir := range dirs {
		sealed := filepath.Join(dir, sealedName)
		if _, err := secretfile.Unseal(sealed, append(slices.Clone(keys), more...)...); err == nil {
			continue
		}
		candidates := slices.Clone(v.keys)
		if own, err := secretfile.ReadKeys(filepath.Join(dir, keyName)); err == nil {
			candidates = append(candidates, own...)
		}
		for _, k := range candidates {
			if _, err := secretfile.Unseal(sealed, k); err == nil {
				more = append(more, k)
				break
			}
		}
	}
	return more
}

// findVault finds the formation and the place of its key.
func (a *app) findVault(flags *vaultFlags) (*vault, error) {
	dir, err := filepath.Abs(flags.path)
	if err != nil {
		return nil, fmt.Errorf("--path %s: %w", flags.path, err)
	}
	file, err := manifest.Find(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is no formation: %w", dir, err)
	}
	v := &vault{dir: dir, enc: filepath.Join(dir, sealedName)}
	switch flags.from {
	case keyEnv, keyFile:
	case keyAuto, keyStore:
		if err := a.findStore(v, file, flags.from == keyStore); err != nil {
			return nil, err
		}
	default:
		return nil, usagef("--key-from %q: it must be auto, env, store or file", flags.from)
	}
	return v, a.findKey(v, flags.from)
}

// findStore finds the key store of the supervisor on this machine. Nobody who
// did not ask for it needs one.
func (a *app) findStore(v *vault, file string, wanted bool) error {
	_, err := os.Stat(filepath.Join(a.homeDir(), "config.yaml"))
	if err != nil && !wanted && a.home == "" {
		return nil
	}
	h, err := a.openHome()
	switch {
	case errors.Is(err, fs.ErrPermission) && !wanted && a.home == "":
		return nil // a supervisor of somebody else
	case err != nil:
		return err
	}
	if v.id, err = manifestID(file); err != nil {
		return err
	}
	v.home = h
	return nil
}

// manifestID reads the id of a formation, whatever else is wrong with it.
func manifestID(file string) (string, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the manifest: %w", err)
	}
	var m struct {
		ID string `yaml:"id"`
	}
	if err := yaml.Unmarshal(src, &m); err != nil {
		return "", fmt.Errorf("the key store knows formations by their id: %s cannot be read", file)
	}
	if err := manifest.CheckID(m.ID); err != nil {
		return "", fmt.Errorf("the key store knows formations by their id: %s: %w", file, err)
	}
	return m.ID, nil
}

// storePath is where the supervisor keeps the key of the formation.
func (v *vault) storePath() string {
	return filepath.Join(v.home.absolute("keys"), v.id+".key")
}

// findKey reads the key where it is said to be, or where it is first.
func (a *app) findKey(v *vault, from string) (err error) {
	text := a.getenv(envSecretsKey)
	switch {
	case from == keyEnv || from == keyAuto && text != "":
		v.from = keyEnv
		if v.keys, err = secretfile.ParseKeys(text); err != nil {
			return fmt.Errorf("%s: %w", envSecretsKey, err)
		}
		return nil
	case v.home != nil:
		v.from, v.keyPath = keyStore, v.storePath()
		v.keys, err = secretfile.ReadKeys(v.keyPath)
		if from == keyStore || !errors.Is(err, fs.ErrNotExist) {
			break
		}
		fallthrough
	default:
		v.from, v.keyPath = keyFile, filepath.Join(v.dir, keyName)
		v.keys, err = secretfile.ReadKeys(v.keyPath)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// source says where the key is.
func (v *vault) source() string {
	if v.from == keyEnv {
		return envSecretsKey
	}
	return v.keyPath
}

func (v *vault) missing(name string) error {
	return &client.Error{
		Status: http.StatusNotFound, Name: "SecretNotFound", Message: fmt.Sprintf("there is no secret %s in %s", name, v.enc),
	}
}
