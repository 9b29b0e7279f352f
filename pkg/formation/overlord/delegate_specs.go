package overlord

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// delegates are the tools by which one agent has others work, as models read
// them.
type delegates struct {
	consult, consultAll, handOver chat.ToolSpec
}

// maxAbout is how much of an agent's description others read, in bytes.
const maxAbout = 300

// newDelegates describes, for each agent that may delegate, the others.
func newDelegates(agents []manifest.Agent) map[string]*delegates {
	out := make(map[string]*delegates, len(agents))
	for i := range agents {
		a := &agents[i]
		if len(agents) < 2 || !a.DirectDelegation || a.Delegation == manifest.DelegateNever {
			continue
		}
		out[a.ID] = describeOthers(agents, a)
	}
	return out
}

func describeOthers(agents []manifest.Agent, self *manifest.Agent) *delegates {
	var ids []string
	var list strings.Builder
	for i := range agents {
		a := &agents[i]
		if a.ID == self.ID {
			continue
		}
		about := a.Description
		if len(about) > maxAbout {
			about = strings.ToValidUTF8(about[:maxAbout], "") + "…"
		}
		ids = append(ids, a.ID)
		fmt.Fprintf(&list, "\n- %s: %s", a.ID, about)
	}
	question := map[string]any{
		"agent_id": map[string]any{"type": "string", "enum": ids},
		"question": map[string]any{"type": "string", "minLength": 1, "description": "Complete in itself: the agent sees nothing of the conversation."},
	}
	handOver := "Hands the conversation over to another agent for good: it answers the user in your place. Use it alone, when the request belongs to that agent."
	if self.Delegation == manifest.DelegateAskUser {
		handOver += " The user is asked first."
	}
	return &delegates{
		consult: chat.ToolSpec{
			Name: "consult_agent", Description: "Asks another agent of the team a question and returns its answer, with which you go on. Agents:" + list.String(),
			Schema: object(question, "agent_id", "question"),
		},
		consultAll: chat.ToolSpec{
			Name: "consult_agents", Description: "Asks several agents at once, as consult_agent does.",
			Schema: object(map[string]any{"questions": map[string]any{
				"type": "array", "minItems": 1, "maxItems": maxConsulted, "items": object(question, "agent_id", "question"),
			}}, "questions"),
		},
		handOver: chat.ToolSpec{
			Name: "delegate_to_agent", Description: handOver,
			Schema: object(map[string]any{
				"agent_id": map[string]any{"type": "string", "enum": ids},
				"reason":   map[string]any{"type": "string", "description": "Why, and what that agent should know beside the conversation."},
			}, "agent_id"),
		},
	}
}

// object is the schema of an object with these properties and no others.
func object(properties map[string]any, required ...string) json.RawMessage {
	schema, err := json.Marshal(map[string]any{
		"type": "object", "additionalProperties": false, "properties": properties, "required": required,
	})
	if err != nil {
		panic(err) // texts always encode
	}
	return schema
}
