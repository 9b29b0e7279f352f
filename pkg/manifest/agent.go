package manifest

import "time"

// Agent is a checked agent file or inline agent with all defaults filled in.
type Agent struct {
	Schema        string
	ID            string // unique in the formation
	Name          string // the id when the file has none
	Description   string // what the overlord routes by
	SystemMessage string
	Role          string // specialist, generalist, coordinator, researcher, executor or ""

	Specialization Specialization
	SystemBehavior SystemBehavior
	LLM            AgentLLM
	// Buffer is the formation's buffer with the agent's own values over it.
	Buffer  Buffer
	Timeout AgentTimeout

	A2AEnabled       bool   // true: agents of other formations may be asked
	DirectDelegation bool   // true: this formation's agents may be asked directly
	Delegation       string // automatic
	Knowledge        Knowledge
	MCPServers       []MCPUse
	RateLimit        RateLimiting
	Skills           []string // an older list of names
	// Metadata is free: version, author, tags, icon and whatever else.
	Metadata map[string]any
	Active   bool // always true in Formation.Agents

	// Raw is the agent as written, see Formation.Raw.
	Raw map[string]any `json:"-"`
	// File and Line say where the agent was written.
	File string
	Line int
}

// The values of delegation_strategy.
const (
	DelegateAutomatic = "automatic"
	DelegateAskUser   = "ask_user"
	DelegateNever     = "never"
)

// Specialization is what an agent is good at; the overlord routes by it.
type Specialization struct {
	Domain         string
	Subdomain      string
	ExpertiseLevel string // junior, intermediate, senior, expert or ""
	Keywords       []string
}

// SystemBehavior shapes an agent's prompt.
type SystemBehavior struct {
	Constraints      []string
	Capabilities     []string
	InteractionStyle string // formal, casual, technical, friendly, professional or ""
	ResponseLength   string // concise, moderate, detailed, comprehensive or ""
	ErrorHandling    string // graceful, explicit, technical, user-friendly or ""
}

// AgentLLM are an agent's own models and settings.
type AgentLLM struct {
	Settings Overrides
	Models   []Model
}

// AgentTimeout bounds an agent's part of a turn; zero means no own bound.
type AgentTimeout struct {
	Default time.Duration
	Max     time.Duration
}

// Use returns the model this agent answers with and its settings: the
// formation's, overridden by the agent's.
func (a *Agent) Use(f *Formation) ModelUse { return f.LLM.Use(a.LLM.Models, a.LLM.Settings) }

// UseStreamed returns everything needed for an answer that is read while it is
// made; false when no model is declared for that, and Use is for all answers.
func (a *Agent) UseStreamed(f *Formation) (ModelUse, bool) {
	return f.LLM.UseStreamed(a.LLM.Models, a.LLM.Settings)
}

// Model returns the id of the model this agent answers with.
func (a *Agent) Model(f *Formation) string { return a.Use(f).ID }

// Settings returns the settings this agent's model runs with.
func (a *Agent) Settings(f *Formation) Settings { return a.Use(f).Settings }
