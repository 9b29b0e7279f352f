package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

// keysFile is the name of the generated keys in the state directory.
const keysFile = "keys"

// maxKeysFile is the largest keys file that is read, in bytes.
const maxKeysFile = 4 << 10

// The prefixes of generated keys; 43 characters follow, 256 random bits.
const (
	adminPrefix  = "fma_"
	clientPrefix = "fmc_"
)

// Keys open the formation's API: Admin all of it, Client the part for users.
type Keys struct {
	Admin  Value
	Client Value
	// Generated tells that a key was made by this call, for the audit.
	Generated bool
}

// storedKeys is the keys file. `supervisor keys show` reads it too.
type storedKeys struct {
	Admin  string `json:"admin_key,omitempty"`
	Client string `json:"client_key,omitempty"`
}

// LoadKeys returns the formation's keys. What the manifest names wins, with
// its placeholders resolved; a key that it does not name is generated once and
// kept in stateDir, readable by the owner alone. An empty value behind a
// placeholder is fault.Invalid "SecretsError", and so is a damaged keys file:
// new keys would lock out every client without a word.
func LoadKeys(stateDir string, server manifest.Server, resolve manifest.Resolver) (Keys, error) {
	var keys Keys
	var err error
	if keys.Admin, err = written("server.api_keys.admin_key", server.AdminKey, resolve); err != nil {
		return Keys{}, err
	}
	if keys.Client, err = written("server.api_keys.client_key", server.ClientKey, resolve); err != nil {
		return Keys{}, err
	}
	if !keys.Admin.Empty() && !keys.Client.Empty() {
		return keys, nil
	}
	err = fill(filepath.Join(stateDir, keysFile), &keys)
	return keys, err
}

// written returns the key that the manifest names, empty when it names none.
func written(key, text string, resolve manifest.Resolver) (Value, error) {
	if text == "" {
		return Value{}, nil
	}
	value, err := manifest.Expand(text, resolve)
	if err != nil {
		return Value{}, fault.Wrap(fault.Invalid, faultName, key+" cannot be resolved: "+err.Error(), err)
	}
	if value == "" {
		return Value{}, fault.New(fault.Invalid, faultName,
			key+" is empty after its placeholder was resolved; give it a value or leave the key out to have one generated")
	}
	return NewValue(value), nil
}

// fill completes keys from the file at path, generating what it lacks.
func fill(path string, keys *Keys) error {
	stored, err := readKeys(path)
	if err != nil {
		return err
	}
	changed := complete(&keys.Admin, &stored.Admin, adminPrefix)
	if complete(&keys.Client, &stored.Client, clientPrefix) {
		changed = true
	}
	if !changed {
		return nil
	}
	if err := writeKeys(path, stored); err != nil {
		return fmt.Errorf("keep generated keys: %w", err)
	}
	keys.Generated = true
	return nil
}

// complete fills v from stored, and stored with a new key when it has none.
func complete(v *Value, stored *string, prefix string) (changed bool) {
	if !v.Empty() {
		return false
	}
	if *stored == "" {
		var random [32]byte
		_, _ = rand.Read(random[:]) // never fails since Go 1.24
		*stored = prefix + base64.RawURLEncoding.EncodeToString(random[:])
		changed = true
	}
	*v = NewValue(*stored)
	return changed
}

func readKeys(path string) (storedKeys, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return storedKeys{}, nil
	}
	if err != nil {
		return storedKeys{}, fmt.Errorf("open keys: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeysFile+1))
	if err != nil {
		return storedKeys{}, fmt.Errorf("read keys: %w", err)
	}
	var stored storedKeys
	if err := json.Unmarshal(data, &stored); err != nil || len(data) > maxKeysFile {
		// The decoder's own text may repeat what it read; it is not passed on.
		return storedKeys{}, fault.New(fault.Invalid, faultName,
			"the keys file "+path+" is damaged: restore it, or remove it to have new keys generated")
	}
	return stored, nil
}

// writeKeys replaces the keys file in one step.
func writeKeys(path string, stored storedKeys) error {
	data, err := json.MarshalIndent(stored, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), keysFile+".*.tmp") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // a no-op once renamed
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
