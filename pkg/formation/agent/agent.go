// Package agent is the loop of one agent, in phases over one state: assemble
// the prompt, then a model step and, when the model asks for tools, a tool
// step, with the context trimmed before each, until the model answers or a
// limit closes the tools and it answers with what it has. It is given its
// context and tools and knows neither memory nor tool servers.
//
// Every finished step is journalled before the next begins. A resumed run
// reads the finished ones instead of repeating them; a tool call whose outcome
// is unknown runs again only when the tool is read-only or idempotent.
package agent

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/rate"
	"github.com/agentformation/service/pkg/manifest"
)

// Models makes model calls; *llm.Router satisfies it.
type Models interface {
	Stream(ctx context.Context, modelID string, req llm.Request) iter.Seq2[llm.Chunk, error]
}

// Tool is something an agent may call. It is safe for concurrent use. Errors
// of the tool itself come back as a result with IsError. An error return means
// that the call was cut: the model is told that its outcome is unknown, unless
// the error has a method Begun() bool that returns false.
type Tool interface {
	Spec() chat.ToolSpec
	Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error)
}

// Colleague is a Tool behind which other agents work. It journals its own
// steps below the one that Invocation.Step names, so a resumed run calls it
// again; it has no time limit but its agents' own, and ends with its context.
type Colleague interface {
	Tool
	// Alone tells that a call must be the only one of its step, because its
	// answer may become the answer of the run.
	Alone() bool
	// Work makes the call. said are the parts of the answer that were shown
	// before; a colleague that answers in the agent's place begins with them.
	Work(ctx context.Context, in chat.Invocation, said []string) (Work, error)
}

// Work is what came of a Colleague's call.
type Work struct {
	Result chat.ToolResult
	Usage  chat.Usage
	Agents []string // that took part
	// Answer, when it is not nil, is the answer of the run.
	Answer *chat.Answer
	// Last, when it is not nil, is what the answer of the run ends with, because
	// the user is needed.
	Last *chat.Answer
	// Shown tells that text was shown that does not count, since Answer is nil.
	Shown bool
}

// Step is a finished step of a turn.
type Step struct {
	Name    string
	Payload []byte
}

// Journal keeps finished steps of a turn.
type Journal interface {
	// Done returns what was saved for the step in an earlier life of the turn.
	Done(step string) (payload []byte, ok bool)
	// Save is durable when it returns.
	Save(ctx context.Context, step string, payload []byte) error
	// SaveAll saves several steps in one commit.
	SaveAll(ctx context.Context, steps []Step) error
}

// Config is what an Agent is made of.
type Config struct {
	Agent     *manifest.Agent
	Formation *manifest.Formation
	Models    Models
	Speech    Listener // nil: no recording is turned into text
	Files     Measurer // nil: files are shown as they come
	// Tools gives what the agent may call in a run, asked at its beginning; who
	// says for whom. nil: no tools.
	Tools func(ctx context.Context, who chat.Invocation) ([]Tool, error)
	// Limits end a run that does not end by itself; what is 0 is taken from
	// LimitsOf(Formation).
	Limits Limits
	// Asked tells when the agent answered since a time, oldest first, so that
	// limits per hour and day outlive the process; nil: they do not.
	Asked func(ctx context.Context, agentID string, since time.Time) ([]time.Time, error)
	Now   func() time.Time
	Log   zerolog.Logger
}

// Agent answers tasks. It is safe for concurrent use.
type Agent struct {
	cfg      Config
	text     voice // answers in one piece
	streamed voice // answers that are read while they are made
	limits   Limits
	system   string        // the part of the system prompt that never changes
	rate     *rate.Limiter // of all users together; nil: no limit
	schemas  schemas
	activity *activity // nil: nothing is pruned by it
}

// voice is a model that an agent answers with.
type voice struct {
	use      manifest.ModelUse
	settings llm.Settings
	window   *atomic.Int64 // tokens that the model was found to take; 0: not known
}

func newVoice(use manifest.ModelUse) voice {
	return voice{use: use, settings: CallSettings(use.Settings), window: &atomic.Int64{}}
}

// New prepares an agent; it connects to nothing.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, text: newVoice(cfg.Agent.Use(cfg.Formation)), limits: cfg.Limits.over(LimitsOf(cfg.Formation))}
	a.streamed = a.text
	if use, ok := cfg.Agent.UseStreamed(cfg.Formation); ok {
		a.streamed = newVoice(use)
	}
	a.system = systemPrompt(cfg.Agent, cfg.Formation.Soul, cfg.Formation.Overlord.Response.Format)
	a.rate = rate.New(rate.Limits(cfg.Agent.RateLimit))
	if p := cfg.Formation.Memory.Pruning; p != nil && p.Mode == pruneByCache {
		a.activity = newActivity()
	}
	return a
}

// CallSettings turns the settings of a file into those of a call. A default
// that no file wrote is left to the model: some refuse a temperature.
func CallSettings(s manifest.Settings) llm.Settings {
	out := llm.Settings{Timeout: s.Timeout, MaxRetries: s.MaxRetries, Fallback: s.FallbackModel}
	if s.TemperatureGiven {
		out.Temperature = &s.Temperature
	}
	if s.MaxTokensGiven {
		out.MaxTokens = &s.MaxTokens
	}
	return out
}

// Task is one message to answer.
type Task struct {
	Message string
	Files   []chat.File
	History []chat.Message
	// Context is what is known beside the conversation, each section with its
	// own heading; it goes into the system prompt.
	Context []string
	// Tools are offered beside those of Config.Tools.
	Tools []Tool
	// Said is what was shown of the turn's answer before this run; the answer
	// begins with it.
	Said    []string
	Deltas  bool    // somebody reads the text while it is made
	Journal Journal // never nil
	// User and Request are whom the model calls are booked on; tools are called
	// for all three.
	User    string
	Session string
	Request string
}

// Run answers a task. Text goes to sink as it is made when the task asks for
// it; the Answer carries all of it either way. The end of ctx ends it promptly,
// also while a tool does not listen. Faults: RATE_LIMITED, UNKNOWN_OUTCOME.
func (a *Agent) Run(ctx context.Context, task Task, sink chat.Sink) (chat.Answer, error) {
	turn := ctx
	if limit := a.timeout(); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fault.Errorf(fault.Failed, "",
			"agent %s took longer than its timeout of %s", a.cfg.Agent.ID, limit))
		defer cancel()
	}
	r := &run{agent: a, voice: a.text, task: task, sink: Serial(sink), texts: task.Said}
	if task.Deltas {
		r.voice = a.streamed
	}
	r.tell(ctx, "agent.started", nil)
	answer, err := r.loop(ctx)
	if err != nil {
		if err = ended(ctx, err); turn.Err() == nil {
			err = a.wording(err)
		}
		r.tell(ctx, "agent.failed", err)
		return chat.Answer{}, err
	}
	r.tell(ctx, "agent.completed", nil)
	return answer, nil
}

// ended prefers the reason why the context ended to what a call made of it.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (a *Agent) timeout() time.Duration {
	t := a.cfg.Agent.Timeout
	if t.Default > 0 && (t.Max == 0 || t.Default < t.Max) {
		return t.Default
	}
	return t.Max
}
