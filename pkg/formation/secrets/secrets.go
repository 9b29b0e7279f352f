// Package secrets gives the placeholders of a formation their values:
// ${{ secrets.NAME }} from the encrypted file beside the manifest and
// ${{ env.NAME }} from the variables that the operator allows. It also keeps
// the formation's own admin and client keys.
//
// It promises that everything missing is reported at once with its place, and
// that no value or key shows up in a log, an error or an encoder's output: the
// ways out are Resolve and Value.Reveal. Only the assembly imports it.
package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

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
	// Key is the text of the key to secrets.enc, as the supervisor hands it
	// down; "" means the file .key in Dir.
	Key string
	// Env looks up a variable that the operator allows to ${{ env.NAME }}; nil
	// allows none.
	Env func(name string) (string, bool)
}

// Store holds the values of one load of a formation. It is read only and safe
// for concurrent use.
type Store struct {
	file map[string]Value
	env  func(string) (string, bool)
}

// Open reads the values that refs ask for. It fails with fault.Invalid
// "SecretsError" when the file cannot be opened, or when a placeholder has no
// value: the message then names every one of them with file, line and column.
// Placeholders of user credentials are resolved per user later and not checked.
func Open(cfg Config, refs []manifest.Ref) (*Store, error) {
	s := &Store{env: cfg.Env}
	if s.env == nil {
		s.env = func(string) (string, bool) { return "", false }
	}
	found := false
	if wants(refs) {
		values, err := readFile(cfg)
		if err != nil {
			return nil, err
		}
		found = values != nil
		s.file = make(map[string]Value, len(values))
		for name, v := range values {
			s.file[name] = NewValue(v)
		}
	}
	if err := s.check(refs, found); err != nil {
		return nil, err
	}
	return s, nil
}

// Resolve returns the value of a placeholder; it is a manifest.Resolver.
func (s *Store) Resolve(kind, name string) (string, bool) {
	switch kind {
	case manifest.KindSecret:
		v, ok := s.file[secretfile.Normalize(name)]
		return v.Reveal(), ok
	case manifest.KindEnv:
		return s.env(name)
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
	key, err := readKey(cfg)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	values, openErr := secretfile.Open(enc, key)
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

func readKey(cfg Config) (secretfile.Key, error) {
	if cfg.Key != "" {
		key, err := secretfile.ParseKey(cfg.Key)
		if err != nil {
			return key, fault.Wrap(fault.Invalid, faultName,
				"SVC_SECRETS_KEY is no key: it takes url-safe base64 of 32 bytes", err)
		}
		return key, nil
	}
	key, err := secretfile.ReadKey(filepath.Join(cfg.Dir, keyFile))
	if err != nil {
		return key, fmt.Errorf("read key of secrets: %w", err)
	}
	return key, nil
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
