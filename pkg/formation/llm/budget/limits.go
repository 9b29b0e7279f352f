package budget

import (
	"math"
	"strconv"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// The kinds of scopes, as GET /v1/usage names them.
const (
	scopeFormation = "formation"
	scopeAgent     = "agent"
	scopeUser      = "user"
)

// usualWarnAt is the share of a budget at which it warns (reference runtime.md 7.3).
const usualWarnAt = 0.8

// billionths is how many of our units make one of the currency.
const billionths = 1e9

// Limit bounds a day of one scope.
type Limit struct {
	Tokens int64  // 0: none
	Amount *int64 // billionths of the currency; nil: none
}

func (l Limit) none() bool { return l.Tokens == 0 && l.Amount == nil }

// Limits are those of a formation, its agents and its users.
type Limits struct {
	formation, agent, user Limit
	agents, users          map[string]Limit
	warnAt                 float64
}

// Of merges what the operator and the author demand. An author may be stricter
// than the operator, never laxer; nil demands nothing.
func Of(operator, author *manifest.Budgets) Limits {
	if author == nil {
		author = &manifest.Budgets{}
	}
	if operator == nil {
		operator = &manifest.Budgets{}
	}
	l := Limits{
		formation: stricter(operator.Formation, author.Formation),
		agent:     stricter(operator.Agent, author.Agent), user: stricter(operator.User, author.User),
		agents: named(operator.Agent, author.Agent, operator.Agents, author.Agents),
		users:  named(operator.User, author.User, operator.Users, author.Users),
		warnAt: author.WarnAt,
	}
	if operator.WarnAt > 0 {
		l.warnAt = operator.WarnAt
	}
	if l.warnAt <= 0 {
		l.warnAt = usualWarnAt
	}
	return l
}

// named merges the limits that override the common one for some ids.
func named(operator, author manifest.Budget, operators, authors map[string]manifest.Budget) map[string]Limit {
	out := make(map[string]Limit, len(operators)+len(authors))
	for _, ids := range []map[string]manifest.Budget{operators, authors} {
		for id := range ids {
			o, ok := operators[id]
			if !ok {
				o = operator
			}
			a, ok := authors[id]
			if !ok {
				a = author
			}
			out[id] = stricter(o, a)
		}
	}
	return out
}

func stricter(a, b manifest.Budget) Limit {
	l := Limit{Tokens: a.TokensPerDay}
	if l.Tokens == 0 || b.TokensPerDay > 0 && b.TokensPerDay < l.Tokens {
		l.Tokens = b.TokensPerDay
	}
	for _, m := range []*float64{a.AmountPerDay, b.AmountPerDay} {
		if m == nil {
			continue
		}
		if n := amountOf(math.Round(*m*billionths), math.MaxInt64); l.Amount == nil || n < *l.Amount {
			l.Amount = &n
		}
	}
	return l
}

// of returns the scopes with a limit that a call counts against.
func (l *Limits) of(formation string, a llm.Account) []scope {
	var out []scope
	add := func(kind, id string, limit Limit) {
		if !limit.none() {
			out = append(out, scope{kind: kind, id: id, limit: limit, warnAt: l.warnAt})
		}
	}
	add(scopeFormation, formation, l.formation)
	if a.Agent != "" {
		add(scopeAgent, a.Agent, pick(l.agents, a.Agent, l.agent))
	}
	if a.User != "" {
		add(scopeUser, a.User, pick(l.users, a.User, l.user))
	}
	return out
}

func pick(named map[string]Limit, id string, common Limit) Limit {
	if l, ok := named[id]; ok {
		return l
	}
	return common
}

// Price is what a token costs, in billionths of the currency.
type Price struct{ Input, Output, Cached float64 }

// mostCost is what one call costs at most: a day of such calls can still be added
// up, so that no price, however wrong, turns a budget around.
const mostCost = 1 << 53

// cost is the price of a use, rounded up.
func (p Price) cost(u chat.Usage) int64 {
	fresh := max(0, u.PromptTokens-u.CachedTokens)
	return amountOf(math.Ceil(float64(fresh)*p.Input+float64(u.CachedTokens)*p.Cached+float64(u.CompletionTokens)*p.Output), mostCost)
}

// amountOf converts an amount that may be more than fits; that is then most.
func amountOf(amount float64, most int64) int64 {
	if amount >= float64(most) {
		return most
	}
	return int64(amount)
}

// Prices are those of the models, by "provider/model".
type Prices struct {
	Currency string
	Models   map[string]manifest.Price
}

// Of returns the price of a model, false when it has none.
func (p Prices) Of(modelID string) (Price, bool) {
	m, ok := p.Models[modelID]
	if !ok {
		return Price{}, false
	}
	// Money per million tokens is a thousand billionths per token.
	return Price{Input: m.Input * 1000, Output: m.Output * 1000, Cached: m.Cached * 1000}, true
}

// Cost returns what a use of a model costs, false when it has no price.
func (p Prices) Cost(modelID string, u chat.Usage) (amount float64, currency string, ok bool) {
	price, ok := p.Of(modelID)
	if !ok {
		return 0, "", false
	}
	return money(price.cost(u)), p.Currency, true
}

// show writes an amount for people.
func (p Prices) show(amount int64) string {
	return strconv.FormatFloat(money(amount), 'f', -1, 64) + " " + p.Currency
}

func money(amount int64) float64 { return float64(amount) / billionths }
