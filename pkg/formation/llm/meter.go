package llm

import (
	"context"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Meter allows calls and counts what they cost. It is asked before each
// attempt that goes on the wire, retries and fallbacks too.
type Meter interface {
	// Reserve sets aside what c may cost. Its error ends the call as it is,
	// without retry or fallback: a fault named BUDGET_EXCEEDED.
	Reserve(ctx context.Context, c Call) (Reservation, error)
}

// Reservation is what one attempt may cost. Exactly one of its methods is
// called, once, with a context that outlives the call.
type Reservation interface {
	// Settle books what the attempt used. When the provider did not say,
	// because the attempt broke or it never does, u is the Router's estimate.
	Settle(ctx context.Context, u chat.Usage)
	// Release gives everything back: the attempt cost nothing.
	Release(ctx context.Context)
}

// Call is an attempt to be reserved for.
type Call struct {
	// ModelID is "provider/model", aliases resolved.
	ModelID string
	Account Account
	// Prompt is the estimate of the tokens sent, MaxCompletion the most that
	// may come back.
	Prompt        int
	MaxCompletion int
	Embedding     bool
}

// defaultCompletion is reserved for a call without a limit of its own.
const defaultCompletion = 4096

// booking is the reservation of one attempt with what is known of its cost.
type booking struct {
	res    Reservation
	prompt int
	// begun tells that the model was at work, bytes how much text came.
	begun bool
	bytes int
	// left tells that nobody waited for the end of the attempt.
	left  bool
	usage *chat.Usage // set when the attempt succeeded

	asked *asked // who tells of the call
	model string
}

// reserve asks the meter; without one there is nothing to book.
func (r *Router) reserve(ctx context.Context, c Call) (*booking, error) {
	b := &booking{prompt: c.Prompt, asked: askedIn(ctx), model: c.ModelID}
	if r.cfg.Meter != nil {
		var err error
		if b.res, err = r.cfg.Meter.Reserve(ctx, c); err != nil {
			return b, err
		}
	}
	b.asked.attempt(c.ModelID)
	return b, nil
}

// heard notes a piece of the answer.
func (b *booking) heard(text string) {
	b.begun = true
	b.bytes += len(text)
}

func (b *booking) done(u chat.Usage) { b.usage = &u }

// leave notes that the attempt was ended from here: by who asked, or because it
// was silent for too long.
func (b *booking) leave(attempt context.Context) { b.left = attempt.Err() != nil }

// close books the attempt. One that the provider broke before the model began
// costs nothing; what came of a broken answer is billed all the same, and so is
// the prompt of a call that was left, which has most likely been read.
func (b *booking) close(ctx context.Context) {
	if b.res == nil && b.asked == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	var used chat.Usage
	switch {
	case b.usage != nil && *b.usage != (chat.Usage{}):
		used = *b.usage
	case b.usage != nil || b.begun || b.left:
		completion := (b.bytes + bytesPerToken - 1) / bytesPerToken
		used = chat.Usage{PromptTokens: b.prompt, CompletionTokens: completion, TotalTokens: b.prompt + completion}
	default:
		if b.res != nil {
			b.res.Release(ctx)
		}
		return
	}
	b.asked.use(b.model, used)
	if b.res != nil {
		b.res.Settle(ctx, used)
	}
}

// mostTokens is more than any call can use.
const mostTokens = 1 << 40

// plausible returns what a provider says that a call used, without numbers that
// can't be: a negative one would give back what other calls have used.
func plausible(u chat.Usage) chat.Usage {
	for _, n := range []*int{&u.PromptTokens, &u.CompletionTokens, &u.TotalTokens, &u.CachedTokens} {
		*n = min(max(*n, 0), mostTokens)
	}
	u.CachedTokens = min(u.CachedTokens, u.PromptTokens)
	return u
}

// Estimates of tokens, before a call and where the provider does not count.
// They lean to the high side: a reservation that is too small breaks a budget.
const (
	bytesPerToken    = 3    // English has about four, most other languages fewer
	tokensPerEntry   = 8    // roles and brackets of a message or tool
	tokensPerImage   = 1600 // the most that providers charge for one of the usual size
	audioPerToken    = 250  // bytes of compressed audio
	videoPerToken    = 500  // bytes of compressed video
	documentPerToken = 10   // bytes of a document, compressed as most are
)

func textTokens(text string) int { return len(text)/bytesPerToken + 1 }

// promptTokens estimates what req sends.
func promptTokens(req *Request) int {
	n := len(req.Schema) / bytesPerToken
	for i := range req.Messages {
		m := &req.Messages[i]
		n += tokensPerEntry + textTokens(m.Content)
		for _, c := range m.Calls {
			n += tokensPerEntry + (len(c.Name)+len(c.Args))/bytesPerToken
		}
		for _, p := range m.Parts {
			n += partTokens(p)
		}
	}
	for _, t := range req.Tools {
		n += tokensPerEntry + (len(t.Name)+len(t.Description)+len(t.Schema))/bytesPerToken
	}
	return n
}

func partTokens(p chat.Part) int {
	switch p.Kind {
	case chat.Audio:
		return len(p.Data)/audioPerToken + 1
	case chat.Video:
		return len(p.Data)/videoPerToken + 1
	case chat.Document:
		return len(p.Data)/documentPerToken + 1
	default:
		return tokensPerImage
	}
}

// callOf describes an attempt with req for the meter.
func callOf(t target, req *Request) Call {
	limit := defaultCompletion
	if req.Settings.MaxTokens != nil {
		limit = *req.Settings.MaxTokens
	}
	return Call{ModelID: t.id, Account: req.Account, Prompt: promptTokens(req), MaxCompletion: limit}
}
