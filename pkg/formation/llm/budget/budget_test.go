package budget

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/manifest"
)

// noon is a time in the middle of a day of UTC.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// book is a ledger over a store of its own, with a clock that tests move.
type book struct {
	*Ledger
	t        *testing.T
	path     string
	now      atomic.Pointer[time.Time]
	warnings []Warning
}

func (b *book) set(t time.Time) { b.now.Store(&t) }

func open(t *testing.T, limits Limits, prices Prices) *book {
	t.Helper()
	b := &book{t: t, path: filepath.Join(t.TempDir(), "memory.db")}
	b.set(noon)
	b.Ledger = b.launch("launch-1", limits, prices, nil)
	return b
}

// launch opens the store as another process of the formation does.
func (b *book) launch(id string, limits Limits, prices Prices, fence []string) *Ledger {
	b.t.Helper()
	db, err := store.Open(b.t.Context(), store.Config{
		Path: b.path, LaunchID: id, Fence: fence, Log: zerolog.Nop(), Now: func() time.Time { return *b.now.Load() },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return New(Config{Formation: "hello", DB: db, Limits: limits, Prices: prices, Log: zerolog.Nop(), Warn: func(_ *store.Tx, w Warning) error {
		b.warnings = append(b.warnings, w)
		return nil
	}})
}

func (b *book) reserve(l *Ledger, c llm.Call) llm.Reservation {
	b.t.Helper()
	r, err := l.Reserve(b.t.Context(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *book) refused(l *Ledger, c llm.Call) string {
	b.t.Helper()
	_, err := l.Reserve(b.t.Context(), c)
	f := fault.From(err)
	if err == nil || f.Name != "BUDGET_EXCEEDED" || f.Kind != fault.RateLimited {
		b.t.Fatalf("Reserve = %v, want BUDGET_EXCEEDED", err)
	}
	return f.Message
}

func tokens(n int64) manifest.Budget { return manifest.Budget{TokensPerDay: n} }

func amount(x float64) manifest.Budget { return manifest.Budget{AmountPerDay: &x} }

func call(agent, user string) llm.Call {
	return llm.Call{ModelID: "openai/gpt", Account: llm.Account{Agent: agent, User: user, Request: "req_1"}, Prompt: 60, MaxCompletion: 40}
}

var used = chat.Usage{PromptTokens: 50, CompletionTokens: 30, TotalTokens: 80, CachedTokens: 20}

func TestReserve_AHundredCallsAtOnceNeverExceedALimitOfTen(t *testing.T) {
	t.Parallel()
	limits := Of(nil, &manifest.Budgets{Formation: tokens(1000)})
	b := open(t, limits, Prices{})
	other := b.launch("launch-2", limits, Prices{}, nil) // the other process of an update
	var allowed, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		l := b.Ledger
		if i%2 == 1 {
			l = other
		}
		wg.Go(func() {
			r, err := l.Reserve(t.Context(), call("poet", fmt.Sprint("user-", i)))
			switch {
			case err == nil:
				allowed.Add(1)
				r.Settle(t.Context(), chat.Usage{PromptTokens: 60, CompletionTokens: 40, TotalTokens: 100})
			case fault.From(err).Name == "BUDGET_EXCEEDED":
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 10 || refused.Load() != 90 {
		t.Errorf("%d calls were allowed and %d refused, want 10 and 90", allowed.Load(), refused.Load())
	}
	st, err := b.Standings(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	want := []Standing{{
		Scope: "formation", ID: "hello", Begin: noon.Truncate(24 * time.Hour), Tokens: 1000, TokenLimit: 1000, State: StateExceeded,
	}}
	if diff := cmp.Diff(want, st); diff != "" {
		t.Error(diff)
	}
}

func TestReserve_EachScopeHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, &manifest.Budgets{
		Agent: tokens(200), Agents: map[string]manifest.Budget{"free": {}},
		User: tokens(300), Users: map[string]manifest.Budget{"guest": tokens(100)},
	}), Prices{})
	for range 2 {
		b.reserve(b.Ledger, call("poet", "ann"))
	}
	if got := b.refused(b.Ledger, call("poet", "ann")); got != `The daily budget of agent "poet" does not allow another model call: `+
		`200 of 200 tokens are used or reserved, and the call may need 100. It begins anew at 00:00 UTC` {
		t.Error(got)
	}
	b.reserve(b.Ledger, call("free", "ann"))
	b.refused(b.Ledger, call("free", "ann"))
	b.reserve(b.Ledger, call("free", "guest"))
	b.refused(b.Ledger, call("free", "guest"))
	b.reserve(b.Ledger, call("", "")) // the overlord, for nobody
}

func TestReserve_WhatIsNotUsedIsFreeAgain(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, &manifest.Budgets{Formation: tokens(100)}), Prices{})
	for range 5 {
		b.reserve(b.Ledger, call("poet", "")).Release(t.Context())
	}
	r := b.reserve(b.Ledger, call("poet", ""))
	b.refused(b.Ledger, call("poet", ""))
	r.Settle(t.Context(), chat.Usage{PromptTokens: 5, TotalTokens: 5})
	small := call("poet", "")
	small.Prompt, small.MaxCompletion = 50, 45
	b.reserve(b.Ledger, small)
}

func TestReserve_TheNextDayBeginsAnew(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, &manifest.Budgets{Formation: tokens(100)}), Prices{})
	late := b.reserve(b.Ledger, call("poet", ""))
	b.set(noon.Add(12 * time.Hour))
	r := b.reserve(b.Ledger, call("poet", ""))
	late.Settle(t.Context(), used) // counts for the day of its beginning
	b.refused(b.Ledger, call("poet", ""))
	r.Release(t.Context())
	b.reserve(b.Ledger, call("poet", ""))
}

func TestReserve_AmountsFollowThePricesAndUnpricedModelsAreFree(t *testing.T) {
	t.Parallel()
	prices := Prices{Currency: "EUR", Models: map[string]manifest.Price{"openai/gpt": {Input: 2, Output: 10, Cached: 0.5}}}
	// 60 tokens in and 40 out: 0.00012 + 0.0004.
	b := open(t, Of(nil, &manifest.Budgets{Formation: amount(0.001)}), prices)
	r := b.reserve(b.Ledger, call("poet", ""))
	if got := b.refused(b.Ledger, call("poet", "")); got != "The daily budget of the formation does not allow another model call: "+
		"0.00052 EUR of 0.001 EUR is used or reserved, and the call may cost 0.00052 EUR. It begins anew at 00:00 UTC" {
		t.Error(got)
	}
	r.Settle(t.Context(), used) // 30 fresh, 20 cached, 30 out: 0.00006 + 0.00001 + 0.0003
	unpriced := call("poet", "")
	unpriced.ModelID = "local/free"
	for range 3 {
		b.reserve(b.Ledger, unpriced).Settle(t.Context(), used)
	}
	report, err := b.Report(t.Context(), Query{From: noon, To: noon, Group: ByModel})
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Currency: "EUR", Groups: []Group{
		{Key: "local/free", Requests: 1, Calls: 3, Input: 150, Output: 90, Cached: 60, Unpriced: 3},
		{Key: "openai/gpt", Requests: 1, Calls: 1, Input: 50, Output: 30, Cached: 20, Amount: 0.00037},
	}, Total: Group{Requests: 1, Calls: 4, Input: 200, Output: 120, Cached: 80, Amount: 0.00037, Unpriced: 3}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Error(diff)
	}
}

