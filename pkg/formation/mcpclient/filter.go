package mcpclient

import (
	"path"
	"strings"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// offers tells whether a filter lets a tool through: it is in Allow when there is
// one, and not in Deny.
func offers(f manifest.ToolFilter, tool string) bool {
	return (len(f.Allow) == 0 || anyGlob(f.Allow, tool)) && !anyGlob(f.Deny, tool)
}

func anyGlob(globs []string, tool string) bool {
	for _, g := range globs {
		if glob(g, tool) {
			return true
		}
	}
	return false
}

// glob is path.Match without the meaning of the slash, which names may hold.
func glob(pattern, name string) bool {
	const other = "\x01"
	pattern, name = strings.ReplaceAll(pattern, "/", other), strings.ReplaceAll(name, "/", other)
	ok, err := path.Match(pattern, name)
	return ok && err == nil || pattern == name
}

// The events about filters (reference runtime.md 18).
const (
	eventEmptySet     = "mcp.tool_filter.empty_set"
	eventUnknownAllow = "mcp.tool_filter.unknown_allow"
	eventUnknownDeny  = "mcp.tool_filter.unknown_deny"
)

// reportFilter tells of a filter that says something else than it seems to: it
// names tools that the server does not have, or leaves none.
func (s *server) reportFilter(agent string, f manifest.ToolFilter, tools []toolInfo) {
	if len(f.Allow)+len(f.Deny) == 0 {
		return
	}
	left := false
	for i := range tools {
		left = left || offers(f, tools[i].Name)
	}
	if !left && len(tools) > 0 {
		s.tell(eventEmptySet, agent, "the filter leaves no tool of the server "+s.file.ID, nil)
	}
	for event, globs := range map[string][]string{eventUnknownAllow: f.Allow, eventUnknownDeny: f.Deny} {
		var unknown []string
		for _, g := range globs {
			known := false
			for i := range tools {
				known = known || glob(g, tools[i].Name)
			}
			if !known {
				unknown = append(unknown, g)
			}
		}
		if unknown != nil {
			s.tell(event, agent, "the server "+s.file.ID+" has no tool "+strings.Join(unknown, ", "), unknown)
		}
	}
}

func (s *server) tell(event, agent, message string, globs []string) {
	data := map[string]any{"server": s.file.ID}
	if globs != nil {
		data["patterns"] = globs
	}
	if s.c.cfg.Hub != nil {
		s.c.cfg.Hub.Emit(telemetry.Event{Level: telemetry.Warning, Name: event, AgentID: agent, Message: message, Data: data})
	}
	s.c.cfg.Log.Warn().Str("server", s.key).Str("agent", agent).Str("event", event).Strs("patterns", globs).Msg(message)
}
