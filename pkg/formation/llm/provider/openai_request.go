package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

const hexDigits = "0123456789abcdef"

// encodeRequest makes the body of a call.
func encodeRequest(req llm.Request, q quirks) []byte {
	b := make([]byte, 0, sizeOf(req))
	b = appendString(append(b, `{"model":`...), req.Model)
	b = append(b, `,"messages":[`...)
	for i, m := range withHint(req, openAIHint(req, q)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendMessage(b, &m)
	}
	b = append(b, ']')
	b = appendTools(b, req.Tools)
	if req.NoCalls && len(req.Tools) > 0 {
		b = append(b, `,"tool_choice":"none"`...)
	}
	b = appendSettings(b, req.Settings, q)
	b = appendFormat(b, req, q)
	if req.Deltas {
		b = append(b, `,"stream":true`...)
		if !q.noStreamOptions {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	return append(b, '}')
}

// sizeOf guesses the size of the body, so that it is allocated once.
func sizeOf(req llm.Request) int {
	n := 256 + len(req.Schema)
	for i := range req.Messages {
		n += 48 + len(req.Messages[i].Content) + len(req.Messages[i].Content)/16
		for _, p := range req.Messages[i].Parts {
			n += 96 + len(p.Name) + base64.StdEncoding.EncodedLen(len(p.Data))
		}
		for _, c := range req.Messages[i].Calls {
			n += 96 + len(c.Name) + len(c.Args) + len(c.Args)/8
		}
	}
	for _, t := range req.Tools {
		n += 96 + len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return n
}

func appendMessage(b []byte, m *chat.Message) []byte {
	b = appendString(append(b, `{"role":`...), string(m.Role))
	if m.CallID != "" {
		b = appendString(append(b, `,"tool_call_id":`...), m.CallID)
	}
	b = append(b, `,"content":`...)
	switch {
	case m.Content == "" && len(m.Calls) > 0:
		b = append(b, "null"...)
	case len(m.Parts) > 0:
		b = appendParts(b, m)
	default:
		b = appendString(b, m.Content)
	}
	if len(m.Calls) > 0 {
		b = append(b, `,"tool_calls":[`...)
		for i, c := range m.Calls {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(append(b, `{"id":`...), c.ID)
			b = appendString(append(b, `,"type":"function","function":{"name":`...), c.Name)
			args := string(c.Args)
			if args == "" {
				args = "{}" // servers that parse the arguments refuse an empty string
			}
			b = appendString(append(b, `,"arguments":`...), args)
			b = append(b, "}}"...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// appendParts appends the text and the media of a message.
func appendParts(b []byte, m *chat.Message) []byte {
	b = append(b, '[')
	if m.Content != "" {
		b = append(appendString(append(b, `{"type":"text","text":`...), m.Content), "},"...)
	}
	for i, p := range m.Parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPart(b, p)
	}
	return append(b, ']')
}

func appendPart(b []byte, p chat.Part) []byte {
	switch p.Kind {
	case chat.Audio:
		b = append(b, `{"type":"input_audio","input_audio":{"data":"`...)
		b = base64.StdEncoding.AppendEncode(b, p.Data)
		b = appendString(append(b, `","format":`...), audioFormat(p.MediaType))
		return append(b, "}}"...)
	case chat.Document:
		name := p.Name
		if name == "" {
			name = "document"
		}
		b = appendString(append(b, `{"type":"file","file":{"filename":`...), name)
		b = appendDataURL(append(b, `,"file_data":`...), p)
		return append(b, "}}"...)
	case chat.Video: // not OpenAI's, but of servers that speak its protocol
		return append(appendDataURL(append(b, `{"type":"video_url","video_url":{"url":`...), p), "}}"...)
	default:
		return append(appendDataURL(append(b, `{"type":"image_url","image_url":{"url":`...), p), "}}"...)
	}
}

func appendDataURL(b []byte, p chat.Part) []byte {
	b = appendString(b, "data:"+p.MediaType+";base64,")
	b = base64.StdEncoding.AppendEncode(b[:len(b)-1], p.Data)
	return append(b, '"')
}

// audioFormat is the protocol's short name of a media type.
func audioFormat(mediaType string) string {
	_, format, _ := strings.Cut(mediaType, "/")
	switch format = strings.TrimPrefix(format, "x-"); format {
	case "mpeg", "mpga":
		return "mp3"
	case "wave", "vnd.wave":
		return "wav"
	default:
		return format
	}
}

// openAIHint is what has to be said in words because response_format does not:
// the shape that a server takes no schema for, and the word JSON itself,
// without which OpenAI refuses the plain JSON mode.
func openAIHint(req llm.Request, q quirks) string {
	switch {
	case len(req.Schema) > 0 && q.format == jsonSchema, !wantsJSON(req):
		return ""
	case len(req.Schema) == 0 && q.format != noFormat && mentionsJSON(req.Messages):
		return ""
	default:
		return jsonHint(req)
	}
}

func mentionsJSON(messages []chat.Message) bool {
	for i := range messages {
		if strings.Contains(strings.ToLower(messages[i].Content), "json") {
			return true
		}
	}
	return false
}

func appendTools(b []byte, tools []chat.ToolSpec) []byte {
	if len(tools) == 0 {
		return b
	}
	b = append(b, `,"tools":[`...)
	for i, t := range tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"type":"function","function":{"name":`...), t.Name)
		if t.Description != "" {
			b = appendString(append(b, `,"description":`...), t.Description)
		}
		b = append(b, `,"parameters":`...)
		if len(t.Schema) == 0 {
			b = append(b, `{"type":"object","properties":{}}`...)
		} else {
			b = append(b, t.Schema...)
		}
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

func appendSettings(b []byte, s llm.Settings, q quirks) []byte {
	if s.Temperature != nil && !q.noTemperature {
		b = append(b, `,"temperature":`...)
		b = strconv.AppendFloat(b, *s.Temperature, 'g', -1, 64)
	}
	if s.MaxTokens != nil && !q.noLimit {
		if q.newLimitName {
			b = append(b, `,"max_completion_tokens":`...)
		} else {
			b = append(b, `,"max_tokens":`...)
		}
		b = strconv.AppendInt(b, int64(*s.MaxTokens), 10)
	}
	return b
}

// appendFormat asks for JSON of the request's schema, or as near to it as the
// server can.
func appendFormat(b []byte, req llm.Request, q quirks) []byte {
	switch {
	case !wantsJSON(req) || q.format == noFormat:
		return b
	case len(req.Schema) == 0 || q.format == jsonObject:
		return append(b, `,"response_format":{"type":"json_object"}`...)
	}
	name := req.SchemaName
	if name == "" {
		name = "reply"
	}
	b = append(b, `,"response_format":{"type":"json_schema","json_schema":{"name":`...)
	b = appendString(b, name)
	if closed(req.Schema) {
		b = append(b, `,"strict":true`...)
	}
	b = append(b, `,"schema":`...)
	b = append(b, req.Schema...)
	return append(b, "}}"...)
}

// closed tells whether the schema forbids additional properties: only then do
// servers accept it as a strict one.
func closed(schema json.RawMessage) bool {
	return bytes.Contains(schema, []byte(`"additionalProperties":false`)) ||
		bytes.Contains(schema, []byte(`"additionalProperties": false`))
}

// appendString appends s as a JSON string. What is not valid UTF-8 becomes
// U+FFFD, as in encoding/json.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[from:i]...), "\ufffd"...)
				from = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = appendEscape(append(b, s[from:i]...), c)
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	default:
		return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}
