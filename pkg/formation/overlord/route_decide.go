package overlord

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// stepRoute is the journal entry of the decision: a resumed turn goes to the
// same agent.
const stepRoute = "route"

// decide analyses a message and chooses who answers it, and leaves in the trace
// who was considered and why.
func (o *Overlord) decide(ctx context.Context, in Input) (Decision, error) {
	if in.AgentID != "" && !o.Knows(in.AgentID) {
		return Decision{}, unknownAgent(in.AgentID)
	}
	if d, ok, err := journalledDecision(in); ok || err != nil {
		trace(telemetry.Replayed(ctx, telemetry.KindRouting, "route"), d, err)
		return d, err
	}
	ctx, span := telemetry.Start(ctx, telemetry.KindRouting, "route")
	in.Message = chat.WithNote(in.Message, chat.NameFiles(in.Files))
	d, free := o.given(in)
	if !free {
		d = o.router.route(ctx, in)
	}
	err := context.Cause(ctx)
	trace(span, d, err)
	if err != nil || free {
		return d, err
	}
	payload, err := json.Marshal(d)
	if err != nil {
		return Decision{}, fmt.Errorf("encode routing decision: %w", err)
	}
	if err := in.Journal.Save(ctx, stepRoute, payload); err != nil {
		return Decision{}, fmt.Errorf("journal routing decision: %w", err)
	}
	return d, nil
}

func journalledDecision(in Input) (d Decision, ok bool, err error) {
	payload, ok := in.Journal.Done(stepRoute)
	if !ok {
		return Decision{}, false, nil
	}
	if err := json.Unmarshal(payload, &d); err != nil {
		return Decision{}, false, fmt.Errorf("decode journalled routing decision: %w", err)
	}
	return d, true, nil
}

// given is the decision when there is nothing to choose: the caller named the
// agent, or there is only one. No model is asked about such a message: nobody
// waits for a choice, and the agent's own model sees the message anyway. What
// is certainly an attack is still recognised by its words, of which there are
// only such that honest messages don't have.
func (o *Overlord) given(in Input) (Decision, bool) {
	d := Decision{Agent: in.AgentID, Method: MethodExplicit, Reason: "named by the caller"}
	if in.AgentID == "" {
		if len(o.cfg.Formation.Agents) > 1 {
			return Decision{}, false
		}
		d = Decision{Agent: o.cfg.Formation.Agents[0].ID, Method: MethodSingle, Reason: "the only agent"}
	}
	if kind := findThreat(in.Message); kind != "" {
		d.Analysis = &Analysis{SecurityThreat: true, ThreatType: kind, Confidence: heuristicConfidence}
	}
	d.candidates = []Candidate{{ID: d.Agent, Score: 1, Reasons: []string{d.Reason}}}
	return d, true
}

// maxTraced is how many agents a trace names.
const maxTraced = 10

// trace records a decision; without a trace it costs nothing.
func trace(span *telemetry.Span, d Decision, err error) {
	if span == nil {
		return
	}
	defer span.End(err)
	if err != nil {
		return
	}
	span.Set("method", d.Method)
	span.Set("chosen", d.Agent)
	if len(d.candidates) > 0 {
		span.Set("agents", d.candidates[:min(len(d.candidates), maxTraced)])
	}
	if d.Reason != "" {
		span.Set("reason", d.Reason)
	}
	if d.Dropped != "" {
		span.Set("dropped", d.Dropped)
	}
	span.Set("off_topic", d.OffTopic)
	if d.SmallTalk {
		span.Set("small_talk", true)
	}
	if d.Analysis != nil {
		span.Set("complexity_score", d.Analysis.Complexity)
		if kind := d.Threat(); kind != "" {
			span.Set("threat_type", kind)
		}
	}
}
