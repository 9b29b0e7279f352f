package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

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
	Agents []block `json:"agents"`
	Count  int     `json:"count"`
}

func (a *api) listAgents(c echo.Context, _ caller) error {
	list, err := a.agents()
	if err != nil {
		return err
	}
	return a.reply(c, objectAgentList, typeAgentList, &agentList{Agents: list, Count: len(list)})
}

func (a *api) getAgent(c echo.Context, _ caller) error {
	id := httpx.Param(c, "id")
	list, err := a.agents()
	if err != nil {
		return err
	}
	for _, doc := range list {
		if doc["id"] == id {
			return a.reply(c, objectAgent, typeAgent, doc)
		}
	}
	return agentNotFound(id)
}

// agents returns the documents of all agents: their files with defaults, under
// what they run with.
func (a *api) agents() ([]block, error) {
	f := a.cfg.Formation
	list := f.EffectiveAgents()
	for i := range list {
		a.describeAgent(&f.Agents[i], list[i])
		// All of it is made plain before secrets are looked for.
		data, err := json.Marshal(list[i])
		if err != nil {
			return nil, fmt.Errorf("describe agent %s: %w", f.Agents[i].ID, err)
		}
		var doc any
		if err := json.Unmarshal(data, &doc); err != nil {
			return nil, fmt.Errorf("describe agent %s: %w", f.Agents[i].ID, err)
		}
		list[i], _ = a.withoutSecrets(doc).(block)
	}
	return list, nil
}

// describeAgent adds to an agent's file what it runs with.
func (a *api) describeAgent(g *manifest.Agent, doc block) {
	f := a.cfg.Formation
	use := g.Use(f)
	servers := []string{}
	for _, s := range usedServers(f, g) {
		servers = append(servers, s.ID)
	}
	tools := []string{}
	if a.cfg.ToolServers != nil {
		tools = append(tools, a.cfg.ToolServers.ToolsOf(g.ID)...)
	}
	models := make([]agentModel, 0, len(g.LLM.Models))
	for _, m := range g.LLM.Models {
		models = append(models, agentModel{m.Capability, m.ID, m.APIKey})
	}
	maps.Copy(doc, block{
		"id": g.ID, "name": g.Name, "role": g.Role, "description": g.Description, "model": use.ID, "provider": use.Provider(),
		"enabled": g.Active, "status": "active", "active": g.Active, "tools": tools, "mcp_servers": servers,
		"specialization": specialization(g.Specialization), "system_behavior": systemBehavior(g.SystemBehavior),
		"llm": agentLLM{agentSettings{
			Temperature: use.Settings.Temperature, MaxTokens: use.Settings.MaxTokens,
			Timeout: use.Settings.Timeout.Seconds(), MaxRetries: use.Settings.MaxRetries,
			FallbackModel: use.Settings.FallbackModel,
		}},
		"llm_models": models, "memory": agentMemory{agentBuffer{g.Buffer.Size, g.Buffer.Multiplier}},
	})
	if g.SystemMessage != "" {
		doc["system_message"] = g.SystemMessage
	}
	if t := timeoutOf(g.Timeout); t != nil {
		doc["timeout"] = t
	}
	if doc["schema"] == nil {
		doc["schema"] = g.Schema
	}
	if doc["metadata"] = g.Metadata; g.Metadata == nil {
		doc["metadata"] = block{}
	}
}

// usedServers returns the tool servers of an agent: those it lists, else all of
// the formation.
func usedServers(f *manifest.Formation, g *manifest.Agent) []manifest.MCPUse {
	if g.MCPServers != nil {
		return g.MCPServers
	}
	all := make([]manifest.MCPUse, len(f.MCPServers))
	for i := range f.MCPServers {
		all[i].ID = f.MCPServers[i].ID
	}
	return all
}

func timeoutOf(t manifest.AgentTimeout) *agentTimeout {
	if t == (manifest.AgentTimeout{}) {
		return nil
	}
	return &agentTimeout{Default: t.Default.Seconds(), Max: t.Max.Seconds()}
}
