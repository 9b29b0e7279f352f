package provider

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

const (
	// defaultAnswer is the limit of an answer when the request has none: the
	// protocol demands one.
	defaultAnswer = 4096
	// answerTool is the tool that a model must call to answer in JSON, and
	// whose arguments are the answer.
	answerTool = "answer"
	// minCached is the size in bytes from which a prompt's head is marked for
	// the provider's cache; shorter ones are never kept there.
	minCached = 4 << 10
)

// params makes the body of a call. hinted tells that JSON is asked for in words.
func (a *anthropic) params(req llm.Request, q messageQuirks) (p sdk.MessageNewParams, hinted bool, err error) {
	p = sdk.MessageNewParams{Model: req.Model, MaxTokens: defaultAnswer}
	if s := req.Settings; s.MaxTokens != nil {
		p.MaxTokens = int64(*s.MaxTokens)
	}
	if s := req.Settings; s.Temperature != nil && !q.noTemperature {
		p.Temperature = param.NewOpt(math.Min(*s.Temperature, 1)) // others go up to 2
	}
	for _, t := range req.Tools {
		tool := sdk.ToolParam{Name: t.Name, InputSchema: inputSchema(t.Schema)}
		if t.Description != "" {
			tool.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, sdk.ToolUnionParam{OfTool: &tool})
	}
	if req.NoCalls && len(p.Tools) > 0 {
		p.ToolChoice.OfNone = &sdk.ToolChoiceNoneParam{}
	}
	hint := setFormat(&p, req, q)
	for _, m := range withHint(req, hint) {
		if err := a.addMessage(&p, &m); err != nil {
			return p, false, err
		}
	}
	markCached(&p, req)
	return p, hint != "", nil
}

// setFormat asks for JSON: by a schema that the provider enforces, else by a
// tool that must be called, else (there are other tools, or no shape to give the
// tool) in the words it returns.
func setFormat(p *sdk.MessageNewParams, req llm.Request, q messageQuirks) (hint string) {
	if !wantsJSON(req) {
		return ""
	}
	schema := titled(req)
	switch {
	case schema == nil, len(req.Tools) > 0 && (q.noSchema || !closed(req.Schema)):
		return jsonHint(req)
	case closed(req.Schema) && !q.noSchema:
		p.OutputConfig.Format.Schema = schema
		return ""
	}
	tool := sdk.ToolParam{Name: answerTool, Description: param.NewOpt("Gives the answer."), InputSchema: objectSchema(schema)}
	p.Tools = []sdk.ToolUnionParam{{OfTool: &tool}}
	p.ToolChoice.OfTool = &sdk.ToolChoiceToolParam{Name: answerTool, DisableParallelToolUse: param.NewOpt(true)}
	return ""
}

// inputSchema passes a JSON Schema through.
func inputSchema(schema json.RawMessage) sdk.ToolInputSchemaParam {
	var members map[string]any
	if json.Unmarshal(schema, &members) != nil || members == nil {
		members = map[string]any{}
	}
	return objectSchema(members)
}

// objectSchema makes the schema one of an object, as the protocol wants it. Its
// bytes are the same each time, or the provider's cache would not know them: the
// SDK's own type would shuffle the members.
func objectSchema(members map[string]any) sdk.ToolInputSchemaParam {
	members["type"] = "object"
	if _, ok := members["properties"]; !ok {
		members["properties"] = map[string]any{}
	}
	raw, err := json.Marshal(members) // sorted
	if err != nil {
		return sdk.ToolInputSchemaParam{Properties: map[string]any{}}
	}
	return param.Override[sdk.ToolInputSchemaParam](json.RawMessage(raw))
}

