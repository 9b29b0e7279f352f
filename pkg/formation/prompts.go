package formation

import (
	"slices"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

// withPrompts returns a copy of m in which the texts that models read hold
// values instead of placeholders. m keeps them: what the API shows is what the
// author wrote. Placeholders of user credentials stay.
func withPrompts(m *manifest.Formation, resolve manifest.Resolver) (*manifest.Formation, error) {
	x := expander{resolve: func(kind, name string) (string, bool) {
		if kind == manifest.KindUser {
			return "${{ " + kind + "." + name + " }}", true
		}
		return resolve(kind, name)
	}}
	out := *m
	out.Soul = x.text("soul", m.Soul)
	out.Agents = slices.Clone(m.Agents)
	for i := range out.Agents {
		a := &out.Agents[i]
		where := "agent " + a.ID
		for _, field := range []*string{
			&a.Name, &a.Description, &a.SystemMessage, &a.Specialization.Domain, &a.Specialization.Subdomain,
		} {
			*field = x.text(where, *field)
		}
		for _, list := range []*[]string{
			&a.Specialization.Keywords, &a.SystemBehavior.Constraints, &a.SystemBehavior.Capabilities,
		} {
			*list = slices.Clone(*list)
			for j := range *list {
				(*list)[j] = x.text(where, (*list)[j])
			}
		}
	}
	return &out, x.err
}

// expander keeps the first fault of many texts.
type expander struct {
	resolve manifest.Resolver
	err     error
}

func (x *expander) text(where, s string) string {
	value, err := manifest.Expand(s, x.resolve)
	if err != nil && x.err == nil {
		x.err = fault.Errorf(fault.Invalid, "SecretsError", "%s: %w", where, err)
	}
	return value
}
