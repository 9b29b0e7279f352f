package httpapi

import (
	"encoding/json"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// agentDocument is an agent as written, with its defaults, beside the summary
// that clients decode. Secrets stay placeholders.
type agentDocument struct {
	Schema        string          `json:"schema,omitempty"`
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	Role          string          `json:"role"`
	Description   string          `json:"description"`
	SystemMessage string          `json:"system_message,omitempty"`
	Model         string          `json:"model"`
	Provider      string          `json:"provider"`
	Enabled       bool            `json:"enabled"`
	Status        string          `json:"status"`
	Active        bool            `json:"active"`
	Tools         []string        `json:"tools"`
	MCPServers    []string        `json:"mcp_servers"`
	Special       specialization  `json:"specialization"`
	Behavior      systemBehavior  `json:"system_behavior"`
	LLM           agentLLM        `json:"llm"`
	LLMModels     []agentModel    `json:"llm_models"`
	Memory        agentMemory     `json:"memory"`
	Timeout       *agentTimeout   `json:"timeout,omitempty"`
	Metadata      json.RawMessage `json:"metadata"`
}

type specialization struct {
	Domain         string   `json:"domain,omitempty"`
	Subdomain      string   `json:"subdomain,omitempty"`
	ExpertiseLevel string   `json:"expertise_level,omitempty"`
	Keywords       []string `json:"keywords,omitempty"`
}

type systemBehavior struct {
	Constraints      []string `json:"constraints,omitempty"`
	Capabilities     []string `json:"capabilities,omitempty"`
	InteractionStyle string   `json:"interaction_style,omitempty"`
	ResponseLength   string   `json:"response_length,omitempty"`
	ErrorHandling    string   `json:"error_handling,omitempty"`
}

type agentLLM struct {
	Settings agentSettings `json:"settings"`
}

// agentSettings are those the agent runs with, the formation's included.
type agentSettings struct {
	Temperature   float64 `json:"temperature"`
	MaxTokens     int     `json:"max_tokens"`
	Timeout       float64 `json:"timeout_seconds"`
	MaxRetries    int     `json:"max_retries"`
	FallbackModel string  `json:"fallback_model,omitempty"`
}

type agentModel struct {
	Capability string `json:"capability"`
	Model      string `json:"model"`
	APIKey     string `json:"api_key,omitempty"`
}

type agentMemory struct {
	Buffer agentBuffer `json:"buffer"`
}

type agentBuffer struct {
	Size       int `json:"size"`
	Multiplier int `json:"multiplier"`
}

type agentTimeout struct {
	Default float64 `json:"default,omitempty"` // seconds
	Max     float64 `json:"max,omitempty"`
}

type agentList struct {
	Agents []json.RawMessage `json:"agents"`
	Count  int               `json:"count"`
}

func (a *api) listAgents(c echo.Context, _ caller) error {
	return a.reply(c, objectAgentList, typeAgentList, &agentList{Agents: a.agents, Count: len(a.agents)})
}

func (a *api) getAgent(c echo.Context, _ caller) error {
	id := httpx.Param(c, "id")
	doc, ok := a.agentByID[id]
	if !ok {
		return agentNotFound(id)
	}
	return a.reply(c, objectAgent, typeAgent, doc)
}

// describeAgents writes the documents of all agents.
func (a *api) describeAgents() error {
	f := a.cfg.Formation
	a.agents = make([]json.RawMessage, 0, len(f.Agents))
	a.agentByID = make(map[string]json.RawMessage, len(f.Agents))
	for i := range f.Agents {
		doc, err := describe(f, &f.Agents[i])
		if err != nil {
			return err
		}
		a.agents = append(a.agents, doc)
		a.agentByID[f.Agents[i].ID] = doc
	}
	return nil
}

func describe(f *manifest.Formation, g *manifest.Agent) (json.RawMessage, error) {
	metadata := json.RawMessage("{}")
	if len(g.Metadata) > 0 {
		var err error
		if metadata, err = json.Marshal(g.Metadata); err != nil {
			return nil, err
		}
	}
	use := g.Use(f)
	doc := agentDocument{
		Schema: g.Schema, ID: g.ID, Name: g.Name, Role: g.Role, Description: g.Description,
		SystemMessage: g.SystemMessage, Model: use.ID, Provider: use.Provider(), Enabled: g.Active,
		Status: "active", Active: g.Active, Tools: []string{}, MCPServers: []string{},
		Special: specialization(g.Specialization), Behavior: systemBehavior(g.SystemBehavior),
		LLM: agentLLM{agentSettings{
			Temperature: use.Settings.Temperature, MaxTokens: use.Settings.MaxTokens,
			Timeout: use.Settings.Timeout.Seconds(), MaxRetries: use.Settings.MaxRetries,
			FallbackModel: use.Settings.FallbackModel,
		}},
		LLMModels: make([]agentModel, 0, len(g.LLM.Models)),
		Memory:    agentMemory{agentBuffer{g.Buffer.Size, g.Buffer.Multiplier}},
		Timeout:   timeoutOf(g.Timeout), Metadata: metadata,
	}
	for _, m := range g.LLM.Models {
		doc.LLMModels = append(doc.LLMModels, agentModel{m.Capability, m.ID, shownSecret(m.APIKey)})
	}
	return json.Marshal(&doc)
}

func timeoutOf(t manifest.AgentTimeout) *agentTimeout {
	if t == (manifest.AgentTimeout{}) {
		return nil
	}
	return &agentTimeout{Default: t.Default.Seconds(), Max: t.Max.Seconds()}
}

// shownSecret returns a placeholder as it is; a key written out is not shown.
func shownSecret(text string) string {
	if text == "" || manifest.HasPlaceholder(text) {
		return text
	}
	return "••••••••"
}
