package supervisor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
	"github.com/agentformation/service/pkg/supervisor/auth"
)

// KeyTaking is how long a running supervisor needs at most to take a change of
// its management keys.
const KeyTaking = 2*keyPoll + time.Second

// Key is one pair of id and secret for the management API.
type Key = auth.Key

// keyShape is what can stand in an Authorization header.
var keyShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// AddKey adds a management key to the settings of a home and returns it; "" as
// its id makes a random one. A running supervisor accepts it within KeyTaking,
// beside the others. The rest of the file stays as it is, comments included. The
// errors are fault.Conflict when the id is taken, and fault.Invalid when the file
// is written in a way that has to be edited by hand.
func AddKey(home, id string) (auth.Key, error) {
	k := newKey(cmp.Or(id, "svc_pk_"+randomHex(12)))
	if !keyShape.MatchString(k.ID) {
		return auth.Key{}, fault.Errorf(fault.Invalid, "", "%q cannot be the id of a key: want up to 128 letters, digits, dots, dashes and underscores", k.ID)
	}
	err := editKeys(home, func(e *keyEdit) error {
		if slices.ContainsFunc(e.keys, named(k.ID)) {
			return fault.Errorf(fault.Conflict, "", "there is a management key %s already", k.ID)
		}
		return e.insert(len(e.keys), k)
	})
	return orNone(k, err)
}

// RotateKey gives a management key a new secret and returns it. Until a time the
// old secret is accepted too; zero ends it at once. The errors are
// fault.NotFound, fault.Conflict when the key has too many older secrets that
// still are accepted, and fault.Invalid as for AddKey.
func RotateKey(home, id string, until time.Time) (auth.Key, error) {
	k := newKey(id)
	err := editKeys(home, func(e *keyEdit) error {
		at := slices.IndexFunc(e.keys, func(k auth.Key) bool { return k.ID == id && k.Until.IsZero() })
		if at < 0 {
			return noKey(id)
		}
		older := -1
		for _, k := range e.keys {
			if k.ID == id {
				older++
			}
		}
		if !until.IsZero() && older+2 > auth.MaxSecrets {
			return fault.Errorf(fault.Conflict, "", "%s has %d older secrets that still are accepted: end them first", id, older)
		}
		if err := e.insert(at, k); err != nil {
			return err
		}
		if until.IsZero() {
			return e.cut(at + 1)
		}
		return e.end(at+1, until.UTC().Truncate(time.Second))
	})
	return orNone(k, err)
}

// RemoveKey takes a management key out of the settings of a home: a running
// supervisor refuses it within KeyTaking. The errors are fault.NotFound,
// fault.Conflict for the last key, without which nobody could call the supervisor
// any more, and fault.Invalid as for AddKey.
func RemoveKey(home, id string) error {
	return editKeys(home, func(e *keyEdit) error {
		if !slices.ContainsFunc(e.keys, named(id)) {
			return noKey(id)
		}
		if !slices.ContainsFunc(e.keys, func(k auth.Key) bool { return k.ID != id && k.Until.IsZero() }) {
			return fault.Errorf(fault.Conflict, "", "%s is the only management key: add another one first", id)
		}
		return e.cutAll(named(id))
	})
}

// EndOverlap ends the older secrets of a management key at once and returns how
// many it had. The errors are fault.NotFound, and fault.Invalid as for AddKey.
func EndOverlap(home, id string) (ended int, err error) {
	err = editKeys(home, func(e *keyEdit) error {
		if !slices.ContainsFunc(e.keys, named(id)) {
			return noKey(id)
		}
		before := len(e.keys)
		err := e.cutAll(func(k auth.Key) bool { return k.ID == id && !k.Until.IsZero() })
		ended = before - len(e.keys)
		return err
	})
	return ended, err
}

// orNone gives no key away that is in no file.
func orNone(k auth.Key, err error) (auth.Key, error) {
	if err != nil {
		return auth.Key{}, err
	}
	return k, nil
}

func newKey(id string) auth.Key {
	return auth.Key{ID: id, Secret: auth.Secret("svc_sk_" + randomHex(28))}
}

func named(id string) func(auth.Key) bool { return func(k auth.Key) bool { return k.ID == id } }

func noKey(id string) error {
	return fault.Errorf(fault.NotFound, "", "there is no management key %s", id)
}

