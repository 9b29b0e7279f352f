// Package budget books what the calls to models use, and refuses calls that
// would go over a limit. It is the llm.Meter of a formation.
//
// A call is reserved with its largest possible use before it is made and
// settled with its real use after it, each in one commit, so that calls at the
// same time can never exceed a limit together, in one process or in two on the
// same store. What a process that died had reserved is given up when its launch
// is fenced; of such a call only the prompt is booked, which the provider has
// most likely read. Without limits nothing is reserved, and a call's use joins
// the next commit of the store.
//
// Days are those of UTC. Amounts are integers in billionths of the currency.
// The assembly opens it; httpapi reads its reports.
package budget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/store"
)

// Kept is how long use is kept, per request and model.
const Kept = 31 * 24 * time.Hour

// Warning tells that a limit has nearly been used up.
type Warning struct {
	Scope string // formation, agent or user
	ID    string
	Day   string // YYYY-MM-DD
	What  string // tokens or amount
	Used  float64
	Limit float64
}

// Config says what is counted against what. Formation and DB are required.
type Config struct {
	Formation string // its id
	DB        *store.DB
	Limits    Limits
	Prices    Prices
	// Warn stores a warning in the commit that causes it, once per limit and
	// day; Warned is called after that commit. nil is nobody.
	Warn   func(tx *store.Tx, w Warning) error
	Warned func()
	Log    zerolog.Logger
}

// Ledger is the book of one formation. It is safe for concurrent use.
type Ledger struct {
	cfg Config

	mu     sync.Mutex // guards the field that follows
	purged time.Time  // when old use was last removed
}

// New returns the ledger of an open store.
func New(cfg Config) *Ledger {
	if cfg.Warn == nil {
		cfg.Warn = func(*store.Tx, Warning) error { return nil }
	}
	if cfg.Warned == nil {
		cfg.Warned = func() {}
	}
	return &Ledger{cfg: cfg}
}

// Reserve sets the largest use of a call aside. The fault BUDGET_EXCEEDED names
// the limit that it would go over and says when that begins anew.
func (l *Ledger) Reserve(ctx context.Context, c llm.Call) (llm.Reservation, error) {
	price, priced := l.cfg.Prices.Of(c.ModelID)
	r := &reservation{ledger: l, call: c, at: l.cfg.DB.Now().UTC(), price: price, priced: priced}
	scopes := l.cfg.Limits.of(l.cfg.Formation, c.Account)
	if len(scopes) == 0 {
		return r, nil
	}
	want := entry{
		Tokens: int64(c.Prompt) + int64(c.MaxCompletion),
		Amount: price.cost(chat.Usage{PromptTokens: c.Prompt, CompletionTokens: c.MaxCompletion}),
	}
	err := l.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		r.id = 0
		over, err := l.overrun(tx, r.day(), scopes, want)
		if err == nil && over != nil {
			if err = l.giveUp(tx); err == nil {
				over, err = l.overrun(tx, r.day(), scopes, want)
			}
		}
		switch {
		case err != nil:
			return err
		case over != nil:
			return over
		}
		return l.setAside(tx, r, scopes, want)
	})
	if err != nil {
		if _, ok := errors.AsType[*fault.Error](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("reserve the budget of a model call: %w", err)
	}
	return r, nil
}

// overrun returns the fault of the first limit that want does not fit under.
func (l *Ledger) overrun(tx *store.Tx, day int64, scopes []scope, want entry) (over *fault.Error, err error) {
	for _, s := range scopes {
		b, err := readBalance(tx, s, day)
		if err != nil {
			return nil, err
		}
		if n := s.limit.Tokens; n > 0 && b.used.Tokens+b.held.Tokens+want.Tokens > n {
			return exceeded(s, fmt.Sprintf("%d of %d tokens are used or reserved, and the call may need %d",
				b.used.Tokens+b.held.Tokens, n, want.Tokens)), nil
		}
		if m := s.limit.Amount; m != nil && b.used.Amount+b.held.Amount+want.Amount > *m {
			return exceeded(s, fmt.Sprintf("%s of %s is used or reserved, and the call may cost %s",
				l.cfg.Prices.show(b.used.Amount+b.held.Amount), l.cfg.Prices.show(*m), l.cfg.Prices.show(want.Amount))), nil
		}
	}
	return nil, nil
}