func TestReserve_NoPriceIsTooHighToBeCounted(t *testing.T) {
	t.Parallel()
	prices := Prices{Currency: "EUR", Models: map[string]manifest.Price{"openai/gpt": {Input: 1e15, Output: 1e15, Cached: 1e15}}}
	b := open(t, Of(nil, &manifest.Budgets{Formation: amount(1000)}), prices)
	b.refused(b.Ledger, call("poet", ""))
	lax := open(t, Of(nil, &manifest.Budgets{Formation: amount(1 << 53)}), Prices{Currency: "EUR", Models: map[string]manifest.Price{"openai/gpt": {Input: 1}}})
	lax.reserve(lax.Ledger, call("poet", ""))
}

func TestReserve_WhatADeadProcessReservedIsGivenUp(t *testing.T) {
	t.Parallel()
	limits := Of(nil, &manifest.Budgets{Formation: tokens(200)})
	b := open(t, limits, Prices{})
	b.reserve(b.Ledger, call("poet", ""))
	b.reserve(b.Ledger, call("poet", ""))
	b.refused(b.Ledger, call("poet", ""))
	next := b.launch("launch-2", limits, Prices{}, []string{"launch-1"})
	small := call("poet", "")
	small.Prompt = 40
	b.reserve(next, small).Release(t.Context())
	b.refused(next, call("poet", "")) // the prompts of the dead count
	st, err := next.Standings(t.Context(), "")
	if err != nil || st[0].Tokens != 120 {
		t.Errorf("used are %d tokens, %v, want 120", st[0].Tokens, err)
	}
}

