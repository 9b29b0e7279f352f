package provider

import (
	"encoding/base64"
	"strings"

	"google.golang.org/genai"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// noSeal is what Google documents for calls that come from another model: those
// of the third generation refuse calls of their history without any signature.
const noSeal = "skip_thought_signature_validator"

// contents makes the body of a call. hinted tells that JSON is asked for in words.
func (g *google) contents(req llm.Request, noSchema bool) (contents []*genai.Content, config *genai.GenerateContentConfig, hinted bool, err error) {
	once := false
	config = &genai.GenerateContentConfig{AutomaticContinuation: &once} // each call is one that was reserved
	if s := req.Settings; s.Temperature != nil {
		t := float32(*s.Temperature)
		config.Temperature = &t
	}
	if s := req.Settings; s.MaxTokens != nil {
		config.MaxOutputTokens = int32(min(*s.MaxTokens, 1<<30))
	}
	var declared []*genai.FunctionDeclaration
	for _, t := range req.Tools {
		d := &genai.FunctionDeclaration{Name: t.Name, Description: t.Description}
		if len(t.Schema) > 0 {
			d.ParametersJsonSchema = t.Schema
		}
		declared = append(declared, d)
	}
	if len(declared) > 0 {
		config.Tools = []*genai.Tool{{FunctionDeclarations: declared}}
		if req.NoCalls {
			config.ToolConfig = &genai.ToolConfig{FunctionCallingConfig: &genai.FunctionCallingConfig{Mode: genai.FunctionCallingConfigModeNone}}
		}
	}
	b := contentBuilder{peer: &g.peer, config: config, fills: strings.HasPrefix(req.Model, "gemini-3"), names: map[string]string{}}
	hint := googleFormat(config, req, noSchema)
	for _, m := range withHint(req, hint) {
		if err := b.add(&m); err != nil {
			return nil, nil, false, err
		}
	}
	return b.contents, config, hint != "", nil
}

// googleFormat asks for JSON. With tools, or for a schema that the model does
// not take, it returns the words to do so instead.
func googleFormat(config *genai.GenerateContentConfig, req llm.Request, noSchema bool) (hint string) {
	switch {
	case !wantsJSON(req):
		return ""
	case len(req.Tools) > 0:
		return jsonHint(req)
	}
	config.ResponseMIMEType = "application/json"
	if len(req.Schema) > 0 {
		schema := titled(req)
		if schema == nil || noSchema {
			return jsonHint(req)
		}
		config.ResponseJsonSchema = schema
	}
	return ""
}

// contentBuilder turns a conversation into contents: the system's words apart,
// and all that one side says in a row in one.
type contentBuilder struct {
	peer     *peer
	config   *genai.GenerateContentConfig
	contents []*genai.Content
	names    map[string]string // of the tools, by the id of a call
	fills    bool              // the model wants a signature on each step's calls
}

func (b *contentBuilder) add(m *chat.Message) error {
	switch m.Role {
	case chat.System:
		if m.Content != "" {
			if b.config.SystemInstruction == nil {
				b.config.SystemInstruction = &genai.Content{}
			}
			b.config.SystemInstruction.Parts = append(b.config.SystemInstruction.Parts, &genai.Part{Text: m.Content})
		}
	case chat.Tool:
		name, ok := b.names[m.CallID]
		if !ok {
			name = m.CallID
		}
		b.push(genai.RoleUser, &genai.Part{FunctionResponse: &genai.FunctionResponse{
			ID: m.CallID, Name: name, Response: map[string]any{"output": m.Content},
		}})
	case chat.Assistant:
		if m.Content != "" {
			b.push(genai.RoleModel, &genai.Part{Text: m.Content})
		}
		for i, c := range m.Calls {
			b.names[c.ID] = c.Name
			part := &genai.Part{FunctionCall: &genai.FunctionCall{ID: c.ID, Name: c.Name, Args: object(c.Args)}}
			if seal, err := base64.StdEncoding.DecodeString(c.Seal); err == nil && len(seal) > 0 {
				part.ThoughtSignature = seal
			} else if i == 0 && b.fills {
				part.ThoughtSignature = []byte(noSeal)
			}
			b.push(genai.RoleModel, part)
		}
	default:
		if m.Content != "" {
			b.push(genai.RoleUser, &genai.Part{Text: m.Content})
		}
		for _, p := range m.Parts {
			if p.MediaType == "" {
				return untaken(b.peer.name, p)
			}
			b.push(genai.RoleUser, &genai.Part{InlineData: &genai.Blob{MIMEType: p.MediaType, Data: p.Data}})
		}
	}
	return nil
}

func (b *contentBuilder) push(role string, part *genai.Part) {
	if n := len(b.contents); n > 0 && b.contents[n-1].Role == role {
		b.contents[n-1].Parts = append(b.contents[n-1].Parts, part)
		return
	}
	b.contents = append(b.contents, &genai.Content{Role: role, Parts: []*genai.Part{part}})
}
