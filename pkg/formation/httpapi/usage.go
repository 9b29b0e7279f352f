package httpapi

import (
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/llm/budget"
)

// Usage tells what calls to models used; *budget.Ledger satisfies it.
type Usage interface {
	Report(ctx context.Context, q budget.Query) (budget.Report, error)
	// Standings returns today's budgets, of the users only user's unless "".
	Standings(ctx context.Context, user string) ([]budget.Standing, error)
}

var _ Usage = (*budget.Ledger)(nil)

// usageDocument is the reply of GET /v1/usage (reference runtime.md 21).
type usageDocument struct {
	From    jsonTime         `json:"from"`
	To      jsonTime         `json:"to"`
	GroupBy string           `json:"group_by"`
	Groups  []usageGroup     `json:"groups"`
	Totals  usageTotals      `json:"totals"`
	Budgets []budgetDocument `json:"budgets"`
}

type usageGroup struct {
	Key string `json:"key"`
	usageTotals
}

type usageTotals struct {
	Requests   int64       `json:"requests"`
	ModelCalls int64       `json:"model_calls"`
	Tokens     tokenCounts `json:"tokens"`
	// Cost is null when a call of a model without a price is among them.
	Cost *costDocument `json:"cost"`
}

type tokenCounts struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
	Cached int64 `json:"cached"` // the part of input that was read from a provider's cache
}

type costDocument struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

type budgetDocument struct {
	Scope       string       `json:"scope"`
	ID          string       `json:"id"`
	PeriodStart jsonTime     `json:"period_start"`
	Tokens      budgetTokens `json:"tokens"`
	Amount      budgetAmount `json:"amount"`
	State       string       `json:"state"`
}

type budgetTokens struct {
	Used  int64  `json:"used"`
	Limit *int64 `json:"limit"`
}

type budgetAmount struct {
	Used  float64  `json:"used"`
	Limit *float64 `json:"limit"`
}

func (a *api) usage(c echo.Context, _ caller) error {
	q, err := a.usageQuery(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	report, err := a.cfg.Usage.Report(ctx, q)
	if err != nil {
		return err
	}
	standings, err := a.cfg.Usage.Standings(ctx, q.User)
	if err != nil {
		return err
	}
	doc := usageDocument{
		From: jsonTime(q.From), To: jsonTime(q.To), GroupBy: q.Group,
		Groups: make([]usageGroup, len(report.Groups)), Totals: totalsOf(&report.Total, report.Currency),
		Budgets: make([]budgetDocument, len(standings)),
	}
	for i := range report.Groups {
		doc.Groups[i] = usageGroup{Key: report.Groups[i].Key, usageTotals: totalsOf(&report.Groups[i], report.Currency)}
	}
	for i := range standings {
		doc.Budgets[i] = budgetOf(&standings[i])
	}
	return a.reply(c, objectUsage, typeUsage, &doc)
}

// usageQuery reads from, to, group_by and user_id.
func (a *api) usageQuery(c echo.Context) (q budget.Query, err error) {
	invalid := func(message string) (budget.Query, error) {
		return q, fault.New(fault.Invalid, "INVALID_PARAMETER", message)
	}
	q = budget.Query{To: a.cfg.Now().UTC(), Group: budget.ByDay, User: c.QueryParam("user_id")}
	if text := c.QueryParam("to"); text != "" {
		if q.To, err = parseTime(text); err != nil {
			return invalid("to must be a time like 2026-01-31T12:00:00Z or a date")
		}
	}
	q.From = q.To.Add(-24 * time.Hour)
	if text := c.QueryParam("from"); text != "" {
		if q.From, err = parseTime(text); err != nil {
			return invalid("from must be a time like 2026-01-31T12:00:00Z or a date")
		}
	}
	if q.To.Before(q.From) {
		return invalid("from must not be later than to")
	}
	if by := c.QueryParam("group_by"); by != "" {
		q.Group = by
	}
	if known := []string{budget.ByDay, budget.ByAgent, budget.ByUser, budget.ByModel, budget.ByProvider}; !slices.Contains(known, q.Group) {
		return invalid("group_by must be one of day, agent, user, model, provider")
	}
	return q, nil
}

// parseTime reads an ISO 8601 time or a date, which is its beginning in UTC.
func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, text)
	}
	return t.UTC(), err
}

func totalsOf(g *budget.Group, currency string) usageTotals {
	t := usageTotals{
		Requests: g.Requests, ModelCalls: g.Calls,
		Tokens: tokenCounts{Input: g.Input, Output: g.Output, Cached: g.Cached},
	}
	if g.Unpriced == 0 && g.Calls > 0 {
		t.Cost = &costDocument{Amount: g.Amount, Currency: currency}
	}
	return t
}

func budgetOf(s *budget.Standing) budgetDocument {
	d := budgetDocument{
		Scope: s.Scope, ID: s.ID, PeriodStart: jsonTime(s.Begin), Tokens: budgetTokens{Used: s.Tokens},
		Amount: budgetAmount{Used: s.Amount, Limit: s.AmountLimit}, State: s.State,
	}
	if s.TokenLimit > 0 {
		d.Tokens.Limit = &s.TokenLimit
	}
	return d
}
