// Package secrets gives the placeholders of a formation their values:
// ${{ secrets.NAME }} from the encrypted file beside the manifest, as changed
// through the API, and ${{ env.NAME }} from the variables that the operator
// allows. It also keeps the formation's own admin and client keys.
//
// It promises that everything missing is reported at once with its place, that a
// change through the API is kept before it is confirmed, and that no value or
// key shows up in a log, an error or an encoder's output: the ways out are
// Resolve and Value.Reveal. Only the assembly imports it.
package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// faultName is the error name of everything that is wrong with secrets.
const faultName = "SecretsError"

// The names of the files in a formation's directory.
const (
	encFile = "secrets.enc"
	keyFile = ".key"
)

// Config says where the values come from.
type Config struct {
	// Dir is the formation's directory, which may hold secrets.enc and .key.
	Dir string
	// StateDir keeps what the API changes; "" keeps it in memory only.
	StateDir string
	// Key is the text of the keys to secrets.enc, as the supervisor hands them
	// down; "" means the file .key in Dir.
	Key string
	// Env looks up a variable that the operator allows to ${{ env.NAME }}; nil
	// allows none.
	Env func(name string) (string, bool)
	// Live tells that whoever uses a placeholder resolves it at each use; nil is
	// never. The others keep the value that held when the formation was loaded.
	Live func(manifest.Ref) bool
	// Known is told every value that is read or set, so that no log shows it;
	// nil tells nobody.
	Known func(values ...string)
}

// Store holds the values of a formation: those of the version's encrypted file,
// changed by what an administrator did through the API (see changes.go). It is
// safe for concurrent use.
type Store struct {
	cfg   Config
	used  map[string][]string // the places that use a name, as the author wrote them
	fixed map[string]bool     // names that something keeps the value of

	current atomic.Pointer[view]
	mu      sync.Mutex // held by who makes a new view
}

// Open reads the values that refs ask for. It fails with fault.Invalid
// "SecretsError" when a file cannot be opened, or when a placeholder has no
// value: the message then names every one of them with file, line and column.
// Placeholders of user credentials are resolved per user later and not checked.
// A secrets.enc that cannot be opened is no fault when no file uses a secret.
func Open(cfg Config, refs []manifest.Ref) (*Store, error) {
	if cfg.Env == nil {
		cfg.Env = func(string) (string, bool) { return "", false }
	}
	if cfg.Known == nil {
		cfg.Known = func(...string) {}
	}
	if cfg.Live == nil {
		cfg.Live = func(manifest.Ref) bool { return false }
	}
	s := &Store{cfg: cfg, used: make(map[string][]string), fixed: make(map[string]bool)}
	for _, r := range refs {
		if r.Kind == manifest.KindSecret {
			name := secretfile.Normalize(r.Name)
			s.used[name] = append(s.used[name], fmt.Sprintf("%s:%d:%d", r.File, r.Line, r.Col))
			if !cfg.Live(r) {
				s.fixed[name] = true
			}
		}
	}
	file, err := readFile(cfg)
	if err != nil && wants(refs) {
		return nil, err
	}
	if err := s.open(file); err != nil {
		return nil, err
	}
	if err := s.check(refs, file != nil); err != nil {
		return nil, err
	}
	s.variables(refs)
	return s, nil
}

// variables tells of the values of the environment that are secrets.
func (s *Store) variables(refs []manifest.Ref) {
	found := make(map[string]string)
	for _, r := range refs {
		if value, ok := s.cfg.Env(r.Name); ok && r.Kind == manifest.KindEnv && r.Sensitive() {
			found[r.Name] = value
		}
	}
	s.known(found)
}

// Resolve returns the value of a placeholder; it is a manifest.Resolver.
func (s *Store) Resolve(kind, name string) (string, bool) {
	switch kind {
	case manifest.KindSecret:
		// A change by another process that cannot be read is no reason to stop.
		v, _ := s.look()
		value, ok := v.values[secretfile.Normalize(name)]
		return value, ok
	case manifest.KindEnv:
		return s.cfg.Env(name)
	default:
		return "", false
	}
}

func wants(refs []manifest.Ref) bool {
	for _, r := range refs {
		if r.Kind == manifest.KindSecret {
			return true
		}
	}
	return false
}

// readFile opens secrets.enc; the values are nil when there is none.
func readFile(cfg Config) (map[string]string, error) {
	enc := filepath.Join(cfg.Dir, encFile)
	keys, err := readKeys(cfg)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	values, openErr := secretfile.Open(enc, keys...)
	switch {
	case openErr == nil:
		return values, nil
	case errors.Is(openErr, fs.ErrNotExist):
		return nil, nil
	case err != nil: // the file is there, its key is not
		return nil, fault.New(fault.Invalid, faultName,
			encFile+" has no key: put the file .key beside it or give the key in SVC_SECRETS_KEY")
	case fault.NameOf(openErr) != "":
		return nil, openErr
	default:
		return nil, fault.Wrap(fault.Invalid, faultName, encFile+" cannot be read", openErr)
	}
}

func readKeys(cfg Config) (secretfile.Keys, error) {
	if cfg.Key != "" {
		keys, err := secretfile.ParseKeys(cfg.Key)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, faultName,
				"SVC_SECRETS_KEY is no key: it takes url-safe base64 of 32 bytes", err)
		}
		return keys, nil
	}
	keys, err := secretfile.ReadKeys(filepath.Join(cfg.Dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("read key of secrets: %w", err)
	}
	return keys, nil
}

// check reports every placeholder without a value, each with what would help.
func (s *Store) check(refs []manifest.Ref, found bool) error {
	var lines []string
	var missing []map[string]any
	for _, r := range refs {
		if r.Kind == manifest.KindUser {
			continue
		}
		if _, ok := s.Resolve(r.Kind, r.Name); ok {
			continue
		}
		lines = append(lines, r.String()+": "+hint(r, found))
		missing = append(missing, map[string]any{
			"kind": r.Kind, "name": r.Name, "file": r.File, "line": r.Line, "column": r.Col, "key": r.Key,
		})
	}
	if lines == nil {
		return nil
	}
	return fault.Errorf(fault.Invalid, faultName, "%d placeholder(s) without a value:\n%s",
		len(lines), strings.Join(lines, "\n")).With("missing", missing)
}

func hint(r manifest.Ref, found bool) string {
	switch {
	case r.Kind == manifest.KindEnv:
		return "the environment has no allowed variable " + r.Name + "; set it and list it in formations.env_allow"
	case !found:
		return "there is no " + encFile + " in the formation; add it with a value for " + secretfile.Normalize(r.Name)
	default:
		return encFile + " has no " + secretfile.Normalize(r.Name)
	}
}
