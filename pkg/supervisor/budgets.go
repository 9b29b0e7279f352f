package supervisor

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// money is an amount of the formation's currency.
type money float64

// share is a part of a whole, above 0 and at most 1.
type share float64

// BudgetSettings are the keys of "formations.budgets.<id>": how many tokens and
// how much money the models of a formation may take on a day of UTC, in all, for
// each agent and for each user. The tags of encoding/json are what a child reads.
type BudgetSettings struct {
	Formation BudgetLimit            `conf:"formation" json:"formation"`
	Agent     BudgetLimit            `conf:"agent" json:"agent"`
	User      BudgetLimit            `conf:"user" json:"user"`
	Agents    map[string]BudgetLimit `conf:"agents" json:"agents,omitempty"` // instead of Agent
	Users     map[string]BudgetLimit `conf:"users" json:"users,omitempty"`   // instead of User
	WarnAt    share                  `conf:"warn_at" json:"warn_at,omitempty"`
}

// BudgetLimit bounds one day; 0 tokens and a nil amount are no bound.
type BudgetLimit struct {
	TokensPerDay int    `conf:"tokens_per_day" json:"tokens_per_day,omitempty"`
	AmountPerDay *money `conf:"amount_per_day" json:"amount_per_day,omitempty"`
}

// budgetsOf is what a formation's child is told, nil without a policy.
func (c *Config) budgetsOf(id string) []byte {
	b, ok := c.Formations.Budgets[id]
	if !ok {
		if b, ok = c.Formations.Budgets[defaultLimits]; !ok {
			return nil
		}
	}
	text, err := json.Marshal(b)
	if err != nil { // numbers and names: there is nothing that cannot be written
		return nil
	}
	return text
}

func parseMoney(text string) (any, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x <= 1e9) {
		return nil, fmt.Errorf("want an amount of money from 0 to 1000000000, not %q", text)
	}
	return money(x), nil
}

func parseShare(text string) (any, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x > 0 && x <= 1) {
		return nil, fmt.Errorf("want a number above 0 and at most 1, not %q", text)
	}
	return share(x), nil
}