func exceeded(s scope, what string) *fault.Error {
	return fault.Errorf(fault.RateLimited, "BUDGET_EXCEEDED",
		"The daily budget of %s does not allow another model call: %s. It begins anew at 00:00 UTC", s, what)
}

// setAside stores the reservation and adds it to every scope.
func (l *Ledger) setAside(tx *store.Tx, r *reservation, scopes []scope, want entry) error {
	for _, s := range scopes {
		if _, err := tx.Exec(`INSERT INTO budgets (scope, id, day, held_tokens, held_amount) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (scope, id, day) DO UPDATE SET held_tokens = held_tokens + excluded.held_tokens,
			held_amount = held_amount + excluded.held_amount`, s.kind, s.id, r.day(), want.Tokens, want.Amount); err != nil {
			return fmt.Errorf("reserve: %w", err)
		}
	}
	a := r.call.Account
	return tx.QueryRow(`INSERT INTO reservations (launch_id, at, request_id, agent_id, user_id, model, prompt, tokens, amount)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`, []any{
		l.cfg.DB.LaunchID(), r.at.UnixMilli(), a.Request, a.Agent, a.User, r.call.ModelID, r.call.Prompt, want.Tokens, want.Amount,
	}, &r.id)
}

// giveUp ends the reservations of processes that are no more.
func (l *Ledger) giveUp(tx *store.Tx) error {
	rows, err := tx.Query(`SELECT id, at, request_id, agent_id, user_id, model, prompt, tokens, amount FROM reservations
		WHERE launch_id IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL)`)
	if err != nil {
		return fmt.Errorf("find reservations of the dead: %w", err)
	}
	defer rows.Close()
	var dead []*reservation
	for rows.Next() {
		r := &reservation{ledger: l}
		var at int64
		a := &r.call.Account
		if err := rows.Scan(&r.id, &at, &a.Request, &a.Agent, &a.User, &r.call.ModelID, &r.call.Prompt,
			&r.held.Tokens, &r.held.Amount); err != nil {
			return fmt.Errorf("read reservations of the dead: %w", err)
		}
		r.at = time.UnixMilli(at).UTC()
		r.price, r.priced = l.cfg.Prices.Of(r.call.ModelID)
		dead = append(dead, r)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read reservations of the dead: %w", err)
	}
	for _, r := range dead {
		if _, err := r.book(tx, chat.Usage{PromptTokens: r.call.Prompt, TotalTokens: r.call.Prompt}); err != nil {
			return err
		}
	}
	return nil
}

// scope is one limit that a call counts against.
type scope struct {
	kind, id string
	limit    Limit
	warnAt   float64
}

// String names the scope as the manifest does.
func (s scope) String() string {
	if s.kind == scopeFormation {
		return "the formation"
	}
	return fmt.Sprintf("%s %q", s.kind, s.id)
}

// entry is an amount of use.
type entry struct{ Tokens, Amount int64 }

// balance is what was used in a scope on a day, and what is reserved.
type balance struct {
	used, held entry
	warned     int64 // bits: 1 tokens, 2 amount
}

func readBalance(tx *store.Tx, s scope, day int64) (balance, error) {
	var b balance
	rows, err := tx.Query(`SELECT tokens, amount, held_tokens, held_amount, warned FROM budgets
		WHERE scope = ? AND id = ? AND day = ?`, s.kind, s.id, day)
	if err != nil {
		return b, fmt.Errorf("read the budget of %s: %w", s, err)
	}
	defer rows.Close()
	if rows.Next() {
		if err := rows.Scan(&b.used.Tokens, &b.used.Amount, &b.held.Tokens, &b.held.Amount, &b.warned); err != nil {
			return b, fmt.Errorf("read the budget of %s: %w", s, err)
		}
	}
	return b, rows.Err()
}

// dayOf numbers the days of UTC.
func dayOf(t time.Time) int64 { return int64(math.Floor(float64(t.Unix()) / 86400)) }

// dayName is the date of a day.
func dayName(day int64) string { return time.Unix(day*86400, 0).UTC().Format(time.DateOnly) }
