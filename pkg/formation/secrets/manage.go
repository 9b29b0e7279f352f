package secrets

import (
	"maps"
	"slices"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
)

// The error codes of the API (reference runtime.md 1.3).
const (
	codeNotFound = "SECRET_NOT_FOUND"
	codeExists   = "SECRET_EXISTS"
	codeInUse    = "SECRET_IN_USE"
	codeError    = "SECRETS_ERROR"
	codeReload   = "SECRETS_RELOAD_FAILED"
)

// storeFault is what a caller hears of a file that cannot be read or written.
func storeFault(what string, err error) error {
	if err == nil {
		return nil
	}
	return fault.Wrap(fault.Internal, codeError, what, err)
}

func notFound(name string) error {
	return fault.Errorf(fault.NotFound, codeNotFound, "There is no secret %s", name)
}

// Masked returns what may be shown of every value, by name. Values that could
// not be read are fault.Internal "SECRETS_ERROR".
func (s *Store) Masked() (map[string]string, error) {
	v, err := s.look()
	if err != nil {
		return nil, storeFault("The changed secrets cannot be read", err)
	}
	masked := make(map[string]string, len(v.values))
	for name, value := range v.values {
		masked[name] = secretfile.Mask(value)
	}
	return masked, nil
}

// Mask returns the one form of a name and what may be shown of its value. The
// errors are those of Masked, and fault.NotFound "SECRET_NOT_FOUND".
func (s *Store) Mask(name string) (normal, masked string, err error) {
	normal = secretfile.Normalize(name)
	v, err := s.look()
	if err != nil {
		return normal, "", storeFault("The changed secrets cannot be read", err)
	}
	value, ok := v.values[normal]
	if !ok {
		return normal, "", notFound(normal)
	}
	return normal, secretfile.Mask(value), nil
}

// Create adds a secret, which must not exist: fault.Conflict "SECRET_EXISTS".
// It is durable when Create returns, and holds over restarts and updates, until
// a version brings a value of its own.
func (s *Store) Create(name, value string) (normal string, err error) {
	normal = secretfile.Normalize(name)
	return normal, s.change(func(v *view) error {
		if _, ok := v.values[normal]; ok {
			return fault.Errorf(fault.Conflict, codeExists, "There is a secret %s already: PUT replaces its value", normal)
		}
		if len(v.values) >= secretfile.MaxValues {
			return fault.Errorf(fault.Conflict, "", "%d secrets are the limit", secretfile.MaxValues)
		}
		set(v, normal, value)
		return nil
	})
}

// Update replaces the value of a secret, which must exist, and tells whether
// something that the formation's files configured at the start keeps the value
// that held then, because Config.Live does not know it.
func (s *Store) Update(name, value string) (normal string, kept bool, err error) {
	normal = secretfile.Normalize(name)
	return normal, s.fixed[normal], s.change(func(v *view) error {
		if _, ok := v.values[normal]; !ok {
			return notFound(normal)
		}
		set(v, normal, value)
		return nil
	})
}

// Delete removes a secret, which must exist and not be used by the formation's
// files: fault.Conflict "SECRET_IN_USE".
func (s *Store) Delete(name string) (normal string, err error) {
	normal = secretfile.Normalize(name)
	return normal, s.change(func(v *view) error {
		if _, ok := v.values[normal]; !ok {
			return notFound(normal)
		}
		if places := s.used[normal]; places != nil {
			return fault.Errorf(fault.Conflict, codeInUse, "The secret %s is used by the formation at %s: take it out there and redeploy first",
				normal, places[0]).With("used_by", places)
		}
		delete(v.changes, normal)
		if sum := sumOf(v.file, normal); sum != "" {
			v.changes[normal] = change{Deleted: true, Replaces: sum}
		}
		return nil
	})
}

// set records a new value in v.changes.
func set(v *view, name, value string) {
	if old, ok := v.file[name]; ok && old == value {
		delete(v.changes, name)
		return
	}
	v.changes[name] = change{Value: value, Replaces: sumOf(v.file, name)}
}

// change lets do change the changes of a copy of the current view, and keeps
// the result.
func (s *Store) change(do func(*view) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := s.lock()
	if err != nil {
		return storeFault("Another change of the secrets takes too long: try again", err)
	}
	defer unlock()
	v, err := s.refresh()
	if err != nil {
		return storeFault("The changed secrets cannot be read", err)
	}
	next := &view{file: v.file, changes: maps.Clone(v.changes), values: v.values}
	if err := do(next); err != nil {
		return err
	}
	return storeFault("The change cannot be kept: the secrets are as before", s.write(next.file, next.changes))
}

func (s *Store) lock() (unlock func(), err error) {
	if s.cfg.StateDir == "" {
		return func() {}, nil
	}
	return secretfile.Lock(s.cfg.StateDir, lockWait)
}

// Reload reads secrets.enc again and merges it: what it has holds from now on,
// whatever was set through the API, and what it lacks stays. The names are of
// what it added, of what it has in the place of a value there was, and of what
// is not in it. An error is fault.Internal "SECRETS_RELOAD_FAILED", and
// everything is as before.
func (s *Store) Reload() (added, overwritten, preserved []string, err error) {
	read, err := readFile(s.cfg)
	if err != nil {
		return nil, nil, nil, fault.Wrap(fault.Internal, codeReload, "The encrypted secrets cannot be read: everything is as before", err)
	}
	added, overwritten, preserved = []string{}, []string{}, []string{}
	err = s.change(func(v *view) error {
		v.file = maps.Clone(v.file)
		if v.file == nil {
			v.file = make(map[string]string)
		}
		for _, name := range slices.Sorted(maps.Keys(read)) {
			if _, ok := v.values[name]; ok {
				overwritten = append(overwritten, name)
			} else {
				added = append(added, name)
			}
			v.file[name] = read[name]
			delete(v.changes, name)
		}
		for _, name := range slices.Sorted(maps.Keys(v.values)) {
			if _, ok := read[name]; !ok {
				preserved = append(preserved, name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, nil, fault.Wrap(fault.Internal, codeReload, "The reloaded secrets cannot be kept: everything is as before", err)
	}
	return added, overwritten, preserved, nil
}
