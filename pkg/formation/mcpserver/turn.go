package mcpserver

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/telemetry"
)

// prepareTurn makes a turn's body fit for a call: its answer is complete, and its
// request has an id from the beginning, by which it can be followed and
// cancelled. An id that the caller did not choose is no part of the body: it
// would make each repetition of an idempotency key another request.
func (s *Server) prepareTurn(in *invocation) {
	in.body["stream"] = json.RawMessage("false")
	if raw := string(in.body["request_id"]); raw == "" || raw == `""` {
		in.turn = s.cfg.NewID("req_")
	}
}

type turnKey struct{}

// TurnID is the id for the request of a turn that a call of a tool begins, ""
// when the caller has chosen one or nothing of that kind is going on.
func TurnID(ctx context.Context) string {
	id, _ := ctx.Value(turnKey{}).(string)
	return id
}

func quoted(text string) json.RawMessage {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // a text always encodes
	}
	return data
}

// requestID is the id of a turn's request; "" when the caller chose something
// that is none.
func (in *invocation) requestID() string {
	if in.turn != "" {
		return in.turn
	}
	return in.field("request_id")
}

// field is a field of the body that is a text, else "".
func (in *invocation) field(name string) string {
	var text string
	if json.Unmarshal(in.body[name], &text) != nil {
		return ""
	}
	return text
}

// user is whose turn it is, as the API finds it.
func (s *Server) user(in *invocation) string {
	if user := strings.TrimSpace(in.header.Get(s.cfg.UserHeader)); user != "" {
		return user
	}
	if user := in.field("user_id"); user != "" {
		return user
	}
	return "0"
}

// follow tells a caller that wants to know what its turn does, until stop is
// called. What happens while the caller reads too slowly is left out.
func (s *Server) follow(ctx context.Context, in *invocation, req *mcpsdk.CallToolRequest) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil || s.cfg.Hub == nil {
		return func() {}
	}
	id, user := in.requestID(), s.user(in)
	sub := s.cfg.Hub.Subscribe(0, func(e *telemetry.Event) bool { return e.RequestID == id && e.UserID == user })
	f := &follower{sub: sub, session: req.Session, token: token, pace: s.cfg.Pace, stop: make(chan struct{}), ended: make(chan struct{})}
	go f.run(ctx)
	return func() {
		close(f.stop)
		<-f.ended
	}
}

// follower passes events of a turn on as progress.
type follower struct {
	sub     *telemetry.Subscription
	session *mcpsdk.ServerSession
	token   any
	pace    time.Duration
	count   float64 // of what was told
	stop    chan struct{}
	ended   chan struct{}
}

func (f *follower) run(ctx context.Context) {
	defer close(f.ended)
	defer f.sub.Close()
	silence := time.NewTicker(f.pace)
	defer silence.Stop()
	for {
		select {
		case e := <-f.sub.Events():
			f.tell(ctx, e.Message)
			silence.Reset(f.pace)
		case <-silence.C:
			f.tell(ctx, "The turn goes on")
		case <-f.stop:
			for len(f.sub.Events()) > 0 {
				f.tell(ctx, (<-f.sub.Events()).Message)
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

// tell sends one notification. It fails when the client has left, which others
// find out.
func (f *follower) tell(ctx context.Context, message string) {
	f.count++
	_ = f.session.NotifyProgress(ctx, &mcpsdk.ProgressNotificationParams{ProgressToken: f.token, Progress: f.count, Message: message})
}

// cancelTime bounds the cancelling of a turn that nobody waits for any more.
const cancelTime = 5 * time.Second

// cancels tells whether a turn is cancelled when its caller takes the call back
// or leaves, in the words of the API for who reads a stream. Otherwise it goes
// on, and its result can be asked for.
func (s *Server) cancels(in *invocation) bool {
	if word := in.field("on_disconnect"); word != "" {
		return word == "cancel"
	}
	return s.cfg.CancelTurns
}

func (s *Server) cancelTurn(ctx context.Context, x *exchange, in *invocation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	header := in.header.Clone()
	header.Set(s.cfg.UserHeader, s.user(in)) // the body may have named it, and this request has none
	out := s.do(ctx, x, &invocation{method: http.MethodDelete, path: "/v1/requests/" + escaped(in.requestID()), header: header})
	if out.status != http.StatusOK {
		s.cfg.Log.Debug().Int("status", out.status).Str("request_id", in.requestID()).Msg("a turn that nobody waits for could not be cancelled")
	}
}
