package fakellm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// openAI is the protocol of OpenAI, of Ollama and of all that call themselves
// compatible.
type openAI struct{}

type openAIQuery struct {
	Model         string    `json:"model"`
	Stream        bool      `json:"stream"`
	Messages      []message `json:"messages"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	ResponseFormat *struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

func (openAI) key(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

func (openAI) read(x *exchange) (*query, error) {
	var in openAIQuery
	if err := json.Unmarshal(x.body, &in); err != nil {
		return nil, fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	if in.Model == "" || len(in.Messages) == 0 {
		return nil, fmt.Errorf("you must provide a model and messages")
	}
	q := &query{Model: in.Model, Stream: in.Stream, Messages: in.Messages, usage: in.StreamOptions != nil && in.StreamOptions.IncludeUsage}
	for _, m := range in.Messages {
		parts, err := m.openAIParts()
		if err != nil {
			return nil, err
		}
		q.parts = append(q.parts, parts...)
	}
	if f := in.ResponseFormat; f != nil {
		switch f.Type {
		case "json_schema":
			q.purpose, q.schema = f.JSONSchema.Name, f.JSONSchema.Schema
		case "json_object":
			q.json = true
			if !slices.ContainsFunc(q.Messages, func(m message) bool { return strings.Contains(strings.ToLower(m.text()), "json") }) {
				return nil, fmt.Errorf("'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'")
			}
		}
	}
	return q, nil
}

// openAIParts describes the media of a message.
func (m message) openAIParts() ([]string, error) {
	if len(m.Content) == 0 || m.Content[0] != '[' {
		return nil, nil
	}
	var list []struct {
		Type     string `json:"type"`
		ImageURL struct {
			URL string `json:"url"`
		} `json:"image_url"`
		VideoURL struct {
			URL string `json:"url"`
		} `json:"video_url"`
		InputAudio struct {
			Data   string `json:"data"`
			Format string `json:"format"`
		} `json:"input_audio"`
		File struct {
			FileData string `json:"file_data"`
		} `json:"file"`
	}
	if err := json.Unmarshal(m.Content, &list); err != nil {
		return nil, fmt.Errorf("invalid content: %w", err)
	}
	var out []string
	for _, p := range list {
		var kind, url string
		switch p.Type {
		case "text":
			continue
		case "image_url":
			kind, url = "image", p.ImageURL.URL
		case "video_url":
			kind, url = "video", p.VideoURL.URL
		case "input_audio":
			kind, url = "audio", "data:audio/"+p.InputAudio.Format+";base64,"+p.InputAudio.Data
		case "file":
			kind, url = "document", p.File.FileData
		default:
			return nil, fmt.Errorf("invalid content type %q", p.Type)
		}
		media, data, ok := strings.Cut(strings.TrimPrefix(url, "data:"), ";base64,")
		size, err := decodedSize(data)
		if !ok || err != nil {
			return nil, fmt.Errorf("the %s is no data URL", p.Type)
		}
		out = append(out, describePart(kind, media, size))
	}
	return out, nil
}

func (openAI) failure(_ int, message, code string) []byte { return openAIError(message, code) }

func (openAI) midway(f *frameWriter, message, code string) {
	f.data(`{"error":{"message":` + string(quote(message)) + `,"type":"server_error","code":` + string(quote(code)) + `}}`)
}

// openAIError is an error in the shape of OpenAI's.
func openAIError(message, code string) []byte {
	b := append([]byte(`{"error":{"message":`), quote(message)...)
	b = append(b, `,"type":"fake_error","param":null,"code":`...)
	b = append(b, quote(code)...)
	return append(b, "}}"...)
}

func (openAI) plain(b []byte, x *exchange, q *query, reply *Reply) []byte {
	if reply.Empty {
		return append(b, `{"object":"chat.completion","choices":[]}`...)
	}
	b = x.head(b, "chat.completion", q.Model)
	b = append(b, `"message":{"role":"assistant","content":`...)
	if reply.Text == "" && len(reply.Calls) > 0 {
		b = append(b, "null"...)
	} else {
		b = appendQuoted(b, reply.Text)
	}
	if len(reply.Calls) > 0 {
		b = append(b, `,"tool_calls":[`...)
		for i, c := range reply.Calls {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendToolCall(b, c, i, c.Args)
			b = append(b, '}', '}')
		}
		b = append(b, ']')
	}
	b = append(b, `,"refusal":null},"logprobs":null,"finish_reason":"`...)
	b = append(b, finish(reply)...)
	b = append(b, `"}]`...)
	if !reply.NoUsage {
		b = appendUsage(b, q, reply)
	}
	return append(b, '}')
}

// head begins a completion object up to its choice.
func (x *exchange) head(b []byte, object, model string) []byte {
	b = append(b, `{"id":"chatcmpl-fake-`...)
	b = strconv.AppendInt(b, x.id(), 10)
	b = append(b, `","object":"`...)
	b = append(b, object...)
	b = append(b, `","created":1700000000,"model":`...)
	b = appendQuoted(b, model)
	return append(b, `,"system_fingerprint":"fp_fake","choices":[{"index":0,`...)
}

// appendToolCall leaves the function object and the call open.
func appendToolCall(b []byte, c ToolCall, i int, args string) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"id":`...)
	b = appendQuoted(b, callID(c, i))
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendQuoted(b, c.Name)
	b = append(b, `,"arguments":`...)
	return appendQuoted(b, args)
}

func appendUsage(b []byte, q *query, reply *Reply) []byte {
	prompt, completion := tokens(q, reply)
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(reply.CachedTokens), 10)
	return append(b, `,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}`...)
}

// delta writes one frame around a delta object made by body.
func (f *frameWriter) delta(finish string, body func(b []byte) []byte) {
	f.b = f.x.head(append(f.b, "data: "...), "chat.completion.chunk", f.model)
	f.b = append(f.b, `"delta":{`...)
	f.b = body(f.b)
	f.b = append(f.b, `},"logprobs":null,"finish_reason":`...)
	if finish == "" {
		f.b = append(f.b, "null}]}"...)
	} else {
		f.b = appendQuoted(f.b, finish)
		f.b = append(f.b, "}]}"...)
	}
	f.close()
}

// stream writes role, text, tool calls, finish and usage frames.
func (openAI) stream(f *frameWriter, q *query, reply *Reply, chunks int) {
	if reply.Empty {
		f.data(`{"object":"chat.completion.chunk","choices":[]}`)
		f.data("[DONE]")
		return
	}
	f.delta("", func(b []byte) []byte { return append(b, `"role":"assistant","content":""`...) })
	for _, piece := range split(reply.Text, chunks) {
		f.delta("", func(b []byte) []byte { return appendQuoted(append(b, `"content":`...), piece) })
	}
	for i, c := range reply.Calls {
		f.toolCall(c, i, chunks)
	}
	f.delta(finish(reply), func(b []byte) []byte { return b })
	if !reply.NoUsage && q.usage {
		f.b = append(f.b, `data: {"id":"chatcmpl-fake-`...)
		f.b = strconv.AppendInt(f.b, f.x.id(), 10)
		f.b = append(f.b, `","object":"chat.completion.chunk","created":1700000000,"model":`...)
		f.b = appendQuoted(f.b, f.model)
		f.b = append(f.b, `,"choices":[]`...)
		f.b = append(appendUsage(f.b, q, reply), '}')
		f.close()
	}
	if !reply.NoDone {
		f.data("[DONE]")
	}
}

// toolCall writes a call: its name first, then its arguments in pieces.
func (f *frameWriter) toolCall(c ToolCall, i, chunks int) {
	f.delta("", func(b []byte) []byte {
		b = appendToolCall(append(b, `"tool_calls":[`...), c, i, "")
		return append(b, "}}]"...)
	})
	for _, piece := range split(c.Args, chunks) {
		f.delta("", func(b []byte) []byte {
			b = append(b, `"tool_calls":[{"index":`...)
			b = strconv.AppendInt(b, int64(i), 10)
			b = append(b, `,"function":{"arguments":`...)
			b = appendQuoted(b, piece)
			return append(b, "}}]"...)
		})
	}
}
