package client

import (
	"context"
	"net/http"
	"time"
)

// UsageQuery chooses what calls to models are counted.
type UsageQuery struct {
	From, To time.Time // zero: the last 24 hours
	GroupBy  string    // day (also for ""), agent, user, model or provider
	UserID   string    // "" counts all users
}

// UsageTotals are what calls to models used.
type UsageTotals struct {
	Requests   int    `json:"requests"`
	ModelCalls int    `json:"model_calls"`
	Tokens     Tokens `json:"tokens"`
	Cost       *Cost  `json:"cost"` // nil when a model that was asked has no price
}

// UsageGroup is the part of one day, agent, user, model or provider.
type UsageGroup struct {
	Key string `json:"key"`
	UsageTotals
}

// Budget is a limit of a day, and how much of it is used.
type Budget struct {
	Scope       string    `json:"scope"` // formation, agent or user
	ID          string    `json:"id"`
	PeriodStart time.Time `json:"period_start"`
	Tokens      struct {
		Used  int  `json:"used"`
		Limit *int `json:"limit"` // nil for none
	} `json:"tokens"`
	Amount struct {
		Used  float64  `json:"used"`
		Limit *float64 `json:"limit"` // nil for none
	} `json:"amount"`
	State string `json:"state"` // ok, warning or exceeded
}

// UsageReport is what a formation's calls to models used.
type UsageReport struct {
	From    time.Time    `json:"from"`
	To      time.Time    `json:"to"`
	GroupBy string       `json:"group_by"`
	Groups  []UsageGroup `json:"groups"`
	Totals  UsageTotals  `json:"totals"`
	Budgets []Budget     `json:"budgets"` // of today
}

// Usage returns what the formation's calls to models used. It needs the admin
// key.
func (f *Formation) Usage(ctx context.Context, q UsageQuery) (*UsageReport, error) {
	c := newCall(http.MethodGet, "v1", "usage")
	for name, at := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !at.IsZero() {
			c.query.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	for name, text := range map[string]string{"group_by": q.GroupBy, "user_id": q.UserID} {
		if text != "" {
			c.query.Set(name, text)
		}
	}
	var out UsageReport
	if err := f.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}