func TestSettle_WarnsOncePerLimitAndDay(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, &manifest.Budgets{Formation: tokens(400), WarnAt: 0.5}), Prices{})
	for range 3 {
		b.reserve(b.Ledger, call("poet", "")).Settle(t.Context(), chat.Usage{PromptTokens: 100, TotalTokens: 100})
	}
	want := []Warning{{Scope: "formation", ID: "hello", Day: "2026-11-21", What: "tokens", Used: 200, Limit: 400}}
	if diff := cmp.Diff(want, b.warnings); diff != "" {
		t.Error(diff)
	}
	st, err := b.Standings(t.Context(), "")
	if err != nil || st[0].State != StateWarning {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestReport_GroupsCountsAndForgetsAfterAMonth(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, &manifest.Budgets{Formation: tokens(1 << 40)}), Prices{})
	book := func(agent, user, request, model string) {
		c := call(agent, user)
		c.Account.Request, c.ModelID = request, model
		b.reserve(b.Ledger, c).Settle(t.Context(), used)
	}
	book("poet", "ann", "req_1", "openai/a")
	book("poet", "ann", "req_1", "openai/b")
	book("clerk", "bob", "req_2", "google/a")
	b.set(noon.Add(24 * time.Hour))
	book("clerk", "ann", "req_3", "openai/a")
	keys := func(q Query) string {
		t.Helper()
		r, err := b.Report(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, g := range r.Groups {
			out += fmt.Sprintf("%s:%d/%d ", g.Key, g.Requests, g.Calls)
		}
		return fmt.Sprintf("%s= %d/%d", out, r.Total.Requests, r.Total.Calls)
	}
	all := Query{From: noon, To: noon.Add(24 * time.Hour)}
	for by, want := range map[string]string{
		ByDay:      "2026-11-21:2/3 2026-11-22:1/1 = 3/4",
		ByAgent:    "clerk:2/2 poet:1/2 = 3/4",
		ByUser:     "ann:2/3 bob:1/1 = 3/4",
		ByModel:    "google/a:1/1 openai/a:2/2 openai/b:1/1 = 3/4",
		ByProvider: "google:1/1 openai:2/3 = 3/4",
	} {
		all.Group = by
		if got := keys(all); got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
	if got := keys(Query{From: noon, To: noon, Group: ByAgent, User: "bob"}); got != "clerk:1/1 = 1/1" {
		t.Error(got)
	}
	b.set(noon.Add(Kept + 13*time.Hour))
	book("poet", "ann", "req_4", "openai/a")
	if got := keys(Query{From: noon.Add(-time.Hour), To: noon.Add(Kept + 13*time.Hour), Group: ByDay}); got !=
		"2026-11-22:1/1 2026-12-23:1/1 = 2/2" {
		t.Error(got)
	}
}

func TestSettle_WithoutLimitsUseIsBookedAllTheSame(t *testing.T) {
	t.Parallel()
	b := open(t, Of(nil, nil), Prices{})
	b.reserve(b.Ledger, call("poet", "ann")).Settle(t.Context(), used)
	b.reserve(b.Ledger, call("poet", "ann")).Release(t.Context())
	// A write of our own comes after what was submitted before it.
	if err := b.cfg.DB.Write(t.Context(), func(*store.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r, err := b.Report(t.Context(), Query{From: noon, To: noon, Group: ByUser})
	if err != nil || r.Total.Calls != 1 || r.Total.Input != 50 {
		t.Errorf("%+v, %v", r, err)
	}
	if st, err := b.Standings(t.Context(), ""); err != nil || len(st) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestOf_AnAuthorMayBeStricterThanTheOperatorNeverLaxer(t *testing.T) {
	t.Parallel()
	five := 5.0
	operator := &manifest.Budgets{
		Formation: manifest.Budget{TokensPerDay: 1000, AmountPerDay: &five}, User: tokens(100),
		Users: map[string]manifest.Budget{"vip": tokens(500)}, WarnAt: 0.9,
	}
	author := &manifest.Budgets{
		Formation: tokens(5000), Agent: tokens(50), User: tokens(80),
		Users: map[string]manifest.Budget{"eve": tokens(1 << 30)}, WarnAt: 0.1,
	}
	l := Of(operator, author)
	got := map[string]int64{
		"formation": l.formation.Tokens, "amount": *l.formation.Amount, "agent": l.agent.Tokens, "user": l.user.Tokens,
		"vip": l.users["vip"].Tokens, "eve": l.users["eve"].Tokens,
	}
	want := map[string]int64{"formation": 1000, "amount": 5e9, "agent": 50, "user": 80, "vip": 80, "eve": 100}
	if diff := cmp.Diff(want, got); diff != "" || l.warnAt != 0.9 {
		t.Errorf("%v %s", l.warnAt, diff)
	}
}
