// Package agent runs one agent: a visible loop of a model step and, when the
// model asks for tools, a tool step, until the model answers or a limit ends
// it. It is given its context and tools and knows neither memory nor tool
// servers.
//
// Every finished step is journalled before the next begins. A resumed run
// reads the finished ones instead of repeating them; a tool call whose outcome
// is unknown runs again only when the tool is read-only or idempotent.
package agent

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// Models makes model calls; *llm.Router satisfies it.
type Models interface {
	Stream(ctx context.Context, modelID string, req llm.Request) iter.Seq2[llm.Chunk, error]
}

// Tool is something an agent may call. Errors of the tool itself come back as
// a result with IsError, so that the model sees them; an error return means
// that the outcome is unknown.
type Tool interface {
	Spec() chat.ToolSpec
	Call(ctx context.Context, in chat.Invocation) (chat.ToolResult, error)
}

// Journal keeps finished steps of a turn.
type Journal interface {
	// Done returns what Save stored for the step, in this life or an earlier one.
	Done(step string) (payload []byte, ok bool)
	// Save is durable when it returns.
	Save(ctx context.Context, step string, payload []byte) error
}

// Limits end a run that does not end by itself (reference runtime.md 7.3, mcp).
type Limits struct {
	ToolIterations    int // model steps that may ask for tools; 10
	ToolCalls         int // calls in one run; 50
	RepeatedErrors    int // the same error of the same tool in a row; 3
	ToolOutput        int // bytes of one result, the rest is cut; 1 MiB
	ParallelToolCalls int // calls of one step at once; 8
}

// DefaultLimits are the limits of a formation that sets none.
func DefaultLimits() Limits {
	return Limits{ToolIterations: 10, ToolCalls: 50, RepeatedErrors: 3, ToolOutput: 1 << 20, ParallelToolCalls: 8}
}

// Config is what an Agent is made of.
type Config struct {
	Agent     *manifest.Agent
	Formation *manifest.Formation
	Models    Models
	Speech    Listener // nil: no recording is turned into text
	// Tools gives what the agent may call in a run, asked at its beginning; who
	// says for whom. nil: no tools.
	Tools  func(ctx context.Context, who chat.Invocation) ([]Tool, error)
	Limits Limits
	Now    func() time.Time
	Log    zerolog.Logger
}

// Agent answers tasks. It is safe for concurrent use.
type Agent struct {
	cfg      Config
	use      manifest.ModelUse
	settings llm.Settings
	system   string // the part of the system prompt that never changes
}

// New prepares an agent; it connects to nothing.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, use: cfg.Agent.Use(cfg.Formation)}
	a.settings = CallSettings(a.use.Settings)
	a.system = systemPrompt(cfg.Agent, cfg.Formation.Soul, cfg.Formation.Overlord.Response.Format)
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
	Deltas  bool    // somebody reads the text while it is made
	Journal Journal // never nil
	// User and Request are whom the model calls are booked on.
	User    string
	Session string
	Request string
}

// Run answers a task. Text goes to sink as it is made when the task asks for
// it; the Answer carries all of it either way.
func (a *Agent) Run(ctx context.Context, task Task, sink chat.Sink) (chat.Answer, error) {
	if limit := a.timeout(); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fault.Errorf(fault.Failed, "",
			"agent %s took longer than its timeout of %s", a.cfg.Agent.ID, limit))
		defer cancel()
	}
	r := &run{agent: a, task: task, sink: sink, messages: a.messages(task)}
	if err := r.equip(ctx); err != nil {
		return chat.Answer{}, ended(ctx, err)
	}
	if err := r.attach(ctx); err != nil {
		return chat.Answer{}, ended(ctx, err)
	}
	for {
		reply, err := r.modelStep(ctx)
		if err != nil {
			return chat.Answer{}, ended(ctx, err)
		}
		if len(reply.Calls) == 0 {
			return r.answer(), nil
		}
		if err := r.toolStep(ctx, reply.Calls); err != nil {
			return chat.Answer{}, ended(ctx, err)
		}
	}
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

func (a *Agent) messages(task Task) []chat.Message {
	msgs := make([]chat.Message, 0, len(task.History)+2)
	system := a.system + "\n\nToday is " + a.cfg.Now().UTC().Format("Monday, 2 January 2006") + " (UTC)."
	msgs = append(msgs, chat.Message{Role: chat.System, Content: system})
	msgs = append(msgs, task.History...)
	return append(msgs, chat.Message{Role: chat.User, Content: task.Message})
}

// run is the state of one task.
type run struct {
	agent    *Agent
	task     Task
	sink     chat.Sink
	messages []chat.Message
	tools    map[string]Tool
	specs    []chat.ToolSpec
	texts    []string // of the model steps so far, the answer in parts
	usage    chat.Usage
	model    string
	step     int // model steps so far
	calls    int // tool calls so far
	lastErr  string
	sameErr  int
}

func (r *run) answer() chat.Answer {
	return chat.Answer{
		Content: strings.Join(r.texts, partBreak), AgentID: r.agent.cfg.Agent.ID, Model: r.model, Usage: r.usage,
	}
}
