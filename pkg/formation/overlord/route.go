package overlord

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// How a decision was reached.
const (
	MethodExplicit  = "explicit"  // the caller named the agent
	MethodSingle    = "single"    // there is only one
	MethodModel     = "model"     // a model chose
	MethodHeuristic = "heuristic" // the words of the message matched best
	MethodHistory   = "history"   // a follow-up stays with the session's agent
	MethodDefault   = "default"   // nothing matched: the first agent
)

// Decision says who answers and why.
type Decision struct {
	Agent  string `json:"agent"`
	Method string `json:"method"`
	Reason string `json:"reason,omitempty"`
}

const (
	// A routing call that takes longer is not worth waiting for: the
	// deterministic choice takes over.
	routeTimeout = 10 * time.Second
	// Decisions that are kept for repeated messages.
	maxCached = 1000
	// The part of a message that routing reads; the rest rarely changes who
	// should answer and costs tokens.
	maxRouteChars = 4000
)

// router decides which agent answers. One model call decides; when there is no
// model, or it fails, or names nobody known, scoring by words decides, which
// always has an answer.
type router struct {
	formation *manifest.Formation
	models    agent.Models
	use       manifest.ModelUse
	scorer    *scorer
	prompt    string
	schema    json.RawMessage
	cfg       Config

	mu    sync.Mutex // guards the field that follows
	cache map[[32]byte]cached
}

type cached struct {
	decision Decision
	until    time.Time
}

func newRouter(cfg Config) *router {
	return &router{
		formation: cfg.Formation, models: cfg.Models, use: cfg.Formation.OverlordUse(),
		scorer: newScorer(cfg.Formation.Agents), prompt: routePrompt(cfg.Formation.Agents),
		schema: routeSchema(cfg.Formation.Agents), cfg: cfg, cache: make(map[[32]byte]cached),
	}
}

func (r *router) route(ctx context.Context, in Input) Decision {
	key := sha256.Sum256([]byte(in.LastAgent + "\x00" + in.Message))
	if d, ok := r.lookup(key); ok {
		return d
	}
	d, err := r.ask(ctx, in)
	if err != nil {
		if ctx.Err() == nil {
			r.cfg.Log.Warn().Err(err).Msg("routing by model did not work; routing by words")
		}
		return r.scorer.choose(in.Message, in.LastAgent)
	}
	r.store(key, d)
	return d
}

func (r *router) lookup(key [32]byte) (Decision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.cache[key]
	if !ok || !r.cfg.Now().Before(c.until) {
		return Decision{}, false
	}
	return c.decision, true
}

// store keeps a model's decision. A full cache is emptied: decisions are cheap
// to make again and an order of age would cost more than it saves.
func (r *router) store(key [32]byte, d Decision) {
	caching := r.formation.Overlord.Caching
	if !caching.Enabled {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		clear(r.cache)
	}
	r.cache[key] = cached{decision: d, until: r.cfg.Now().Add(caching.TTL)}
}

var errNoModel = errors.New("no model is configured for routing")

func (r *router) ask(ctx context.Context, in Input) (Decision, error) {
	if r.use.ID == "" {
		return Decision{}, errNoModel
	}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	zero := 0.0
	settings := agent.CallSettings(r.use.Settings)
	settings.Temperature = &zero
	reply, err := llm.Collect(r.models.Stream(ctx, r.use.ID, llm.Request{
		Messages: r.messages(in), Settings: settings, Schema: r.schema, SchemaName: "route", Purpose: "routing",
		Account: llm.Account{User: in.UserID, Request: in.RequestID},
	}), nil)
	if err != nil {
		return Decision{}, fmt.Errorf("ask the routing model: %w", err)
	}
	return r.parse(reply.Text)
}

func (r *router) messages(in Input) []chat.Message {
	var b strings.Builder
	if in.LastAgent != "" {
		fmt.Fprintf(&b, "The previous message of this conversation was answered by agent %q. Keep it for a follow-up.\n\n", in.LastAgent)
	}
	b.WriteString("Message:\n")
	msg := in.Message
	if len(msg) > maxRouteChars {
		msg = strings.ToValidUTF8(msg[:maxRouteChars], "")
	}
	b.WriteString(msg)
	return []chat.Message{{Role: chat.System, Content: r.prompt}, {Role: chat.User, Content: b.String()}}
}

// parse reads the model's choice; some models wrap JSON in a code fence.
func (r *router) parse(text string) (Decision, error) {
	begin, end := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
	if begin < 0 || end < begin {
		return Decision{}, fmt.Errorf("the routing model's answer holds no JSON object: %.100q", text)
	}
	var choice struct {
		AgentID string `json:"agent_id"`
		Reason  string `json:"reason"`
	}
	if err := json.Unmarshal([]byte(text[begin:end+1]), &choice); err != nil {
		return Decision{}, fmt.Errorf("read the routing model's answer: %w", err)
	}
	if r.formation.Agent(choice.AgentID) == nil {
		return Decision{}, fmt.Errorf("the routing model named the unknown agent %q", choice.AgentID)
	}
	return Decision{Agent: choice.AgentID, Method: MethodModel, Reason: choice.Reason}, nil
}

// routePrompt lists the agents, one block each, in a fixed shape.
func routePrompt(agents []manifest.Agent) string {
	var b strings.Builder
	b.WriteString("You route messages to the one agent of a team that should answer. Choose by what each agent is for. Agents:\n")
	for i := range agents {
		a := &agents[i]
		fmt.Fprintf(&b, "\n- agent_id: %s\n  name: %s\n  description: %s\n", a.ID, a.Name, a.Description)
		if s := a.Specialization; s.Domain != "" {
			fmt.Fprintf(&b, "  field: %s\n", strings.TrimSpace(s.Domain+" "+s.Subdomain))
		}
		if k := a.Specialization.Keywords; len(k) > 0 {
			fmt.Fprintf(&b, "  keywords: %s\n", strings.Join(k, ", "))
		}
	}
	b.WriteString("\nAnswer with a JSON object: {\"agent_id\": \"<one of the ids>\", \"reason\": \"<a few words>\"}.")
	return b.String()
}

func routeSchema(agents []manifest.Agent) json.RawMessage {
	ids := make([]string, len(agents))
	for i := range agents {
		ids[i] = agents[i].ID
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"agent_id", "reason"},
		"properties": map[string]any{
			"agent_id": map[string]any{"type": "string", "enum": ids},
			"reason":   map[string]any{"type": "string"},
		},
	})
	if err != nil {
		panic(err) // strings always encode
	}
	return schema
}
