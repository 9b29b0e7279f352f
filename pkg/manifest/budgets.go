package manifest

// Budgets bound what models may cost, per UTC day. The operator's policy wins
// over them.
type Budgets struct {
	Formation Budget            // all of the formation
	Agent     Budget            // each agent
	User      Budget            // each user
	Agents    map[string]Budget // replaces Agent for one id
	Users     map[string]Budget // replaces User for one id
	WarnAt    float64           // share of a budget at which a warning is told, 0.8
}

// Budget is one limit; the zero value is none.
type Budget struct {
	TokensPerDay int64    // 0: no limit
	AmountPerDay *float64 // in LLM.Currency; nil: no limit
}

// IsZero tells that the budget limits nothing.
func (b Budget) IsZero() bool { return b.TokensPerDay == 0 && b.AmountPerDay == nil }

// HasAmount tells whether any budget counts money.
func (b *Budgets) HasAmount() bool {
	all := []Budget{b.Formation, b.Agent, b.User}
	for _, m := range []map[string]Budget{b.Agents, b.Users} {
		for _, one := range m {
			all = append(all, one)
		}
	}
	for _, one := range all {
		if one.AmountPerDay != nil {
			return true
		}
	}
	return false
}

func (d *decoder) budgets(o *object, b *Budgets) {
	b.Formation = d.budget(o.block("formation"))
	b.Agent = d.budget(o.block("agent"))
	b.User = d.budget(o.block("user"))
	b.Agents = d.budgetMap(o, "agents")
	b.Users = d.budgetMap(o, "users")
	set(&b.WarnAt, o.float("warn_at", 0, 1))
	o.end()
}

func (d *decoder) budgetMap(o *object, key string) map[string]Budget {
	out := map[string]Budget{}
	o.each(key, func(name string, s *slot) {
		if b := s.block(); b != nil {
			out[name] = d.budget(b)
		}
		s.end()
	})
	return out
}

func (d *decoder) budget(o *object) Budget {
	var b Budget
	if n := o.integer("tokens_per_day", 1, mostCount).v; n != nil {
		b.TokensPerDay = int64(*n)
	}
	b.AmountPerDay = o.float("amount_per_day", 0, mostCount).v
	o.end()
	return b
}
