package fakellm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// anthropic is the Messages protocol, version 2023-06-01.
type anthropic struct{}

// anthropicQuery has the documented fields that a caller of ours may send;
// another one is refused, as the vendor does.
type anthropicQuery struct {
	Model       string             `json:"model"`
	MaxTokens   int                `json:"max_tokens"`
	Messages    []anthropicMessage `json:"messages"`
	System      []anthropicBlock   `json:"system"`
	Stream      bool               `json:"stream"`
	Temperature *float64           `json:"temperature"`
	Tools       []struct {
		Name         string          `json:"name"`
		Description  string          `json:"description"`
		InputSchema  json.RawMessage `json:"input_schema"`
		CacheControl *cacheControl   `json:"cache_control"`
	} `json:"tools"`
	ToolChoice *struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Parallel *bool  `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	OutputConfig *struct {
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

type cacheControl struct {
	Type string `json:"type"`
}

type anthropicMessage struct {
	Role    string           `json:"role"`
	Content []anthropicBlock `json:"content"`
}

type anthropicBlock struct {
	Type      string           `json:"type"`
	Text      string           `json:"text"`
	ID        string           `json:"id"`
	Name      string           `json:"name"`
	Input     json.RawMessage  `json:"input"`
	ToolUseID string           `json:"tool_use_id"`
	Content   []anthropicBlock `json:"content"`
	IsError   bool             `json:"is_error"`
	Title     string           `json:"title"`
	Source    *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
	} `json:"source"`
	CacheControl *cacheControl `json:"cache_control"`
}

func (anthropic) key(r *http.Request) string { return r.Header.Get("X-Api-Key") }

func (anthropic) read(x *exchange) (*query, error) {
	if x.call.Version != "2023-06-01" {
		return nil, fmt.Errorf("anthropic-version: header is required")
	}
	var in anthropicQuery
	dec := json.NewDecoder(bytes.NewReader(x.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, fmt.Errorf("the request body is not valid: %w", err)
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	q := &query{Model: in.Model, Stream: in.Stream, usage: true}
	for _, b := range in.System {
		q.Messages = append(q.Messages, message{Role: "system", Content: quote(b.Text)})
		q.json = q.json || strings.Contains(b.Text, "JSON object")
	}
	for i, m := range in.Messages {
		if err := q.anthropicMessage(m, in.Messages[:i]); err != nil {
			return nil, fmt.Errorf("messages.%d: %w", i, err)
		}
	}
	if in.OutputConfig != nil && in.OutputConfig.Format != nil {
		q.schema = in.OutputConfig.Format.Schema
		q.purpose = title(q.schema)
	}
	if in.ToolChoice != nil && in.ToolChoice.Type == "tool" {
		for _, t := range in.Tools {
			if t.Name == in.ToolChoice.Name {
				q.forced, q.schema, q.purpose = t.Name, t.InputSchema, title(t.InputSchema)
			}
		}
	}
	return q, nil
}

// check holds what the vendor documents as required.
func (in *anthropicQuery) check() error {
	caches := 0
	count := func(blocks []anthropicBlock) {
		for _, b := range blocks {
			if b.CacheControl != nil {
				caches++
			}
		}
	}
	count(in.System)
	for _, m := range in.Messages {
		count(m.Content)
	}
	for _, t := range in.Tools {
		if t.CacheControl != nil {
			caches++
		}
		var schema struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(t.InputSchema, &schema) != nil || schema.Type != "object" {
			return fmt.Errorf("tools.%s.input_schema.type: field required", t.Name)
		}
	}
	switch {
	case in.Model == "":
		return fmt.Errorf("model: field required")
	case in.MaxTokens < 1:
		return fmt.Errorf("max_tokens: field required")
	case len(in.Messages) == 0 || in.Messages[0].Role != "user":
		return fmt.Errorf("messages: first message must use the \"user\" role")
	case caches > 4:
		return fmt.Errorf("a maximum of 4 blocks with cache_control may be provided; found %d", caches)
	case in.Temperature != nil && (*in.Temperature < 0 || *in.Temperature > 1):
		return fmt.Errorf("temperature: range: 0..1")
	}
	return nil
}

// anthropicMessage adds a message, tool results as messages of their own.
func (q *query) anthropicMessage(m anthropicMessage, before []anthropicMessage) error {
	if m.Role != "user" && m.Role != "assistant" {
		return fmt.Errorf("role: unexpected %q", m.Role)
	}
	open := map[string]bool{}
	if m.Role == "user" && len(before) > 0 {
		for _, b := range before[len(before)-1].Content {
			if b.Type == "tool_use" {
				open[b.ID] = true
			}
		}
	}
	texts := []string{}
	for i, b := range m.Content {
		switch b.Type {
		case "text":
			if b.Text == "" {
				return fmt.Errorf("content.%d.text: text content blocks must be non-empty", i)
			}
			texts = append(texts, b.Text)
		case "tool_use":
			if !toolID(b.ID) || len(b.Input) == 0 || b.Input[0] != '{' || m.Role != "assistant" {
				return fmt.Errorf("content.%d: invalid tool_use", i)
			}
		case "tool_result":
			if !open[b.ToolUseID] || len(texts) > 0 {
				return fmt.Errorf("content.%d: unexpected tool_use_id found in tool_result blocks: %s", i, b.ToolUseID)
			}
			delete(open, b.ToolUseID)
			q.Messages = append(q.Messages, message{Role: "tool", Content: quote(text(b.Content))})
		case "image", "document":
			part, err := b.part()
			if err != nil {
				return fmt.Errorf("content.%d: %w", i, err)
			}
			q.parts = append(q.parts, part)
		default:
			return fmt.Errorf("content.%d: input tag %q does not match any of the expected tags", i, b.Type)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("tool_use ids were found without tool_result blocks immediately after")
	}
	for _, t := range texts {
		q.Messages = append(q.Messages, message{Role: m.Role, Content: quote(t)})
	}
	if len(texts) == 0 && len(q.Messages) == 0 {
		q.Messages = append(q.Messages, message{Role: m.Role, Content: quote("")})
	}
	return nil
}

func toolID(id string) bool { return regexp.MustCompile(`^[a-zA-Z0-9_-]+$`).MatchString(id) }

func text(blocks []anthropicBlock) string {
	var out strings.Builder
	for _, b := range blocks {
		out.WriteString(b.Text)
	}
	return out.String()
}

func (b anthropicBlock) part() (string, error) {
	switch {
	case b.Source == nil:
		return "", fmt.Errorf("source: field required")
	case b.Source.Type == "text" && b.Type == "document" && b.Source.MediaType == "text/plain":
		return describePart(b.Type, b.Source.MediaType, len(b.Source.Data)), nil
	case b.Source.Type != "base64",
		b.Type == "document" && b.Source.MediaType != "application/pdf",
		b.Type == "image" && !regexp.MustCompile(`^image/(jpeg|png|gif|webp)$`).MatchString(b.Source.MediaType):
		return "", fmt.Errorf("source: unsupported %s of %s", b.Source.Type, b.Source.MediaType)
	}
	size, err := decodedSize(b.Source.Data)
	if err != nil {
		return "", fmt.Errorf("source.base64: invalid base64 data")
	}
	return describePart(b.Type, b.Source.MediaType, size), nil
}

func (anthropic) failure(status int, message, code string) []byte {
	kind := map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
	}[status]
	switch {
	case code == "insufficient_quota":
		kind = "billing_error"
	case kind == "":
		kind = "api_error"
	}
	return []byte(`{"type":"error","error":{"type":"` + kind + `","message":` + string(quote(message)) + `},"request_id":"req_fake"}`)
}

func (anthropic) midway(f *frameWriter, message, _ string) {
	f.event("error", `{"type":"error","error":{"type":"overloaded_error","message":`+string(quote(message))+`}}`)
	f.close()
}

// blocks returns the reply as content blocks: text, then tool calls.
func (anthropic) calls(q *query, reply *Reply) (text string, calls []ToolCall) {
	if q.forced != "" && len(reply.Calls) == 0 {
		return "", []ToolCall{{Name: q.forced, Args: reply.Text}}
	}
	return reply.Text, reply.Calls
}

func anthropicStop(reply *Reply, calls []ToolCall) string {
	switch {
	case reply.Finish == "length":
		return "max_tokens"
	case reply.Finish == "content_filter":
		return "refusal"
	case reply.Finish != "" && reply.Finish != "stop" && reply.Finish != "tool_calls":
		return reply.Finish
	case len(calls) > 0:
		return "tool_use"
	default:
		return "end_turn"
	}
}

func (a anthropic) plain(b []byte, x *exchange, q *query, reply *Reply) []byte {
	text, calls := a.calls(q, reply)
	b = a.head(b, x, q.Model)
	stop := appendQuoted(nil, anthropicStop(reply, calls))
	if reply.Empty {
		text, calls, stop = "", nil, []byte("null")
	}
	b = append(b, `"content":[`...)
	if text != "" {
		b = append(appendQuoted(append(b, `{"type":"text","text":`...), text), '}')
	}
	for i, c := range calls {
		if i > 0 || text != "" {
			b = append(b, ',')
		}
		args := c.Args
		if !json.Valid([]byte(args)) {
			args = "{}" // this protocol has no other place for them than a stream
		}
		b = appendQuoted(append(b, `{"type":"tool_use","id":`...), callID(c, i))
		b = appendQuoted(append(b, `,"name":`...), c.Name)
		b = append(append(append(b, `,"input":`...), args...), '}')
	}
	b = append(append(append(b, `],"stop_reason":`...), stop...), `,"stop_sequence":null`...)
	if !reply.NoUsage {
		prompt, completion := tokens(q, reply)
		b = append(appendPromptUsage(append(b, `,"usage":{`...), prompt, reply), `,"output_tokens":`...)
		b = append(strconv.AppendInt(b, int64(completion), 10), '}')
	}
	return append(b, '}')
}

func (anthropic) head(b []byte, x *exchange, model string) []byte {
	b = append(b, `{"id":"msg_fake_`...)
	b = strconv.AppendInt(b, x.id(), 10)
	b = append(b, `","type":"message","role":"assistant","model":`...)
	return append(appendQuoted(b, model), ',')
}

// appendPromptUsage counts the prompt as this vendor does: without the part
// that came from the cache.
func appendPromptUsage(b []byte, prompt int, reply *Reply) []byte {
	b = strconv.AppendInt(append(b, `"input_tokens":`...), int64(prompt-reply.CachedTokens), 10)
	b = append(b, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	return strconv.AppendInt(b, int64(reply.CachedTokens), 10)
}

// event appends a named event to the current frame.
func (f *frameWriter) event(name, data string) {
	if n := len(f.b); n > 0 && f.b[n-1] != '\n' {
		f.b = append(f.b, "\n\n"...)
	}
	f.b = append(append(append(append(f.b, "event: "...), name...), "\ndata: "...), data...)
}

func (a anthropic) stream(f *frameWriter, q *query, reply *Reply, chunks int) {
	text, calls := a.calls(q, reply)
	prompt, completion := tokens(q, reply)
	head := a.head([]byte(`{"type":"message_start","message":`), f.x, q.Model)
	head = append(head, `"content":[],"stop_reason":null,"stop_sequence":null`...)
	if !reply.NoUsage {
		head = append(appendPromptUsage(append(head, `,"usage":{`...), prompt, reply), `,"output_tokens":1}`...)
	}
	f.event("message_start", string(head)+"}}")
	if reply.Empty {
		f.event("message_stop", `{"type":"message_stop"}`)
		f.close()
		return
	}
	block := 0
	if text != "" {
		f.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
		f.event("ping", `{"type":"ping"}`)
		f.close()
		for _, piece := range split(text, chunks) {
			f.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+string(quote(piece))+`}}`)
			f.close()
		}
		f.event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		block++
	} else {
		f.close()
	}
	for i, c := range calls {
		at := strconv.Itoa(block + i)
		f.event("content_block_start", `{"type":"content_block_start","index":`+at+`,"content_block":{"type":"tool_use","id":`+string(quote(callID(c, i)))+
			`,"name":`+string(quote(c.Name))+`,"input":{}}}`)
		f.event("content_block_delta", `{"type":"content_block_delta","index":`+at+`,"delta":{"type":"input_json_delta","partial_json":""}}`)
		f.close()
		for _, piece := range split(c.Args, chunks) {
			f.event("content_block_delta", `{"type":"content_block_delta","index":`+at+`,"delta":{"type":"input_json_delta","partial_json":`+string(quote(piece))+`}}`)
			f.close()
		}
		f.event("content_block_stop", `{"type":"content_block_stop","index":`+at+`}`)
	}
	end := `{"type":"message_delta","delta":{"stop_reason":` + string(quote(anthropicStop(reply, calls))) + `,"stop_sequence":null}`
	if !reply.NoUsage {
		end += `,"usage":{"output_tokens":` + strconv.Itoa(completion) + `}`
	}
	f.event("message_delta", end+"}")
	f.event("message_stop", `{"type":"message_stop"}`)
	f.close()
}
