// Package credentials keeps what users gave to be used for them at a service,
// and gives the placeholders ${{ user.credentials.SERVICE }} their values
// (reference runtime.md 12).
//
// It promises that a credential is readable with the formation's key alone, that
// no user sees or uses that of another, that no value shows up in a log, an
// error or a reply, and that a user is asked which of several accounts is meant
// instead of one being taken. Only the assembly and the door import it.
package credentials

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/manifest"
)

// The limits of what a user may store.
const (
	MaxPerUser = 100      // credentials
	MaxObject  = 16 << 10 // bytes of one credential
	MaxService = 64       // bytes of the name of a service
	MaxName    = 128      // bytes of the name of an account
)

// The error codes of the API.
const (
	codeInvalid     = "VALIDATION_ERROR"
	codeUnreadable  = "CREDENTIALS_ERROR"
	codeRequired    = "CREDENTIAL_REQUIRED"
	codeManyAccount = "CREDENTIAL_CHOICE_REQUIRED"
)

// Config is what a Store stands on. DB and NewID are required.
type Config struct {
	DB *store.DB
	// StateDir keeps the key that is generated when Settings has none.
	StateDir string
	// Settings are the manifest's, with the placeholders of the key and the salt
	// resolved.
	Settings manifest.UserCredentials
	// Links are where a user is sent to give a credential, by the service or
	// PortalLink.
	Links map[string]manifest.Link
	// Known is told every secret value before it is used, so that no log shows
	// it; nil tells nobody.
	Known func(values ...string)
	NewID func(prefix string) string
}

// Credential is what may be shown of a stored one.
type Credential struct {
	ID      string
	Service string
	Name    string
	Preview string
	Created time.Time
	Updated time.Time
}

// New is a credential to store.
type New struct {
	User    string
	Service string // any case
	Name    string // "": the service's
	Object  json.RawMessage
}

// Store keeps credentials. It is safe for concurrent use.
type Store struct {
	cfg  Config
	seal sealer
}

// Open returns a store. It reads no key and no row before one is needed.
func Open(cfg Config) *Store {
	if cfg.Known == nil {
		cfg.Known = func(...string) {}
	}
	return &Store{cfg: cfg, seal: sealer{dir: cfg.StateDir, key: cfg.Settings.EncryptionKey, salt: cfg.Settings.EncryptionSalt}}
}

// The statements of the package.
const (
	insertCredential = `INSERT INTO user_credentials (id, user_id, service, name, sealed, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)`
	listCredentials  = `SELECT id, service, name, sealed, created_at, updated_at FROM user_credentials WHERE user_id = ? ORDER BY service, created_at, id`
	getCredential    = `SELECT id, service, name, sealed, created_at, updated_at FROM user_credentials WHERE id = ? AND user_id = ?`
	ofService        = `SELECT id, service, name, sealed, created_at, updated_at FROM user_credentials WHERE user_id = ? AND service = ? ORDER BY created_at, id`
	countCredentials = `SELECT count(*) FROM user_credentials WHERE user_id = ?`
	nameTaken        = `SELECT count(*) FROM user_credentials WHERE user_id = ? AND service = ? AND name = ?`
	deleteCredential = `DELETE FROM user_credentials WHERE id = ? AND user_id = ?`
	deleteChoices    = `DELETE FROM credential_choices WHERE user_id = ? AND credential_id = ?`
)

// Create stores a credential. Without a name it gets that of the service, with a
// number when the user has one of that name. Errors: fault.Invalid
// "VALIDATION_ERROR" for a service that is no name, fault.Unprocessable for an
// object without a text value, fault.TooLarge over MaxObject, fault.Conflict for
// a name that the user's service has already and at MaxPerUser.
func (s *Store) Create(ctx context.Context, in New) (Credential, error) {
	service, err := checkService(in.Service)
	if err != nil {
		return Credential{}, err
	}
	object, err := parseObject(in.Object)
	if err != nil {
		return Credential{}, err
	}
	name := strings.TrimSpace(in.Name)
	if len(name) > MaxName || strings.ContainsFunc(name, isControl) {
		return Credential{}, fault.Errorf(fault.Invalid, codeInvalid, "name has at most %d bytes and no control character", MaxName)
	}
	s.cfg.Known(object.secrets()...)
	now := time.UnixMilli(s.cfg.DB.Now().UnixMilli()).UTC()
	c := Credential{ID: s.cfg.NewID("cred_"), Service: service, Preview: object.preview(), Created: now, Updated: now}
	sealed, err := s.seal.seal(object.raw, additional(in.User, c.Service, c.ID))
	if err != nil {
		return Credential{}, err
	}
	err = s.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		c.Name = name
		if err := room(tx, in.User, &c); err != nil {
			return err
		}
		_, err := tx.Exec(insertCredential, c.ID, in.User, c.Service, c.Name, sealed, now.UnixMilli(), now.UnixMilli())
		return err
	})
	if err != nil {
		return Credential{}, fmt.Errorf("store a credential: %w", err)
	}
	return c, nil
}

