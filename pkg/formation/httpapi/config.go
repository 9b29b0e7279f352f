package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// The object and type values of the reads of the configuration (reference
// runtime.md 1.4, 1.5).
const (
	objectFormationConfig = "formation_config"
	objectConfig          = "config"
	objectOverlord        = "overlord_config"
	objectSoul            = "soul"
	objectLLMSettings     = "llm_settings"
	objectAsync           = "async"
	typeFormationConfig   = "formation.config.retrieved"
	typeOverlord          = "overlord.config.retrieved"
	typeSoul              = "soul.retrieved"
	typeLLMSettings       = "llm.settings.retrieved"
	typeAsync             = "async.retrieved"
)

// block is a part of the configuration, keyed as in the files.
type block = map[string]any

// effective returns the manifest as it applies, with placeholders kept and
// without secrets. It is made at each request: few are made, and a tree that
// nobody reads would stay in memory.
func (a *api) effective() block {
	tree, _ := a.withoutSecrets(a.cfg.Formation.Effective()).(block)
	return tree
}

// withoutSecrets masks what is written out, by its key, and what is a secret by
// its value.
func (a *api) withoutSecrets(tree any) any {
	return a.redacted(manifest.MaskSecrets(tree, secretfile.Mask))
}

// redacted takes the values that are known to be secret out of all texts.
func (a *api) redacted(v any) any {
	switch v := v.(type) {
	case block:
		for key := range v {
			v[key] = a.redacted(v[key])
		}
	case []any:
		for i := range v {
			v[i] = a.redacted(v[i])
		}
	case string:
		return a.cfg.Redact(v)
	}
	return v
}

// part returns a block of a block, an empty one when there is none.
func part(of block, key string) block {
	if b, ok := of[key].(block); ok {
		return b
	}
	return block{}
}

// orNull returns the named keys of a block, null for those that it lacks.
func orNull(of block, keys ...string) block {
	out := make(block, len(keys))
	for _, key := range keys {
		out[key] = of[key]
	}
	return out
}

func (a *api) getConfig(c echo.Context, _ caller) error {
	f := a.cfg.Formation
	config := a.effective()
	config["formation_id"], config["schema_version"], config["version"] = f.ID, f.Schema, a.cfg.Version
	config["overlord"] = a.overlord(config)
	agents, err := a.agents()
	if err != nil {
		return err
	}
	config["agents"] = agents
	servers := make([]any, len(f.MCPServers))
	for i := range f.MCPServers {
		servers[i] = f.MCPServers[i].ID
	}
	mcp := part(config, "mcp")
	mcp["servers"], config["mcp"] = servers, mcp
	delete(config, "mcps") // an older place of mcp.servers
	return a.reply(c, objectFormationConfig, typeFormationConfig, config)
}

type formationDocument struct {
	ID          string   `json:"id"`
	FormationID string   `json:"formation_id"`
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Agents      []string `json:"agents"` // ids
}

func (a *api) getFormation(c echo.Context, _ caller) error {
	f := a.cfg.Formation
	doc := formationDocument{ID: f.ID, FormationID: f.ID, Name: f.Name, Version: a.cfg.Version, Agents: make([]string, len(f.Agents))}
	for i := range f.Agents {
		doc.Agents[i] = f.Agents[i].ID
	}
	return a.reply(c, objectConfig, typeFormationConfig, &doc)
}

// overlord returns the block of the overlord, its soul wherever that was found.
func (a *api) overlord(config block) block {
	out := part(config, "overlord")
	for _, key := range []string{"llm", "caching", "response", "workflow", "clarification"} {
		out[key] = part(out, key)
	}
	out["soul"] = a.soul()
	out["persona"] = out["soul"]
	return out
}

func (a *api) soul() string {
	soul := a.cfg.Formation.Soul
	if soul == "" {
		soul = manifest.DefaultSoul
	}
	return a.cfg.Redact(soul)
}

func (a *api) getOverlord(c echo.Context, _ caller) error {
	return a.reply(c, objectOverlord, typeOverlord, a.overlord(a.effective()))
}

type soulDocument struct {
	Soul string `json:"soul"`
}

func (a *api) getSoul(c echo.Context, _ caller) error {
	return a.reply(c, objectSoul, typeSoul, &soulDocument{a.soul()})
}

func (a *api) getLLMSettings(c echo.Context, _ caller) error {
	llm := part(a.effective(), "llm")
	models, ok := llm["models"].([]any)
	if !ok { // none, or written as a map of capabilities
		models = []any{}
		if written := part(llm, "models"); len(written) > 0 {
			models = append(models, written)
		}
	}
	return a.reply(c, objectLLMSettings, typeLLMSettings, block{
		"api_keys": part(llm, "api_keys"), "models": models, "settings": part(llm, "settings"),
	})
}

func (a *api) getAsync(c echo.Context, _ caller) error {
	return a.reply(c, objectAsync, typeAsync, orNull(part(a.effective(), "async"),
		"mode", "threshold_seconds", "enable_estimation", "on_disconnect", "webhook_url", "webhook_retries", "webhook_timeout", "result_ttl"))
}