// addMessage adds a message in the protocol's order: the system's words apart,
// and all that one side says in a row as one message.
func (a *anthropic) addMessage(p *sdk.MessageNewParams, m *chat.Message) error {
	role := sdk.MessageParamRoleUser
	var blocks []sdk.ContentBlockParamUnion
	switch m.Role {
	case chat.System:
		if m.Content != "" {
			p.System = append(p.System, sdk.TextBlockParam{Text: m.Content})
		}
		return nil
	case chat.Tool:
		result := sdk.ToolResultBlockParam{ToolUseID: plainID(m.CallID)}
		if m.Content != "" {
			result.Content = []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: m.Content}}}
		}
		blocks = append(blocks, sdk.ContentBlockParamUnion{OfToolResult: &result})
	case chat.Assistant:
		role = sdk.MessageParamRoleAssistant
		if text := strings.TrimRight(m.Content, " \n\t"); text != "" { // the protocol refuses an end of white space
			blocks = append(blocks, sdk.NewTextBlock(text))
		}
		for _, c := range m.Calls {
			blocks = append(blocks, sdk.NewToolUseBlock(plainID(c.ID), object(c.Args), c.Name))
		}
	default:
		for _, part := range m.Parts {
			block, ok := mediaBlock(part)
			if !ok {
				return untaken(a.name, part)
			}
			blocks = append(blocks, block)
		}
		if m.Content != "" {
			blocks = append(blocks, sdk.NewTextBlock(m.Content))
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	if n := len(p.Messages); n > 0 && p.Messages[n-1].Role == role {
		p.Messages[n-1].Content = append(p.Messages[n-1].Content, blocks...)
		return nil
	}
	p.Messages = append(p.Messages, sdk.MessageParam{Role: role, Content: blocks})
	return nil
}

// mediaBlock encodes a part; false when the protocol has no place for it.
func mediaBlock(p chat.Part) (sdk.ContentBlockParamUnion, bool) {
	switch {
	case p.Kind == chat.Image && containsAny(p.MediaType, []string{"image/jpeg", "image/png", "image/gif", "image/webp"}):
		return sdk.NewImageBlockBase64(p.MediaType, base64.StdEncoding.EncodeToString(p.Data)), true
	case p.Kind == chat.Document && p.MediaType == "application/pdf":
		return documentBlock(p.Name, sdk.DocumentBlockParamSourceUnion{OfBase64: &sdk.Base64PDFSourceParam{Data: base64.StdEncoding.EncodeToString(p.Data)}}), true
	case p.Kind == chat.Document && strings.HasPrefix(p.MediaType, "text/"):
		return documentBlock(p.Name, sdk.DocumentBlockParamSourceUnion{OfText: &sdk.PlainTextSourceParam{Data: strings.ToValidUTF8(string(p.Data), "\ufffd")}}), true
	}
	return sdk.ContentBlockParamUnion{}, false
}

func documentBlock(name string, source sdk.DocumentBlockParamSourceUnion) sdk.ContentBlockParamUnion {
	block := &sdk.DocumentBlockParam{Source: source}
	if name != "" {
		block.Title = param.NewOpt(name)
	}
	return sdk.ContentBlockParamUnion{OfDocument: block}
}

// plainID makes an id of the characters that the protocol allows; ids of other
// providers have more. A call and its result stay alike.
func plainID(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}

// markCached marks what the provider may keep: the tools and the system's words,
// which every call of an agent begins with, and a conversation that will go on.
// A mark costs a quarter more once and saves nine tenths at each later call.
func markCached(p *sdk.MessageNewParams, req llm.Request) {
	mark := sdk.NewCacheControlEphemeralParam()
	size := 0
	for _, t := range req.Tools {
		size += len(t.Description) + len(t.Schema)
	}
	for _, b := range p.System {
		size += len(b.Text)
	}
	if size >= minCached {
		if n := len(p.System); n > 0 {
			p.System[n-1].CacheControl = mark
		} else if n := len(p.Tools); n > 0 {
			p.Tools[n-1].OfTool.CacheControl = mark
		}
	}
	if goesOn := len(req.Tools) > 0 || len(p.Messages) > 1; !goesOn || len(p.Messages) == 0 {
		return
	}
	for i := range p.Messages {
		for _, b := range p.Messages[i].Content {
			size += blockSize(b)
		}
	}
	if last := p.Messages[len(p.Messages)-1].Content; size >= minCached && len(last) > 0 {
		if at := last[len(last)-1].GetCacheControl(); at != nil {
			*at = mark
		}
	}
}

// blockSize is about how many bytes a block adds to the prompt.
func blockSize(b sdk.ContentBlockParamUnion) int {
	switch {
	case b.OfText != nil:
		return len(b.OfText.Text)
	case b.OfToolResult != nil && len(b.OfToolResult.Content) > 0:
		return len(b.OfToolResult.Content[0].OfText.Text)
	case b.OfImage != nil, b.OfDocument != nil:
		return minCached
	}
	return 0
}
