package formation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/budget"
	"github.com/agentformation/service/pkg/formation/spool"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/manifest"
)

// budgetWarning is the action of the alert that a budget is nearly used up.
const budgetWarning = "budget.warning"

// budgetExceeded is the event that a budget has refused a call.
const budgetExceeded = "budget.exceeded"

// meter is the ledger of a formation whose router is made before its store is open.
type meter struct{ p *parts }

// Reserve asks the ledger.
func (m meter) Reserve(ctx context.Context, c llm.Call) (llm.Reservation, error) {
	r, err := m.p.ledger.Reserve(ctx, c)
	if err != nil {
		tellRefusal(ctx, c, err)
	}
	return r, err
}

// openLedger returns the book of what models cost.
func openLedger(p *parts, req control.LoadRequest) (*budget.Ledger, error) {
	operator, err := readPolicy(req.Budgets)
	if err != nil {
		return nil, err
	}
	m := p.manifest
	return budget.New(budget.Config{
		Formation: m.ID, DB: p.db, Limits: budget.Of(operator, &m.Budgets), Log: p.log,
		Prices: budget.Prices{Currency: m.LLM.Currency, Models: m.LLM.Prices},
		Warn: func(tx *store.Tx, w budget.Warning) error {
			p.tellWarning(w)
			return p.spool.Put(tx, warning(w))
		}, Warned: p.spool.Wake,
	}), nil
}

// policy is the operator's budget policy as the control contract carries it.
type policy struct {
	Formation dayLimit            `json:"formation"`
	Agent     dayLimit            `json:"agent"`
	User      dayLimit            `json:"user"`
	Agents    map[string]dayLimit `json:"agents"`
	Users     map[string]dayLimit `json:"users"`
	WarnAt    float64             `json:"warn_at"`
}

type dayLimit struct {
	TokensPerDay int64    `json:"tokens_per_day"`
	AmountPerDay *float64 `json:"amount_per_day"`
}

// readPolicy returns the operator's budgets. A policy that this build does not
// understand in every word is refused: it might allow what it should forbid.
func readPolicy(text []byte) (*manifest.Budgets, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var in policy
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, fmt.Errorf("read the operator's budget policy: %w", err)
	}
	return &manifest.Budgets{
		Formation: manifest.Budget(in.Formation), Agent: manifest.Budget(in.Agent), User: manifest.Budget(in.User),
		Agents: budgetsByID(in.Agents), Users: budgetsByID(in.Users), WarnAt: in.WarnAt,
	}, nil
}

func budgetsByID(in map[string]dayLimit) map[string]manifest.Budget {
	out := make(map[string]manifest.Budget, len(in))
	for id, limit := range in {
		out[id] = manifest.Budget(limit)
	}
	return out
}

func warningText(w budget.Warning) string {
	return fmt.Sprintf("%s %q has used %g of its %g %s of %s", w.Scope, w.ID, w.Used, w.Limit, w.What, w.Day)
}

// warning is what the operator is told about a budget.
func warning(w budget.Warning) spool.Record {
	r := spool.Record{
		Kind: spool.Alert, Action: budgetWarning, Actor: "formation", Result: "warning",
		Message: warningText(w),
	}
	// A map of these types can always be encoded.
	r.Detail, _ = json.Marshal(map[string]any{
		"scope": w.Scope, "id": w.ID, "day": w.Day, "kind": w.What, "used": w.Used, "limit": w.Limit,
	})
	return r
}
