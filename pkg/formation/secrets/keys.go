package secrets

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// lookEvery is how often the keys file is looked at, at most. A look is one
// stat; the file is read when that differs.
const lookEvery = time.Second

// Keys open the formation's API: Admin all of it, Client the part for users.
// The present key comes first; those behind it are valid while a rotation
// overlaps.
type Keys struct {
	Admin, Client []Value
}

// KeyRing holds the keys of a running formation. What the manifest names wins,
// with its placeholders resolved; a key that it does not name is generated once
// and kept in the state directory, in a file that `supervisor keys rotate`
// changes while the formation runs. It is safe for concurrent use.
type KeyRing struct {
	path          string // "" when the manifest names both keys
	admin, client Value  // what the manifest names
	now           func() time.Time
	changed       func(error)

	current atomic.Pointer[ringState]
	mu      sync.Mutex // held by who looks at the file
}

type ringState struct {
	keys   *Keys
	stored secretfile.FormationKeys
	info   os.FileInfo // of the file when it was looked at last; nil when it was not there
	look   time.Time   // when to look again
	ends   time.Time   // when the first of the older keys ends; zero is never
}

// KeysConfig says where keys come from.
type KeysConfig struct {
	StateDir string
	Server   manifest.Server
	Resolve  manifest.Resolver
	// Changed is told of every change after OpenKeys, and of a file that can't
	// be read: then the keys stay as they are. nil tells nobody.
	Changed func(error)
	Now     func() time.Time // time.Now when nil
}

// OpenKeys returns the formation's keys, and whether some were generated. An
// empty value behind a placeholder is fault.Invalid "SecretsError", and so is a
// damaged keys file: new keys would lock out every client without a word.
func OpenKeys(cfg KeysConfig) (r *KeyRing, generated bool, err error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Changed == nil {
		cfg.Changed = func(error) {}
	}
	r = &KeyRing{now: cfg.Now, changed: cfg.Changed}
	if r.admin, err = written("server.api_keys.admin_key", cfg.Server.AdminKey, cfg.Resolve); err != nil {
		return nil, false, err
	}
	if r.client, err = written("server.api_keys.client_key", cfg.Server.ClientKey, cfg.Resolve); err != nil {
		return nil, false, err
	}
	if !r.admin.Empty() && !r.client.Empty() {
		r.current.Store(&ringState{keys: &Keys{Admin: []Value{r.admin}, Client: []Value{r.client}}})
		return r, false, nil
	}
	r.path = filepath.Join(cfg.StateDir, secretfile.KeysFile)
	stored, err := secretfile.LoadKeys(r.path)
	if err == nil && r.lacks(&stored) {
		generated = true
		stored, err = secretfile.UpdateKeys(r.path, r.complete)
	}
	if err != nil {
		return nil, false, err
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, false, err
	}
	r.take(stored, info)
	return r, generated, nil
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

func (r *KeyRing) lacks(stored *secretfile.FormationKeys) bool {
	return (r.admin.Empty() && stored.Admin == "") || (r.client.Empty() && stored.Client == "")
}

// complete generates what neither manifest nor file has.
func (r *KeyRing) complete(stored secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
	changed := r.lacks(&stored)
	if r.admin.Empty() && stored.Admin == "" {
		stored.Admin = secretfile.NewFormationKey(secretfile.AdminPrefix)
	}
	if r.client.Empty() && stored.Client == "" {
		stored.Client = secretfile.NewFormationKey(secretfile.ClientPrefix)
	}
	return stored, changed
}

// take makes what the file holds the current keys.
func (r *KeyRing) take(stored secretfile.FormationKeys, info os.FileInfo) {
	now := r.now()
	s := &ringState{keys: &Keys{}, stored: stored, look: now.Add(lookEvery), info: info}
	s.keys.Admin = add(nil, r.admin.Reveal(), stored.Admin)
	s.keys.Client = add(nil, r.client.Reveal(), stored.Client)
	for _, p := range stored.Valid(now) {
		if r.admin.Empty() {
			s.keys.Admin = add(s.keys.Admin, p.Admin, "")
		}
		if r.client.Empty() {
			s.keys.Client = add(s.keys.Client, p.Client, "")
		}
		if s.ends.IsZero() || p.ValidUntil.Before(s.ends) {
			s.ends = p.ValidUntil
		}
	}
	if !s.ends.IsZero() && s.ends.Before(s.look) {
		s.look = s.ends
	}
	r.current.Store(s)
}

// add appends the first text that is not empty.
func add(list []Value, text, otherwise string) []Value {
	if text == "" {
		text = otherwise
	}
	if text == "" {
		return list
	}
	return append(list, NewValue(text))
}

// Keys returns the keys that are valid now. The pointer is the same until they
// change.
func (r *KeyRing) Keys() *Keys {
	s := r.current.Load()
	if r.path == "" || r.now().Before(s.look) || !r.mu.TryLock() {
		return s.keys
	}
	defer r.mu.Unlock()
	r.refresh()
	return r.current.Load().keys
}

// refresh looks at the file; mu is held.
func (r *KeyRing) refresh() {
	s := *r.current.Load()
	now := r.now()
	if now.Before(s.look) {
		return // somebody was faster
	}
	info, err := os.Stat(r.path)
	ended := !s.ends.IsZero() && !now.Before(s.ends)
	if err == nil && !ended && sameFile(info, s.info) {
		s.look = now.Add(lookEvery)
		if !s.ends.IsZero() && s.ends.Before(s.look) {
			s.look = s.ends
		}
		r.current.Store(&s)
		return
	}
	var stored secretfile.FormationKeys
	if err == nil {
		if stored, err = secretfile.LoadKeys(r.path); err == nil && r.lacks(&stored) {
			err = fault.New(fault.Invalid, faultName, "the keys file "+r.path+" lacks a key")
		}
	}
	if err != nil {
		before := s.info
		r.take(s.stored, info) // older keys end on time whatever the file is
		if info != nil || before != nil {
			r.changed(err)
		}
		return
	}
	r.take(stored, info)
	r.changed(nil)
}

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
