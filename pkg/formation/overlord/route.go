package overlord

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// How a decision was reached.
const (
	MethodExplicit  = "explicit"  // the caller named the agent
	MethodSingle    = "single"    // there is only one
	MethodModel     = "model"     // a model chose
	MethodHeuristic = "heuristic" // the words of the message matched best
	MethodHistory   = "history"   // a follow-up stays with the session's agent
	MethodDefault   = "default"   // nothing matched: the default agent
)

// Decision says who answers and why. It is journalled, so that a resumed turn
// goes the same way.
type Decision struct {
	Agent  string `json:"agent"`
	Method string `json:"method"`
	Reason string `json:"reason,omitempty"`
	// OffTopic tells that none of the agents is for this; the default one answers.
	OffTopic bool `json:"off_topic,omitempty"`
	// SmallTalk tells that nothing is asked; the overlord answers itself. Only a
	// model decides this.
	SmallTalk bool      `json:"small_talk,omitempty"`
	Analysis  *Analysis `json:"analysis,omitempty"`
	// Dropped says why words decided although a model was to: short, and as the
	// model or its provider put it.
	Dropped string `json:"dropped,omitempty"`

	candidates []Candidate // best first
}

// Threat returns the kind of threat that the message is, or "".
func (d Decision) Threat() string {
	if d.Analysis == nil || !d.Analysis.SecurityThreat {
		return ""
	}
	return d.Analysis.ThreatType
}

const (
	// Decisions that are kept for repeated messages.
	maxCached = 1000
	// The part of a message that a routing model reads; the rest rarely changes
	// who should answer and costs tokens.
	maxRouteChars = 4000
	// What is kept of the reason why a model's answer was not used, in bytes.
	maxDropped = 300
	// Tools may come and go while a formation runs; how long it takes at most
	// until routing knows.
	toolsFresh = time.Minute
)

// router decides which agent answers. One model call analyses the message and
// chooses; when there is no model, or it fails, or names nobody known, words
// decide, which always have an answer.
//
// The method model asks for every message although words alone are often
// right: the same call says what the message needs, how much work it is and
// whether it is an attack, which words tell badly. hybrid and heuristic are for
// authors who would rather save that call.
type router struct {
	formation *manifest.Formation
	models    agent.Models
	use       manifest.ModelUse
	cfg       Config

	mu    sync.Mutex // guards what follows
	team  *team
	built time.Time // when the tools were read last
	cache map[[32]byte]cached
}

// team is what routing knows about the agents; it is made at the first
// decision and again when tools have changed.
type team struct {
	scorer *scorer
	prompt prompt // about all agents
	tools  map[string][]chat.ToolSpec
}

func newRouter(cfg Config) *router {
	return &router{
		formation: cfg.Formation, models: cfg.Models, use: cfg.Formation.OverlordUse(), cfg: cfg, cache: make(map[[32]byte]cached),
	}
}

// known returns the team as it is now.
func (r *router) known() *team {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Now()
	if r.team != nil && (r.cfg.AgentTools == nil || now.Sub(r.built) < toolsFresh) {
		return r.team
	}
	tools := make(map[string][]chat.ToolSpec)
	if r.cfg.AgentTools != nil {
		for i := range r.formation.Agents {
			id := r.formation.Agents[i].ID
			tools[id] = r.cfg.AgentTools(id)
		}
	}
	r.built = now
	if r.team != nil && sameTools(r.team.tools, tools) {
		return r.team
	}
	t := &team{tools: tools, scorer: newScorer(r.formation, func(id string) []chat.ToolSpec { return tools[id] })}
	ids := make([]string, len(r.formation.Agents))
	for i := range ids {
		ids[i] = r.formation.Agents[i].ID
	}
	t.prompt = newPrompt(r.formation, tools, ids)
	r.team = t
	clear(r.cache) // who can do what has changed
	return t
}

func sameTools(a, b map[string][]chat.ToolSpec) bool {
	for id, list := range b {
		if len(a[id]) != len(list) {
			return false
		}
		for i := range list {
			if a[id][i].Name != list[i].Name || a[id][i].Description != list[i].Description {
				return false
			}
		}
	}
	return len(a) == len(b)
}