// keyEdit is a change of the keys in the text of settings, step by step: keys is
// what the text has to mean in the end.
type keyEdit struct {
	text []byte
	keys []auth.Key
}

// insert writes a key before the i-th.
func (e *keyEdit) insert(i int, k auth.Key) error {
	return e.step(slices.Insert(slices.Clone(e.keys), i, k), func(t *keyText) { t.insertKey(i, k) })
}

// end sets when the i-th key ends.
func (e *keyEdit) end(i int, until time.Time) error {
	keys := slices.Clone(e.keys)
	keys[i].Until = until
	return e.step(keys, func(t *keyText) { t.endKey(i, until) })
}

// cut takes the i-th key out.
func (e *keyEdit) cut(i int) error {
	return e.step(slices.Delete(slices.Clone(e.keys), i, i+1), func(t *keyText) { t.cutKey(i) })
}

// cutAll takes keys out.
func (e *keyEdit) cutAll(gone func(auth.Key) bool) error {
	for i, k := range slices.Backward(e.keys) {
		if !gone(k) {
			continue
		}
		if err := e.cut(i); err != nil {
			return err
		}
	}
	return nil
}

// step makes one change to the text.
func (e *keyEdit) step(keys []auth.Key, change func(*keyText)) error {
	t, err := parseKeyText(e.text)
	if err != nil {
		return err
	}
	change(t)
	e.text, e.keys = t.bytes(), keys
	return nil
}

// editKeys changes the keys in the settings of a home, and drops those that have
// ended. Whatever the steps did to the text, the file is replaced only when the
// result has exactly the wanted keys and means the same otherwise.
func editKeys(home string, edit func(*keyEdit) error) error {
	abs, err := checkHome(home)
	if err != nil {
		return err
	}
	unlock, err := lockDirectory(abs)
	if err != nil {
		return err
	}
	defer unlock()
	cfg, err := LoadConfig(abs, nil)
	if err != nil {
		return err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(abs, configName))
	if err != nil {
		return fmt.Errorf("find the settings: %w", err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	e := &keyEdit{text: old, keys: cfg.Auth.Keys}
	now := time.Now()
	if err := e.cutAll(func(k auth.Key) bool { return !k.Valid(now) }); err != nil {
		return err
	}
	if err := edit(e); err != nil {
		return err
	}
	if bytes.Equal(e.text, old) {
		return nil
	}
	got, err := parseConfig(abs, path, e.text, nil)
	if err != nil || !sameKeys(got.Auth.Keys, e.keys) || !sameButKeys(got, cfg) {
		return fault.Errorf(fault.Invalid, "ConfigError", "auth.keys in %s is written in a way that only a person can edit: change it by hand", path)
	}
	return replaceLike(path, e.text)
}

// sameKeys compares sets: a key of the older form comes last in the settings,
// wherever it stands.
func sameKeys(a, b []auth.Key) bool {
	order := func(x, y auth.Key) int { return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(x.Secret, y.Secret)) }
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order),
		func(x, y auth.Key) bool { return order(x, y) == 0 && x.Until.Equal(y.Until) })
}

func sameButKeys(a, b Config) bool {
	for _, c := range []*Config{&a, &b} {
		c.Auth.Keys, c.Warnings, c.origin, c.read = nil, nil, nil, stamp{}
	}
	return reflect.DeepEqual(a, b)
}

// lockDirectory keeps two editors of one home apart; the second one waits a
// while.
func lockDirectory(dir string) (unlock func(), err error) {
	const tries, pause = 100, 50 * time.Millisecond
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open home directory: %w", err)
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range tries {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { filelock.Release(f) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock home directory: %w", err), f.Close())
		}
		<-tick.C
	}
	f.Close()
	return nil, fault.Errorf(fault.Conflict, "", "another process is changing the settings in %s: try again", dir)
}

// replaceLike puts a new text in the place of a file, with its mode and owner. A
// reader, also after a crash, sees the old text or the new.
func replaceLike(path string, text []byte) (err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".config-*")
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write settings: %w", err), os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(os.FileMode(st.Mode&0o777)))
	if int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		err = errors.Join(err, tmp.Chown(int(st.Uid), int(st.Gid)))
	}
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	// The file is in place. That the directory is on the disk, too, can only be asked.
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}
