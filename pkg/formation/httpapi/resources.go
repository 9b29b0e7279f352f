package httpapi

import (
	"github.com/agentformation/service/pkg/formation/mcpserver"
	"github.com/agentformation/service/pkg/manifest"
)

// agentResource is what anybody with a key may know of an agent; how it is told
// to work is for administrators.
type agentResource struct {
	ID             string         `json:"id"`
	Name           string         `json:"name"`
	Description    string         `json:"description"`
	Role           string         `json:"role,omitempty"`
	Specialization specialization `json:"specialization"`
}

type sopResource struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags,omitempty"`
	Content     string   `json:"content"`
}

type skillResource struct {
	Name          string         `json:"name"`
	Description   string         `json:"description"`
	License       string         `json:"license,omitempty"`
	Compatibility string         `json:"compatibility,omitempty"`
	AllowedTools  []string       `json:"allowed_tools,omitempty"`
	Metadata      map[string]any `json:"metadata,omitempty"`
	Resources     []string       `json:"resources,omitempty"`
}

// resources are the agents, procedures and skills of the formation, as far as
// its clients may know them.
func (a *api) resources() []mcpserver.Resource {
	f := a.cfg.Formation
	var all []mcpserver.Resource
	for i := range f.Agents {
		g := &f.Agents[i]
		all = append(all, a.resource("agents", g.ID, g.Description, func() any {
			return &agentResource{g.ID, g.Name, g.Description, g.Role, specialization(g.Specialization)}
		}))
	}
	for i := range f.SOPs {
		p := &f.SOPs[i]
		all = append(all, a.resource("sops", p.ID, p.Description, func() any {
			return &sopResource{p.ID, p.Name, p.Description, p.Mode, p.Tags, p.Body}
		}))
	}
	for i := range f.Skills {
		if k := &f.Skills[i]; k.Agent == "" { // an agent's own skills are its own business
			all = append(all, a.resource("skills", k.Name, k.Description, func() any { return skillOf(k) }))
		}
	}
	return all
}

func skillOf(k *manifest.Skill) *skillResource {
	return &skillResource{k.Name, k.Description, k.License, k.Compatibility, k.AllowedTools, k.Metadata, k.Resources}
}

func (a *api) resource(kind, id, about string, content func() any) mcpserver.Resource {
	return mcpserver.Resource{Kind: kind, ID: id, About: a.cfg.Redact(about), Text: func() (string, error) {
		text, err := asJSON(content())
		return a.cfg.Redact(text), err
	}}
}