// route decides about a message of a formation with several agents.
func (r *router) route(ctx context.Context, in Input) Decision {
	t := r.known()
	heard := listen(in.Message)
	ranked := t.scorer.rank(heard, in.LastAgent)
	guess := analyze(r.formation, in.Message, heard)
	byWords := r.byWords(ranked, &guess)
	settings := r.formation.Overlord.Routing
	switch {
	case guess.SecurityThreat, !settings.ByModel():
		return byWords
	case settings.Method == manifest.RouteHybrid && r.clear(ranked, guess):
		return byWords
	}
	key := cacheKey(in)
	if d, ok := r.lookup(key); ok {
		return d
	}
	d, err := r.ask(ctx, in, t, ranked, guess)
	if err != nil {
		if ctx.Err() == nil {
			telemetry.Log(ctx, r.cfg.Log).Warn().Err(err).Msg("routing by model did not work; routing by words")
		}
		byWords.Dropped = "the model's answer could not be used: " + clip(err.Error(), maxDropped)
		return byWords
	}
	r.store(key, d)
	return d
}

// byWords is the decision that needs no model.
func (r *router) byWords(ranked ranking, guess *Analysis) Decision {
	best := ranked.best()
	d := Decision{Agent: best.ID, Method: MethodHeuristic, OffTopic: ranked.offTopic, Analysis: guess, candidates: ranked.agents}
	switch {
	case ranked.follows:
		d.Method, d.Reason = MethodHistory, "nothing points clearly to another agent"
	case ranked.offTopic:
		d.Method, d.Reason = MethodDefault, "none of the agents is for this"
	case ranked.blind:
		d.Method, d.Reason = MethodDefault, "no words point to an agent"
	default:
		d.Reason = strings.Join(best.Reasons, "; ")
	}
	return d
}

// clear tells that words decide well enough and that nothing else about the
// message needs to be understood.
func (r *router) clear(ranked ranking, guess Analysis) bool {
	return !ranked.blind && !ranked.offTopic && ranked.best().Score >= r.formation.Overlord.Routing.Confidence &&
		guess.Complexity < r.formation.Overlord.Workflow.ComplexityThreshold && !guess.SchedulingRequest && !guess.SchedulerQuery &&
		!guess.ExplicitApproval
}

var errNoModel = errors.New("no model is configured for routing")

// ask has a model analyse the message and choose, in one call.
func (r *router) ask(ctx context.Context, in Input, t *team, ranked ranking, guess Analysis) (Decision, error) {
	if r.use.ID == "" {
		return Decision{}, errNoModel
	}
	ctx, cancel := context.WithTimeout(ctx, r.formation.Overlord.Routing.Timeout)
	defer cancel()
	zero := 0.0
	settings := agent.CallSettings(r.use.Settings)
	settings.Temperature = &zero
	p := r.promptFor(t, ranked, in.LastAgent)
	reply, err := llm.Collect(r.models.Stream(ctx, r.use.ID, llm.Request{
		Messages: []chat.Message{{Role: chat.System, Content: p.system}, {Role: chat.User, Content: r.question(in, t)}},
		Settings: settings, Schema: p.schema, SchemaName: "route", Purpose: "routing",
		Account: llm.Account{User: in.UserID, Request: in.RequestID},
	}), nil)
	if err != nil {
		return Decision{}, fmt.Errorf("ask the routing model: %w", err)
	}
	v, err := readVerdict(r.formation, reply.Text, guess)
	if err != nil {
		return Decision{}, err
	}
	return r.byModel(v, t, ranked), nil
}

// byModel turns the model's answer into a decision.
func (r *router) byModel(v verdict, t *team, ranked ranking) Decision {
	d := Decision{
		Agent: v.AgentID, Method: MethodModel, Reason: v.Reasoning, OffTopic: v.OffTopic && !v.SmallTalk, SmallTalk: v.SmallTalk,
		Analysis: &v.Analysis,
	}
	if d.OffTopic {
		d.Agent = t.scorer.fallback
	}
	reason := "chosen by the model"
	if v.Reasoning != "" {
		reason += ": " + v.Reasoning
	}
	ranked.agents = append([]Candidate(nil), ranked.agents...)
	ranked.promote(d.Agent)
	first := &ranked.agents[0]
	first.Score = max(first.Score, v.Confidence)
	first.Reasons = append([]string{reason}, first.Reasons...)
	d.candidates = ranked.agents
	return d
}
