package overlord

import (
	"context"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Choose takes the user's choice of one of several accounts, the value of an
// option of the question, and remembers it for the session. ok is false when the
// account is gone.
type Choose func(ctx context.Context, user, session string, q *chat.Question, value string) (ok bool, err error)

const textAccountGone = "That account is no longer there. Please ask again."

// chosenAccount goes on with the request that had to know which account is
// meant: the agent that asked, or the one that routing chooses, answers it anew.
func (o *Overlord) chosenAccount(ctx context.Context, in Input, r replied, sink chat.Sink) (chat.Answer, error) {
	if r.Option == nil {
		return chat.Answer{Question: &r.Question}, nil
	}
	ok, err := o.cfg.Choose(ctx, in.UserID, in.SessionID, &r.Question, r.Option.Value)
	if err != nil {
		return chat.Answer{}, err
	}
	if !ok {
		return chat.Answer{Content: textAccountGone}, nil
	}
	in.History, in.Message = withoutQuestion(in.History, r.Question), r.Question.Message
	if in.AgentID == "" && o.Knows(in.LastAgent) {
		in.AgentID = in.LastAgent
	}
	return o.dispatch(ctx, in, sink)
}
