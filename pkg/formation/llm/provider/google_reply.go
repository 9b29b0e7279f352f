package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"iter"

	"google.golang.org/genai"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// contentReply builds a completion from the responses of a stream, or from one.
type contentReply struct{ out answer }

func (r *contentReply) stream(responses iter.Seq2[*genai.GenerateContentResponse, error]) error {
	for res, err := range responses {
		if err != nil {
			return err
		}
		if err := r.add(res); err != nil {
			return err
		}
		if r.out.stopped {
			return nil
		}
	}
	return nil
}

func (r *contentReply) plain(res *genai.GenerateContentResponse, err error) error {
	if err != nil {
		return err
	}
	return r.add(res)
}

// add reads one response and yields its text.
func (r *contentReply) add(res *genai.GenerateContentResponse) error {
	if res.ModelVersion != "" {
		r.out.model = res.ModelVersion
	}
	if u := res.UsageMetadata; u != nil {
		r.out.usage = chat.Usage{
			PromptTokens:     int(u.PromptTokenCount + u.ToolUsePromptTokenCount),
			CompletionTokens: int(u.CandidatesTokenCount + u.ThoughtsTokenCount),
			CachedTokens:     int(u.CachedContentTokenCount),
		}
	}
	if f := res.PromptFeedback; f != nil && f.BlockReason != "" {
		r.out.begun, r.out.finish = true, "content_filter"
	}
	if len(res.Candidates) == 0 {
		return nil
	}
	r.out.begun = true
	c := res.Candidates[0]
	text := []byte(nil)
	if c.Content != nil {
		for _, part := range c.Content.Parts {
			switch {
			case part.FunctionCall != nil:
				r.call(part)
			case !part.Thought:
				text = append(text, part.Text...)
			}
		}
	}
	r.out.say(text)
	if err := r.finish(c); err != nil {
		return err
	}
	return r.out.check()
}

// call adds a tool call; this protocol has it in one piece.
func (r *contentReply) call(part *genai.Part) {
	call := r.out.call(len(r.out.calls))
	call.id, call.name, call.args = part.FunctionCall.ID, part.FunctionCall.Name, []byte("{}")
	call.seal = base64.StdEncoding.EncodeToString(part.ThoughtSignature)
	if len(part.FunctionCall.Args) == 0 {
		return
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(part.FunctionCall.Args) == nil { // it was JSON a moment ago
		call.args = bytes.TrimSpace(b.Bytes())
	}
}

func (r *contentReply) finish(c *genai.Candidate) error {
	switch c.FinishReason {
	case "", genai.FinishReasonUnspecified:
	case genai.FinishReasonMalformedFunctionCall, genai.FinishReasonUnexpectedToolCall, genai.FinishReasonTooManyToolCalls:
		return &llm.CallError{Reason: llm.Garbled, Detail: "the model wrote a tool call that can not be read (" + string(c.FinishReason) + ")"}
	case genai.FinishReasonMaxTokens:
		r.out.finish = "length"
	case genai.FinishReasonStop:
		r.out.finish = "stop"
	case genai.FinishReasonSafety, genai.FinishReasonRecitation, genai.FinishReasonBlocklist,
		genai.FinishReasonProhibitedContent, genai.FinishReasonSPII, genai.FinishReasonLanguage:
		r.out.finish = "content_filter"
	default:
		r.out.finish = "stop"
	}
	return nil
}
