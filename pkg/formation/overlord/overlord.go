// Package overlord decides who answers a message and has it answered: the
// agent that the caller named, or the one that a routing decision chooses. It
// is given the conversation; it never reads memory itself.
package overlord

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// Config is what an Overlord is made of.
type Config struct {
	Formation *manifest.Formation
	Models    agent.Models
	Speech    agent.Listener // nil: no recording is turned into text
	Files     agent.Measurer // nil: every agent is shown files as they come
	// Tools gives what an agent may call beside what comes from here; who says
	// which agent, and for whom. nil: nothing.
	Tools func(ctx context.Context, who chat.Invocation) ([]agent.Tool, error)
	// Choose takes replies to questions of kind chat.QuestionCredential; nil: such
	// questions are not understood.
	Choose Choose
	// AgentTools gives the tools of an agent without a user, for routing: at once,
	// from what is known. It is asked again every minute. nil: routing knows of none.
	AgentTools func(agentID string) []chat.ToolSpec
	// Asked tells when an agent answered since a time, for its rate limits; nil:
	// they count from the start of the process.
	Asked func(ctx context.Context, agentID string, since time.Time) ([]time.Time, error)
	Now   func() time.Time
	Log   zerolog.Logger
}

// Overlord handles messages. It is safe for concurrent use.
type Overlord struct {
	cfg    Config
	agents map[string]*agent.Agent
	router *router
	askers map[string]asker // by the kind of their questions
	// delegates are the tools to ask other agents, by the agent that has them.
	delegates map[string]*delegates
}

// New prepares the overlord and its agents; it connects to nothing.
func New(cfg Config) *Overlord {
	o := &Overlord{cfg: cfg, agents: make(map[string]*agent.Agent, len(cfg.Formation.Agents)), router: newRouter(cfg), askers: map[string]asker{}}
	o.delegates = newDelegates(cfg.Formation.Agents)
	o.askers[kindDelegation] = o.delegated
	for i := range cfg.Formation.Agents {
		a := &cfg.Formation.Agents[i]
		o.agents[a.ID] = agent.New(agent.Config{
			Agent: a, Formation: cfg.Formation, Models: cfg.Models, Speech: cfg.Speech, Files: cfg.Files, Tools: cfg.Tools,
			Asked: cfg.Asked, Now: cfg.Now, Log: cfg.Log,
		})
	}
	if cfg.Choose != nil {
		o.askers[chat.QuestionCredential] = o.chosenAccount
	}
	return o
}

// Knows tells whether an agent with that id can be named in a request.
func (o *Overlord) Knows(agentID string) bool {
	_, ok := o.agents[agentID]
	return ok
}

// Input is one message with its conversation.
type Input struct {
	Message   string
	Files     []chat.File
	AgentID   string // "" for routing
	LastAgent string // who answered last in this session, "" for none
	History   []chat.Message
	Deltas    bool
	Journal   agent.Journal
	// UserID and RequestID are whom the model calls are booked on.
	UserID    string
	RequestID string
	SessionID string
	// Pending is the question that the session's last turn ended with; nil when
	// there was none.
	Pending *chat.Question
	// Click is a choice made in a widget, nil for none. It may be one of long ago.
	Click *chat.UIReply
	// Waiting reads the files of the request that Pending interrupted; it is set
	// with Pending.
	Waiting func(context.Context) ([]chat.File, error)

	settles chat.Settlement // what becomes of Pending
	chosen  string          // the label of the option that was clicked
}

// Handle answers a message, step by step (reference runtime.md 16). Progress
// and text go to sink as they come.
func (o *Overlord) Handle(ctx context.Context, in Input, sink chat.Sink) (chat.Answer, error) {
	spoken, err := o.hear(ctx, &in, sink)
	if err != nil {
		return chat.Answer{}, err
	}
	shown := in.Deltas
	in.Deltas = shown && !o.synthesizes()
	answer, done, err := o.resume(ctx, &in, sink)
	if err == nil && !done {
		answer, err = o.dispatch(ctx, in, sink)
	}
	if err != nil {
		return chat.Answer{}, err
	}
	if answer.Heard == "" { // a draft has it
		answer.Heard, answer.Usage = spoken.Text, answer.Usage.Add(spoken.Usage)
	}
	in.Deltas = shown
	return o.respond(ctx, in, answer, sink)
}

// dispatch finds out what a message is and who answers it, and has them.
func (o *Overlord) dispatch(ctx context.Context, in Input, sink chat.Sink) (chat.Answer, error) {
	if err := sink(chat.Event{Type: chat.Planning, Content: "Choosing how to handle the request"}); err != nil {
		return chat.Answer{}, err
	}
	decision, err := o.decide(ctx, in)
	switch {
	case err != nil:
		return chat.Answer{}, err
	case decision.Threat() != "":
		return o.refuse(ctx, in, decision, sink)
	case decision.SmallTalk && len(in.Files) == 0:
		return o.converse(ctx, in, decision, sink)
	}
	return o.runAgent(ctx, in, decision, sink)
}

// runAgent has the chosen agent answer.
func (o *Overlord) runAgent(ctx context.Context, in Input, d Decision, sink chat.Sink) (chat.Answer, error) {
	a := o.cfg.Formation.Agent(d.Agent)
	if a == nil { // the agent of a journalled decision may be gone with an update
		return chat.Answer{}, unknownAgent(d.Agent)
	}
	t := o.newTable(in, sink)
	return t.first(a).run(ctx, agent.Task{Message: in.Message, Files: in.Files, History: in.History}, t.sink)
}

func unknownAgent(id string) error {
	return fault.Errorf(fault.NotFound, "AGENT_NOT_FOUND", "no agent with id %q in this formation", id)
}
