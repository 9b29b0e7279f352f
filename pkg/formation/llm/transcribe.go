package llm

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// TranscribeRequest asks for the words of a recording.
type TranscribeRequest struct {
	// Model is the name behind the provider prefix; the Router sets it.
	Model string
	Audio chat.Part
	// Language is the code of the language that is spoken; "" finds it out.
	Language string
	// Timeout is the longest that one attempt may take, 0 means none; MaxRetries
	// are the attempts after the first.
	Timeout    time.Duration
	MaxRetries int
	Account    Account
}

// Transcript is the answer to a TranscribeRequest.
type Transcript struct {
	Text  string // "" when nothing was said
	Usage chat.Usage
	Model string // the model that answered, as the provider names it
}

// Transcriber turns recordings into text. The Model of a provider may implement
// it; implementations are safe for concurrent use.
type Transcriber interface {
	Transcribe(ctx context.Context, req TranscribeRequest) (Transcript, error)
}

// Transcribe returns the words of a recording by the model behind modelID
// ("provider/model" or an alias); req.Model is ignored.
func (r *Router) Transcribe(ctx context.Context, modelID string, req TranscribeRequest) (out Transcript, err error) {
	ctx, span := r.trace(ctx, modelID, telemetry.OperationTranscription, req.Account)
	defer func() { span.made(out.Model); span.end(err) }()
	t, err := r.split(modelID)
	if err != nil {
		return Transcript{}, err
	}
	if t.provider == localProvider {
		return Transcript{}, unable("model " + t.id + ": local models only embed")
	}
	model, err := r.model(t)
	if err != nil {
		return Transcript{}, unopened(t, err)
	}
	transcriber, ok := model.(Transcriber)
	if !ok {
		return Transcript{}, unable("model " + t.id + ": provider " + t.provider + " turns no recordings into text")
	}
	req.Model = t.model
	c := call{router: r}
	err = c.persist(ctx, t, req.MaxRetries, func() error {
		book, err := r.reserve(ctx, Call{
			ModelID: t.id, Account: req.Account, Prompt: partTokens(req.Audio), MaxCompletion: defaultCompletion,
		})
		if err != nil {
			return c.refuse(err)
		}
		defer book.close(ctx)
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if req.Timeout > 0 {
			attempt, cancel = context.WithTimeoutCause(ctx, req.Timeout, errSilent)
		}
		defer cancel()
		if out, err = transcriber.Transcribe(attempt, req); err != nil {
			book.leave(attempt)
			return c.verdict(attempt, err, req.Timeout)
		}
		out.Usage = plausible(out.Usage)
		book.heard(out.Text)
		book.done(out.Usage)
		return nil
	})
	return out, err
}
