package credentials

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/manifest"
)

// maxOptions is how many options a widget shows at most (reference runtime.md 6.1).
const maxOptions = 25

const (
	getChoice = `SELECT credential_id FROM credential_choices WHERE user_id = ? AND session_id = ? AND service = ?`
	putChoice = `INSERT INTO credential_choices (user_id, session_id, service, credential_id) VALUES (?, ?, ?, ?)
		ON CONFLICT (user_id, session_id, service) DO UPDATE SET credential_id = excluded.credential_id`
)

type sessionKey struct{}

// WithSession returns a context in which Resolve heeds what the user chose for
// the session.
func WithSession(ctx context.Context, session string) context.Context {
	return context.WithValue(ctx, sessionKey{}, session)
}

// NeedError tells that a user has no credential of a service, or several and
// has not chosen one. It is a fault.Conflict "CREDENTIAL_REQUIRED" or
// "CREDENTIAL_CHOICE_REQUIRED"; a turn that meets it ends with Answer.
type NeedError struct {
	Service string
	answer  chat.Answer
	fault   *fault.Error
}

// Error says what is missing, never a value.
func (e *NeedError) Error() string { return e.fault.Error() }

// Unwrap returns the fault.
func (e *NeedError) Unwrap() error { return e.fault }

// Answer is what the user is told: where to give a credential, or the question
// which of the accounts is meant.
func (e *NeedError) Answer() chat.Answer { return e.answer }

// Resolve returns the value of the user's credential of a service: that of the
// account chosen for the session of ctx when there are several. Errors:
// *NeedError, and fault.Failed "CREDENTIALS_ERROR" for one that the key doesn't
// open.
func (s *Store) Resolve(ctx context.Context, user, service string) (string, error) {
	service = strings.ToLower(service)
	rows, err := s.read(ctx, ofService, user, service)
	if err != nil {
		return "", err
	}
	chosen := 0
	switch len(rows) {
	case 0:
		return "", s.required(service)
	case 1:
	default:
		if chosen, err = s.chosen(ctx, user, service, rows); err != nil {
			return "", err
		}
	}
	if chosen < 0 {
		return "", s.choice(service, rows)
	}
	o, err := s.open(user, &rows[chosen])
	if err != nil {
		return "", err
	}
	return o.value(), nil
}

// chosen returns which of rows the user chose for the session, -1 for none.
func (s *Store) chosen(ctx context.Context, user, service string, rows []row) (int, error) {
	session, _ := ctx.Value(sessionKey{}).(string)
	if session == "" {
		return -1, nil
	}
	var id string
	err := s.cfg.DB.QueryRow(ctx, getChoice, []any{user, session, service}, &id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return -1, fmt.Errorf("read the choice of a credential: %w", err)
	}
	for i := range rows {
		if rows[i].ID == id {
			return i, nil
		}
	}
	return -1, nil
}

// Choose takes the reply to a question of kind chat.QuestionCredential and remembers it for
// the session: the value or label of an option. ok is false when it is neither,
// or the credential is gone.
func (s *Store) Choose(ctx context.Context, user, session string, q *chat.Question, reply string) (ok bool, err error) {
	var state questionState
	if err := json.Unmarshal(q.State, &state); err != nil {
		return false, fmt.Errorf("read the question of a credential: %w", err)
	}
	reply = strings.TrimSpace(reply)
	for _, option := range q.Options {
		if option.Value != reply && !strings.EqualFold(option.Label, reply) {
			continue
		}
		c, err := s.Get(ctx, user, option.Value)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			return false, nil
		case err != nil:
			return false, err
		}
		err = s.cfg.DB.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec(putChoice, user, session, state.Service, c.ID)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("remember the choice of a credential: %w", err)
		}
		return true, nil
	}
	return false, nil
}

type questionState struct {
	Service string `json:"service"`
}

// choice asks which of several accounts is meant.
func (s *Store) choice(service string, rows []row) error {
	state, err := json.Marshal(questionState{service})
	if err != nil {
		return fmt.Errorf("write the question of a credential: %w", err)
	}
	q := &chat.Question{
		Kind: chat.QuestionCredential, State: state,
		Prompt: fmt.Sprintf("You have several %s accounts. Which one should be used?", service),
	}
	lines := []string{q.Prompt, ""}
	for i, r := range rows[:min(len(rows), maxOptions)] {
		q.Options = append(q.Options, chat.Option{Value: r.ID, Label: r.Name})
		lines = append(lines, fmt.Sprintf("%d. %s", i+1, r.Name))
	}
	return &NeedError{
		Service: service, answer: chat.Answer{Content: strings.Join(lines, "\n"), Question: q},
		fault: fault.Errorf(fault.Conflict, codeManyAccount, "The user has several credentials of %s and has not chosen one", service),
	}
}

// Expander returns a function that replaces every placeholder of a text for a
// user: those of secrets and the environment by resolve, those of credentials by
// s. An error names the placeholder, never a value; for credentials it is that
// of Resolve. Without a user, a credential has no value.
func (s *Store) Expander(resolve manifest.Resolver) func(ctx context.Context, text, user string) (string, error) {
	return func(ctx context.Context, text, user string) (string, error) {
		var missing error
		out, err := manifest.Expand(text, func(kind, name string) (string, bool) {
			if kind != manifest.KindUser {
				return resolve(kind, name)
			}
			if user == "" {
				return "", false // nobody asks for it
			}
			value, err := s.Resolve(ctx, user, name)
			if err != nil && missing == nil {
				missing = err
			}
			return value, err == nil
		})
		if missing != nil {
			return "", missing
		}
		return out, err
	}
}
