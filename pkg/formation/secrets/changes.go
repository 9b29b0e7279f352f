package secrets

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
)

// lockWait bounds how long a change waits for one of another process: during an
// update, two have the same state directory.
const lockWait = 30 * time.Second

// change is what an administrator did to one secret. It holds as long as the
// version's own file has what it had then: a later version that brings another
// value was written later, and an earlier one after a rollback brings back what
// held with it.
type change struct {
	Value   string `json:"value,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	// Replaces is the SHA-256 of the file's value, "" when it had none.
	Replaces string `json:"replaces,omitempty"`
}

// view is all values at one time. It is never changed.
type view struct {
	file    map[string]string // of the version
	changes map[string]change
	values  map[string]string // what holds
	info    os.FileInfo       // of the changes when they were read, nil without
}

func sumOf(file map[string]string, name string) string {
	value, ok := file[name]
	if !ok {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

func newView(file map[string]string, changes map[string]change, info os.FileInfo) *view {
	v := &view{file: file, changes: changes, values: maps.Clone(file), info: info}
	if v.values == nil {
		v.values = make(map[string]string)
	}
	for name, c := range changes {
		switch {
		case c.Replaces != sumOf(file, name):
		case c.Deleted:
			delete(v.values, name)
		default:
			v.values[name] = c.Value
		}
	}
	return v
}

// path returns where a file of the state directory is.
func (s *Store) path(name string) string { return filepath.Join(s.cfg.StateDir, name) }

// open makes the first view.
func (s *Store) open(file map[string]string) error {
	changes, info, err := s.readChanges()
	if err != nil {
		return err
	}
	s.use(newView(file, changes, info))
	return nil
}

// use makes v the current view.
func (s *Store) use(v *view) {
	s.known(v.file, v.values)
	s.current.Store(v)
}

// known tells of values all at once: whoever hears of them makes a table anew.
func (s *Store) known(of ...map[string]string) {
	var all []string
	for _, values := range of {
		all = slices.AppendSeq(all, maps.Values(values))
	}
	s.cfg.Known(all...)
}

// look returns the current view, with what another process changed. With an
// error, it is the last one that could be read.
func (s *Store) look() (*view, error) {
	v := s.current.Load()
	if s.cfg.StateDir == "" {
		return v, nil
	}
	if info, err := os.Stat(s.path(secretfile.ChangesFile)); sameFile(info, v.info) || errors.Is(err, fs.ErrNotExist) && v.info == nil {
		return v, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refresh()
}

// refresh reads the changes again; mu is held.
func (s *Store) refresh() (*view, error) {
	v := s.current.Load()
	if s.cfg.StateDir == "" {
		return v, nil
	}
	changes, info, err := s.readChanges()
	if err != nil {
		return v, err
	}
	v = newView(v.file, changes, info)
	s.use(v)
	return v, nil
}

// readChanges reads what was changed, nothing when there is no file.
func (s *Store) readChanges() (map[string]change, os.FileInfo, error) {
	changes := make(map[string]change)
	if s.cfg.StateDir == "" {
		return changes, nil, nil
	}
	path := s.path(secretfile.ChangesFile)
	// Before the file is read: one that is replaced meanwhile is read again.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return changes, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look at the changed secrets: %w", err)
	}
	keys, err := secretfile.ReadKeys(s.path(secretfile.ChangesKeyFile))
	if err == nil {
		var plain []byte
		if plain, err = secretfile.Unseal(path, keys...); err == nil && json.Unmarshal(plain, &changes) != nil {
			err = errors.New("its content is no JSON of changes") // that of encoding/json could quote one
		}
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.Invalid, faultName, "what was changed through the API cannot be read from "+
			secretfile.ChangesFile+" in the state directory: restore it and "+secretfile.ChangesKeyFile+", or remove both to go back to the deployed values", err)
	}
	return changes, info, nil
}

// write keeps changes and makes the view of them the current one; mu is held,
// and so is the lock of the state directory.
func (s *Store) write(file map[string]string, changes map[string]change) error {
	next := newView(file, changes, nil)
	s.known(next.values) // before anything can fail with it
	if s.cfg.StateDir != "" {
		if err := s.save(changes); err != nil {
			return err
		}
		var err error
		if next.info, err = os.Stat(s.path(secretfile.ChangesFile)); err != nil {
			return fmt.Errorf("look at the changed secrets: %w", err)
		}
	}
	s.use(next)
	return nil
}

func (s *Store) save(changes map[string]change) error {
	key, err := s.changesKey()
	if err != nil {
		return err
	}
	data, err := json.Marshal(changes)
	if err != nil {
		return fmt.Errorf("encode the changed secrets: %w", err)
	}
	return secretfile.Seal(s.path(secretfile.ChangesFile), key, data)
}

// changesKey returns the key of the changes, which is made once. It is not the
// bundle's, which may be another one after an update.
func (s *Store) changesKey() (secretfile.Key, error) {
	path := s.path(secretfile.ChangesKeyFile)
	key, err := secretfile.ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = secretfile.GenerateKey()
	return key, secretfile.SaveKey(path, key)
}
