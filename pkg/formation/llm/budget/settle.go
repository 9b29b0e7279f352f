package budget

import (
	"context"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/store"
)

// reservation is a call between its beginning and its end.
type reservation struct {
	ledger *Ledger
	id     int64 // 0 when nothing was set aside
	call   llm.Call
	at     time.Time
	price  Price
	priced bool
	held   entry // of one that is read from the store
}

// day is the one that the call counts for: that of its beginning.
func (r *reservation) day() int64 { return dayOf(r.at) }

// Settle books the real use of the call. It waits for the commit when limits
// count on it.
func (r *reservation) Settle(ctx context.Context, u chat.Usage) { r.end(ctx, u) }

// Release gives a call up that used nothing.
func (r *reservation) Release(ctx context.Context) { r.end(ctx, chat.Usage{}) }

func (r *reservation) end(ctx context.Context, u chat.Usage) {
	l := r.ledger
	nothing := u == chat.Usage{}
	failed := func(err error) {
		if err != nil {
			l.cfg.Log.Error().Err(err).Str("model", r.call.ModelID).Msg("the use of a model call could not be booked")
		}
	}
	var warned bool
	book := func(tx *store.Tx) (err error) {
		if warned, err = r.book(tx, u); err == nil && !nothing {
			err = l.purge(tx, r.at)
		}
		return err
	}
	switch {
	case r.id != 0:
		// The use is real even if the caller has left.
		failed(l.cfg.DB.Write(context.WithoutCancel(ctx), book))
		if warned {
			l.cfg.Warned()
		}
	case !nothing:
		l.cfg.DB.Submit(book, failed)
	}
}

// book moves the call from reserved to used. It tells whether a warning was
// stored.
func (r *reservation) book(tx *store.Tx, u chat.Usage) (warned bool, err error) {
	l := r.ledger
	if r.id != 0 {
		err := tx.QueryRow(`DELETE FROM reservations WHERE id = ? RETURNING tokens, amount`, []any{r.id}, &r.held.Tokens, &r.held.Amount)
		if err != nil {
			return false, fmt.Errorf("end a reservation: %w", err)
		}
		used := entry{Tokens: total(u), Amount: r.price.cost(u)}
		for _, s := range l.cfg.Limits.of(l.cfg.Formation, r.call.Account) {
			stored, err := r.charge(tx, s, used)
			if err != nil {
				return false, err
			}
			warned = warned || stored
		}
	}
	if (u == chat.Usage{}) {
		return warned, nil
	}
	unpriced := 1
	if r.priced {
		unpriced = 0
	}
	a := r.call.Account
	_, err = tx.Exec(`INSERT INTO model_usage (hour, request_id, agent_id, user_id, model, calls, input, output, cached, amount, unpriced)
		VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET calls = calls + 1, input = input + excluded.input,
		output = output + excluded.output, cached = cached + excluded.cached, amount = amount + excluded.amount,
		unpriced = unpriced + excluded.unpriced`, hourOf(r.at), a.Request, a.Agent, a.User, r.call.ModelID,
		u.PromptTokens, u.CompletionTokens, u.CachedTokens, r.price.cost(u), unpriced)
	if err != nil {
		return false, fmt.Errorf("book the use of %s: %w", r.call.ModelID, err)
	}
	return warned, nil
}

// charge books used in one scope, and stores a warning when it nears its limit.
func (r *reservation) charge(tx *store.Tx, s scope, used entry) (warned bool, err error) {
	var b balance
	err = tx.QueryRow(`INSERT INTO budgets (scope, id, day, tokens, amount) VALUES (?1, ?2, ?3, ?4, ?5)
		ON CONFLICT (scope, id, day) DO UPDATE SET tokens = tokens + ?4, amount = amount + ?5,
		held_tokens = max(0, held_tokens - ?6), held_amount = max(0, held_amount - ?7)
		RETURNING tokens, amount, warned`,
		[]any{s.kind, s.id, r.day(), used.Tokens, used.Amount, r.held.Tokens, r.held.Amount},
		&b.used.Tokens, &b.used.Amount, &b.warned)
	if err != nil {
		return false, fmt.Errorf("charge %s: %w", s, err)
	}
	mark := b.warned
	w := Warning{Scope: s.kind, ID: s.id, Day: dayName(r.day())}
	if n := s.limit.Tokens; n > 0 && mark&1 == 0 && float64(b.used.Tokens) >= s.warnAt*float64(n) {
		mark |= 1
		w.What, w.Used, w.Limit = "tokens", float64(b.used.Tokens), float64(n)
		if err := r.ledger.cfg.Warn(tx, w); err != nil {
			return false, err
		}
	}
	if m := s.limit.Amount; m != nil && mark&2 == 0 && float64(b.used.Amount) >= s.warnAt*float64(*m) {
		mark |= 2
		w.What, w.Used, w.Limit = "amount", money(b.used.Amount), money(*m)
		if err := r.ledger.cfg.Warn(tx, w); err != nil {
			return false, err
		}
	}
	if mark == b.warned {
		return false, nil
	}
	if _, err := tx.Exec(`UPDATE budgets SET warned = ? WHERE scope = ? AND id = ? AND day = ?`, mark, s.kind, s.id, r.day()); err != nil {
		return false, fmt.Errorf("note the warning of %s: %w", s, err)
	}
	return true, nil
}

// purge removes use that is older than Kept, once an hour.
func (l *Ledger) purge(tx *store.Tx, now time.Time) error {
	l.mu.Lock()
	due := now.Sub(l.purged) >= time.Hour
	if due {
		l.purged = now
	}
	l.mu.Unlock()
	if !due {
		return nil
	}
	before := now.Add(-Kept)
	if _, err := tx.Exec(`DELETE FROM model_usage WHERE hour < ?`, hourOf(before)); err != nil {
		return fmt.Errorf("remove old use: %w", err)
	}
	if _, err := tx.Exec(`DELETE FROM budgets WHERE day < ?`, dayOf(before)); err != nil {
		return fmt.Errorf("remove old budgets: %w", err)
	}
	return nil
}

func total(u chat.Usage) int64 {
	return int64(max(u.TotalTokens, u.PromptTokens+u.CompletionTokens))
}

// hourOf numbers the hours since 1970.
func hourOf(t time.Time) int64 { return t.Unix() / 3600 }
