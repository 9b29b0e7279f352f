package mcpclient

import (
	"context"
	"encoding/json"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
)

// elicit answers what a server wants to know of the user. The question is shown
// as progress of its call; whoever can ask the user answers, else it is declined.
func (x *session) elicit(ctx context.Context, req *mcpsdk.ElicitRequest) (*mcpsdk.ElicitResult, error) {
	decline := &mcpsdk.ElicitResult{Action: "decline"}
	c := x.asked()
	if c == nil {
		return decline, nil
	}
	message := short(req.Params.Message)
	c.progress(chat.ToolProgress{Message: x.s.file.ID + " asks: " + message})
	if x.s.c.cfg.Elicit == nil || req.Params.URL != "" {
		return decline, nil
	}
	c.alive()
	schema, err := json.Marshal(req.Params.RequestedSchema)
	if err != nil {
		return decline, nil //nolint:nilerr // a question that makes no sense is declined
	}
	reply, err := x.s.c.cfg.Elicit(ctx, Elicitation{
		Server: x.s.file.ID, Tool: c.tool, Message: message, Schema: schema,
		User: c.in.User, Session: c.in.Session, Request: c.in.Request, Agent: c.in.Agent,
	})
	if err != nil || !reply.Accept {
		return decline, nil //nolint:nilerr // who can't be asked has not agreed
	}
	if reply.Content == nil {
		reply.Content = map[string]any{} // the SDK fills in the defaults of the schema
	}
	c.alive()
	return &mcpsdk.ElicitResult{Action: "accept", Content: reply.Content}, nil
}

// onLog writes what a server wants logged.
func (s *server) onLog(_ context.Context, req *mcpsdk.LoggingMessageRequest) {
	s.note(func(e *zerolog.Event) *zerolog.Event {
		text, ok := req.Params.Data.(string)
		if !ok {
			data, err := json.Marshal(req.Params.Data)
			if err != nil {
				return e
			}
			text = string(data)
		}
		return e.Str("level_there", string(req.Params.Level)).Str("said", short(text))
	}, "a tool server logs")
}

// complaint writes a line that a process wrote to its standard error. It is kept
// for whoever shares that process.
func (l *link) complaint(line []byte) {
	l.lastWords.add(line)
	l.s.note(func(e *zerolog.Event) *zerolog.Event { return e.Str("said", clip(line, maxWord)) }, "a tool server says")
}

// garbage writes a line of the standard output that is no message.
func (s *server) garbage(line []byte) {
	s.note(func(e *zerolog.Event) *zerolog.Event { return e.Str("said", clip(line, maxWord)) }, "a tool server writes what is no message")
}

// note writes a record of what a server said, unless it says too much.
func (s *server) note(with func(*zerolog.Event) *zerolog.Event, message string) {
	e := s.c.cfg.Log.Debug()
	if !e.Enabled() || !s.talk.Allow() {
		return
	}
	with(e.Str("server", s.key)).Msg(message)
}