// room checks that the user may have c, and gives it a name when it has none.
func room(tx *store.Tx, user string, c *Credential) error {
	var n int
	if err := tx.QueryRow(countCredentials, []any{user}, &n); err != nil {
		return err
	}
	if n >= MaxPerUser {
		return fault.Errorf(fault.Conflict, "", "%d credentials are the limit of a user: delete one first", MaxPerUser)
	}
	named := c.Name != ""
	for i := 1; ; i++ {
		if !named {
			c.Name = c.Service
			if i > 1 {
				c.Name += " " + strconv.Itoa(i)
			}
		}
		if err := tx.QueryRow(nameTaken, []any{user, c.Service, c.Name}, &n); err != nil {
			return err
		}
		switch {
		case n == 0:
			return nil
		case named:
			return fault.Errorf(fault.Conflict, "", "There is a credential of that name for %s already: choose another name or delete it first", c.Service)
		}
	}
}

// List returns the user's credentials, by service, the oldest first.
func (s *Store) List(ctx context.Context, user string) ([]Credential, error) {
	rows, err := s.read(ctx, listCredentials, user)
	if err != nil {
		return nil, err
	}
	list := make([]Credential, len(rows))
	for i := range rows {
		list[i] = s.shown(user, &rows[i])
	}
	return list, nil
}

// Get returns one of the user's credentials. That of another is none:
// fault.NotFound.
func (s *Store) Get(ctx context.Context, user, id string) (Credential, error) {
	rows, err := s.read(ctx, getCredential, id, user)
	if err != nil {
		return Credential{}, err
	}
	if len(rows) == 0 {
		return Credential{}, notFound(id)
	}
	return s.shown(user, &rows[0]), nil
}

// Delete removes exactly this credential of the user; fault.NotFound when there
// is none.
func (s *Store) Delete(ctx context.Context, user, id string) error {
	err := s.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(deleteCredential, id, user)
		if err == nil && n == 0 {
			err = notFound(id)
		}
		if err == nil {
			_, err = tx.Exec(deleteChoices, user, id)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete a credential: %w", err)
	}
	return nil
}

func notFound(id string) error {
	return fault.Errorf(fault.NotFound, "", "There is no credential %q", id[:min(len(id), 64)])
}

// row is a stored credential.
type row struct {
	Credential
	sealed []byte
}

func (s *Store) read(ctx context.Context, query string, args ...any) (list []row, err error) {
	rows, err := s.cfg.DB.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read credentials: %w", err)
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

func scan(rows *sql.Rows) (r row, err error) {
	var created, updated int64
	err = rows.Scan(&r.ID, &r.Service, &r.Name, &r.sealed, &created, &updated)
	r.Created, r.Updated = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	return r, err
}

// shown adds the preview. One that can't be opened is shown as well, without: it
// can be deleted.
func (s *Store) shown(user string, r *row) Credential {
	c := r.Credential
	c.Preview = hidden
	if object, err := s.open(user, r); err == nil {
		c.Preview = object.preview()
	}
	return c
}

// open returns what is inside a stored credential.
func (s *Store) open(user string, r *row) (*object, error) {
	raw, err := s.seal.open(r.sealed, additional(user, r.Service, r.ID))
	if err != nil {
		return nil, err
	}
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	s.cfg.Known(o.secrets()...)
	return o, nil
}

// checkService returns the one form of a service's name.
func checkService(name string) (string, error) {
	switch {
	case name == "":
		return "", fault.New(fault.Invalid, codeInvalid, "service is empty").With("field", "service")
	case len(name) > MaxService:
		return "", fault.Errorf(fault.Invalid, codeInvalid, "service has at most %d bytes", MaxService).With("field", "service")
	case strings.ContainsFunc(name, func(r rune) bool { return r == ' ' || isControl(r) }):
		return "", fault.New(fault.Invalid, codeInvalid, "service is the name of a service, without spaces").With("field", "service")
	}
	return strings.ToLower(name), nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }
