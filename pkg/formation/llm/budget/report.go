package budget

import (
	"context"
	"fmt"
	"time"
)

// The groupings of a report.
const (
	ByDay      = "day"
	ByAgent    = "agent"
	ByUser     = "user"
	ByModel    = "model"
	ByProvider = "provider"
)

// groupings holds the SQL of each key. Group names it and nothing from outside
// gets into a query.
var groupings = map[string]string{
	ByDay:      `strftime('%Y-%m-%d', hour * 3600, 'unixepoch')`,
	ByAgent:    `agent_id`,
	ByUser:     `user_id`,
	ByModel:    `model`,
	ByProvider: `substr(model, 1, instr(model, '/') - 1)`,
}

// Query asks for the use of a span of time, whole hours, the last one included.
type Query struct {
	From, To time.Time
	Group    string // one of By…
	User     string // only this one; "" is all
}

// Group is one line of a report.
type Group struct {
	Key      string
	Requests int64
	Calls    int64
	Input    int64 // tokens, the cached ones included
	Output   int64
	Cached   int64
	Amount   float64 // of the calls that have a price
	Unpriced int64   // calls without one: the amount is not the whole
}

// Report is the use of a span of time.
type Report struct {
	Currency string
	Groups   []Group // by key
	Total    Group   // without a key
}

// Report adds up what calls used.
func (l *Ledger) Report(ctx context.Context, q Query) (Report, error) {
	r := Report{Currency: l.cfg.Prices.Currency}
	var err error
	if r.Groups, err = l.groups(ctx, groupings[q.Group], q); err != nil {
		return r, err
	}
	all, err := l.groups(ctx, `''`, q)
	if err != nil {
		return r, err
	}
	if len(all) > 0 {
		r.Total = all[0]
	}
	return r, nil
}

func (l *Ledger) groups(ctx context.Context, key string, q Query) ([]Group, error) {
	rows, err := l.cfg.DB.Query(ctx, `SELECT `+key+`, COUNT(DISTINCT NULLIF(request_id, '')), SUM(calls), SUM(input), SUM(output),
		SUM(cached), SUM(amount), SUM(unpriced) FROM model_usage
		WHERE hour >= ? AND hour <= ? AND (? = '' OR user_id = ?) GROUP BY 1 ORDER BY 1`,
		hourOf(q.From), hourOf(q.To), q.User, q.User)
	if err != nil {
		return nil, fmt.Errorf("read use: %w", err)
	}
	defer rows.Close()
	out := []Group{}
	for rows.Next() {
		var g Group
		var amount int64
		if err := rows.Scan(&g.Key, &g.Requests, &g.Calls, &g.Input, &g.Output, &g.Cached, &amount, &g.Unpriced); err != nil {
			return nil, fmt.Errorf("read use: %w", err)
		}
		g.Amount = money(amount)
		out = append(out, g)
	}
	return out, rows.Err()
}

// The states of a budget.
const (
	StateOK       = "ok"
	StateWarning  = "warning"
	StateExceeded = "exceeded"
)

// Standing is how a budget stands today.
type Standing struct {
	Scope, ID   string
	Begin       time.Time // of the day
	Tokens      int64     // used
	TokenLimit  int64     // 0: none
	Amount      float64
	AmountLimit *float64 // nil: none
	State       string
}

// Standings returns the formation's budget and those of the agents and users
// that used theirs today, by scope and id.
func (l *Ledger) Standings(ctx context.Context, user string) ([]Standing, error) {
	day := dayOf(l.cfg.DB.Now().UTC())
	rows, err := l.cfg.DB.Query(ctx, `SELECT scope, id, tokens, amount FROM budgets
		WHERE day = ? AND (? = '' OR scope <> 'user' OR id = ?) ORDER BY scope, id`, day, user, user)
	if err != nil {
		return nil, fmt.Errorf("read budgets: %w", err)
	}
	defer rows.Close()
	out := []Standing{}
	if limit := l.cfg.Limits.formation; !limit.none() {
		out = append(out, l.standing(scope{kind: scopeFormation, id: l.cfg.Formation, limit: limit}, day, entry{}))
	}
	for rows.Next() {
		var kind, id string
		var used entry
		if err := rows.Scan(&kind, &id, &used.Tokens, &used.Amount); err != nil {
			return nil, fmt.Errorf("read budgets: %w", err)
		}
		s := scope{kind: kind, id: id}
		switch kind {
		case scopeFormation:
			s.limit = l.cfg.Limits.formation
		case scopeAgent:
			s.limit = pick(l.cfg.Limits.agents, id, l.cfg.Limits.agent)
		case scopeUser:
			s.limit = pick(l.cfg.Limits.users, id, l.cfg.Limits.user)
		}
		switch {
		case s.limit.none(): // it had one earlier today
		case kind == scopeFormation:
			out[0] = l.standing(s, day, used)
		default:
			out = append(out, l.standing(s, day, used))
		}
	}
	return out, rows.Err()
}

func (l *Ledger) standing(s scope, day int64, used entry) Standing {
	st := Standing{
		Scope: s.kind, ID: s.id, Begin: time.Unix(day*86400, 0).UTC(),
		Tokens: used.Tokens, TokenLimit: s.limit.Tokens, Amount: money(used.Amount), State: StateOK,
	}
	part := 0.0
	if n := s.limit.Tokens; n > 0 {
		part = float64(used.Tokens) / float64(n)
	}
	if m := s.limit.Amount; m != nil {
		limit := money(*m)
		st.AmountLimit = &limit
		switch {
		case *m > 0:
			part = max(part, float64(used.Amount)/float64(*m))
		default:
			part = 1
		}
	}
	switch {
	case part >= 1:
		st.State = StateExceeded
	case part >= l.cfg.Limits.warnAt:
		st.State = StateWarning
	}
	return st
}
