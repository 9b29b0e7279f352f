package overlord

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/manifest"
)

// Analysis is what a message asks of the formation (reference runtime.md 16,
// step 6). A model writes it in the same call that chooses the agent; without
// one, heuristics do.
type Analysis struct {
	SecurityThreat       bool     `json:"is_security_threat,omitempty"`
	ThreatType           string   `json:"threat_type,omitempty"`
	Complexity           float64  `json:"complexity_score"` // 1-10
	ImplicitSubtasks     []string `json:"implicit_subtasks,omitempty"`
	RequiredCapabilities []string `json:"required_capabilities,omitempty"`
	AcceptanceCriteria   []string `json:"acceptance_criteria,omitempty"`
	Confidence           float64  `json:"confidence_score"` // 0-1
	SchedulingRequest    bool     `json:"is_scheduling_request,omitempty"`
	SchedulerQuery       bool     `json:"is_scheduler_query_request,omitempty"`
	ExplicitApproval     bool     `json:"is_explicit_approval_request,omitempty"`
	ExplicitSOP          string   `json:"explicit_sop_request,omitempty"` // the id of a procedure of the formation
	Topics               []string `json:"topics,omitempty"`               // 1-5 kebab-case tags
	Reasoning            string   `json:"reasoning,omitempty"`
}

// The kinds of threats.
const (
	ThreatInjection  = "prompt_injection"
	ThreatFishing    = "credential_fishing"
	ThreatExtraction = "information_extraction"
	ThreatJailbreak  = "jailbreak"
)

func threatTypes() []string {
	return []string{ThreatInjection, ThreatFishing, ThreatExtraction, ThreatJailbreak}
}

// Bounds of what a model's analysis may hold: it is cached and journalled.
const (
	maxListed     = 10
	maxListedText = 300
	maxTopics     = 5
	maxTopic      = 40
	maxReasoning  = 600
)

// verdict is the model's whole answer: the analysis and the choice.
type verdict struct {
	AgentID   string `json:"agent_id"`
	OffTopic  bool   `json:"off_topic"`
	SmallTalk bool   `json:"small_talk"`
	Reason    string `json:"reason"` // what some models write for reasoning
	Analysis
}

// readVerdict reads the model's answer; some models wrap JSON in a code fence.
// Fields that it leaves out are filled in from guess.
func readVerdict(f *manifest.Formation, text string, guess Analysis) (verdict, error) {
	begin, end := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
	if begin < 0 || end < begin {
		return verdict{}, fmt.Errorf("the routing model's answer holds no JSON object: %.100q", text)
	}
	var v verdict
	if err := json.Unmarshal([]byte(text[begin:end+1]), &v); err != nil {
		return verdict{}, fmt.Errorf("read the routing model's answer: %w", err)
	}
	if f.Agent(v.AgentID) == nil {
		return verdict{}, fmt.Errorf("the routing model named the unknown agent %q", v.AgentID)
	}
	if v.Reasoning == "" {
		v.Reasoning = v.Reason
	}
	v.tidy(f, guess)
	return v, nil
}

// tidy brings what a model wrote within its bounds.
func (v *verdict) tidy(f *manifest.Formation, guess Analysis) {
	a := &v.Analysis
	if !slices.Contains(threatTypes(), a.ThreatType) {
		// A threat of no kind is a model's unease about a word, not a finding.
		a.SecurityThreat, a.ThreatType = false, ""
	}
	if !a.SecurityThreat {
		a.ThreatType = ""
	}
	if a.Complexity == 0 {
		a.Complexity = guess.Complexity
	}
	a.Complexity = min(max(a.Complexity, 1), 10)
	a.Confidence = min(max(a.Confidence, 0), 1)
	if !slices.ContainsFunc(f.SOPs, func(s manifest.SOP) bool { return s.ID == a.ExplicitSOP }) {
		a.ExplicitSOP = ""
	}
	a.ImplicitSubtasks = bounded(a.ImplicitSubtasks)
	a.RequiredCapabilities = bounded(a.RequiredCapabilities)
	a.AcceptanceCriteria = bounded(a.AcceptanceCriteria)
	a.Topics = topics(a.Topics)
	if len(a.Topics) == 0 {
		a.Topics = guess.Topics
	}
	a.Reasoning = clip(a.Reasoning, maxReasoning)
}

func bounded(list []string) []string {
	var out []string
	for _, text := range list[:min(len(list), maxListed)] {
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, clip(text, maxListedText))
		}
	}
	return out
}

// topics makes kebab-case tags of what was given, at most five.
func topics(list []string) []string {
	var out []string
	for _, text := range list {
		tag := strings.Join(fold(text), "-")
		if tag == "" || len(tag) > maxTopic || slices.Contains(out, tag) {
			continue
		}
		if out = append(out, tag); len(out) == maxTopics {
			break
		}
	}
	return out
}

// clip cuts a text to at most n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// verdictSchema is the JSON Schema of a verdict for a choice among ids. Every
// field is required: some providers take no other objects.
func verdictSchema(ids, sops []string) json.RawMessage {
	text, flag := map[string]any{"type": "string"}, map[string]any{"type": "boolean"}
	list, number := map[string]any{"type": "array", "items": text}, map[string]any{"type": "number"}
	properties := map[string]any{
		"agent_id": enum(ids), "off_topic": flag, "small_talk": flag, "reasoning": text,
		"is_security_threat": flag, "threat_type": enum(append([]string{"none"}, threatTypes()...)),
		"complexity_score": number, "confidence_score": number,
		"implicit_subtasks": list, "required_capabilities": list, "acceptance_criteria": list, "topics": list,
		"is_scheduling_request": flag, "is_scheduler_query_request": flag, "is_explicit_approval_request": flag,
		"explicit_sop_request": enum(append([]string{"none"}, sops...)),
	}
	required := make([]string, 0, len(properties))
	for name := range properties {
		required = append(required, name)
	}
	slices.Sort(required)
	schema, err := json.Marshal(map[string]any{
		"type": "object", "additionalProperties": false, "required": required, "properties": properties,
	})
	if err != nil {
		panic(err) // texts always encode
	}
	return schema
}

func enum(values []string) map[string]any { return map[string]any{"type": "string", "enum": values} }
