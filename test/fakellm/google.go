package fakellm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// google is the Gemini API: generateContent, its stream, and batches of
// embeddings.
type google struct{}

// googleQuery has the documented fields that a caller of ours may send; another
// one is refused, as the vendor does.
type googleQuery struct {
	Contents          []googleContent `json:"contents"`
	SystemInstruction *googleContent  `json:"systemInstruction"`
	Tools             []struct {
		FunctionDeclarations []struct {
			Name                 string          `json:"name"`
			Description          string          `json:"description"`
			ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
	ToolConfig *struct {
		FunctionCallingConfig struct {
			Mode string `json:"mode"`
		} `json:"functionCallingConfig"`
	} `json:"toolConfig"`
	GenerationConfig *struct {
		Temperature        *float64        `json:"temperature"`
		MaxOutputTokens    int             `json:"maxOutputTokens"`
		ResponseMIMEType   string          `json:"responseMimeType"`
		ResponseJSONSchema json.RawMessage `json:"responseJsonSchema"`
	} `json:"generationConfig"`
}

type googleContent struct {
	Role  string       `json:"role"`
	Parts []googlePart `json:"parts"`
}

type googlePart struct {
	Text       *string `json:"text"`
	InlineData *struct {
		MIMEType string `json:"mimeType"`
		Data     string `json:"data"`
	} `json:"inlineData"`
	FunctionCall *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	FunctionResponse *struct {
		ID       string                     `json:"id"`
		Name     string                     `json:"name"`
		Response map[string]json.RawMessage `json:"response"`
	} `json:"functionResponse"`
	ThoughtSignature string `json:"thoughtSignature"`
}

func (google) key(r *http.Request) string { return r.Header.Get("X-Goog-Api-Key") }

// googleModel cuts the model out of "/v1beta/models/{model}:{method}".
func googleModel(path string) string {
	m := regexp.MustCompile(`^/v1(?:beta)?/models/([^:]+):`).FindStringSubmatch(path)
	if m == nil {
		return ""
	}
	return m[1]
}

func (google) read(x *exchange) (*query, error) {
	var in googleQuery
	dec := json.NewDecoder(bytes.NewReader(x.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, fmt.Errorf("invalid JSON payload received: %w", err)
	}
	q := &query{Model: googleModel(x.r.URL.Path), Stream: strings.HasSuffix(x.r.URL.Path, ":streamGenerateContent"), usage: true}
	switch {
	case q.Model == "":
		return nil, fmt.Errorf("unexpected model name format")
	case len(in.Contents) == 0:
		return nil, fmt.Errorf("contents is not specified")
	case q.Stream && x.r.URL.Query().Get("alt") != "sse":
		return nil, fmt.Errorf("a stream without alt=sse is not events")
	}
	if in.SystemInstruction != nil {
		for _, p := range in.SystemInstruction.Parts {
			q.Messages = append(q.Messages, message{Role: "system", Content: quote(*p.Text)})
			q.json = q.json || strings.Contains(*p.Text, "JSON object")
		}
	}
	for i, c := range in.Contents {
		if err := q.googleContent(c); err != nil {
			return nil, fmt.Errorf("contents[%d]: %w", i, err)
		}
	}
	if g := in.GenerationConfig; g != nil && g.ResponseMIMEType == "application/json" {
		if len(in.Tools) > 0 {
			return nil, fmt.Errorf("function calling with a response mime type: 'application/json' is unsupported")
		}
		q.json, q.schema, q.purpose = true, g.ResponseJSONSchema, title(g.ResponseJSONSchema)
	}
	return q, nil
}

func (q *query) googleContent(c googleContent) error {
	role := map[string]string{"user": "user", "model": "assistant"}[c.Role]
	if role == "" || len(c.Parts) == 0 {
		return fmt.Errorf("please use a valid role: user, model; and at least one part")
	}
	before := len(q.Messages)
	for i, p := range c.Parts {
		switch {
		case p.FunctionResponse != nil:
			if p.FunctionResponse.Name == "" {
				return fmt.Errorf("parts[%d].function_response.name: name cannot be empty", i)
			}
			var out strings.Builder
			for _, v := range p.FunctionResponse.Response {
				var text string
				_ = json.Unmarshal(v, &text)
				out.WriteString(text)
			}
			q.Messages = append(q.Messages, message{Role: "tool", Content: quote(out.String())})
		case p.FunctionCall != nil:
			if p.FunctionCall.Name == "" {
				return fmt.Errorf("parts[%d].function_call.name: name cannot be empty", i)
			}
		case p.InlineData != nil:
			size, err := decodedSize(p.InlineData.Data)
			kind, _, _ := strings.Cut(p.InlineData.MIMEType, "/")
			if err != nil || !strings.Contains(p.InlineData.MIMEType, "/") {
				return fmt.Errorf("parts[%d].inline_data: base64 decoding failed", i)
			}
			if kind == "application" || kind == "text" {
				kind = "document"
			}
			q.parts = append(q.parts, describePart(kind, p.InlineData.MIMEType, size))
		case p.Text != nil:
			q.Messages = append(q.Messages, message{Role: role, Content: quote(*p.Text)})
		default:
			return fmt.Errorf("parts[%d].data: required oneof field 'data' must have one initialized field", i)
		}
	}
	if len(q.Messages) == before {
		q.Messages = append(q.Messages, message{Role: role, Content: quote("")})
	}
	return nil
}

func (google) failure(status int, message, code string) []byte {
	name := map[int]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
		429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
	}[status]
	details := ""
	if code == "insufficient_quota" {
		details = `,"details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]`
	}
	return fmt.Appendf(nil, `{"error":{"code":%d,"message":%s,"status":"%s"%s}}`, status, quote(message), name, details)
}

func (g google) midway(f *frameWriter, message, code string) {
	f.data(string(g.failure(http.StatusServiceUnavailable, message, code)))
}

func googleFinish(reply *Reply) string {
	switch reply.Finish {
	case "length":
		return "MAX_TOKENS"
	case "content_filter":
		return "SAFETY"
	case "", "stop", "tool_calls":
		return "STOP"
	default:
		return reply.Finish
	}
}

// chunk is one response object: parts, and at the end the reason.
func (google) chunk(b []byte, parts []string, finish, usage string, x *exchange) []byte {
	b = append(b, `{"candidates":[{"content":{"parts":[`...)
	b = append(b, strings.Join(parts, ",")...)
	b = append(b, `],"role":"model"},"index":0`...)
	if finish != "" {
		b = append(b, `,"finishReason":"`+finish+`"`...)
	}
	b = append(b, "}]"...)
	b = append(b, usage...)
	q := googleModel(x.r.URL.Path)
	return fmt.Appendf(b, `,"modelVersion":%s,"responseId":"fake-%d"}`, quote(q), x.id())
}

func textPart(text string) string { return `{"text":` + string(quote(text)) + `}` }

func (google) usage(q *query, reply *Reply) string {
	if reply.NoUsage {
		return ""
	}
	prompt, completion := tokens(q, reply)
	cached := ""
	if reply.CachedTokens > 0 {
		cached = fmt.Sprintf(`,"cachedContentTokenCount":%d`, reply.CachedTokens)
	}
	return fmt.Sprintf(`,"usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":%d%s}`, prompt, completion, prompt+completion, cached)
}

// calls returns the tool calls as parts; false when one has arguments that this
// protocol can't carry, for which the vendor has a finish reason.
func (google) calls(reply *Reply) (parts []string, ok bool) {
	for i, c := range reply.Calls {
		if !json.Valid([]byte(c.Args)) {
			return nil, false
		}
		seal := ""
		if i == 0 {
			seal = `,"thoughtSignature":"` + googleSeal + `"`
		}
		parts = append(parts, fmt.Sprintf(`{"functionCall":{"id":%s,"name":%s,"args":%s}%s}`, quote(callID(c, i)), quote(c.Name), c.Args, seal))
	}
	return parts, true
}

// googleSeal is the mark that the first call of a reply carries.
const googleSeal = "c2VhbGVk"

func (g google) plain(b []byte, x *exchange, q *query, reply *Reply) []byte {
	if reply.Empty {
		return append(b, `{"modelVersion":"fake"}`...)
	}
	calls, ok := g.calls(reply)
	if !ok {
		return g.chunk(b, nil, "MALFORMED_FUNCTION_CALL", g.usage(q, reply), x)
	}
	var parts []string
	if reply.Text != "" {
		parts = append(parts, textPart(reply.Text))
	}
	return g.chunk(b, append(parts, calls...), googleFinish(reply), g.usage(q, reply), x)
}

func (g google) stream(f *frameWriter, q *query, reply *Reply, chunks int) {
	if reply.Empty {
		f.data(`{"modelVersion":"fake"}`)
		return
	}
	frame := func(parts []string, finish, usage string) { f.data(string(g.chunk(nil, parts, finish, usage, f.x))) }
	frame([]string{textPart("")}, "", "")
	for _, piece := range split(reply.Text, chunks) {
		frame([]string{textPart(piece)}, "", "")
	}
	calls, ok := g.calls(reply)
	if !ok {
		frame(nil, "MALFORMED_FUNCTION_CALL", g.usage(q, reply))
		return
	}
	for _, c := range calls {
		frame([]string{c}, "", "")
	}
	frame([]string{textPart("")}, googleFinish(reply), g.usage(q, reply))
}

// batchEmbed answers a batch of texts with a vector each.
func (s *Server) batchEmbed(x *exchange) error {
	var in struct {
		Requests []struct {
			Model    string        `json:"model"`
			Content  googleContent `json:"content"`
			TaskType string        `json:"taskType"`
		} `json:"requests"`
	}
	dec := json.NewDecoder(bytes.NewReader(x.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return fmt.Errorf("invalid JSON payload received: %w", err)
	}
	model := googleModel(x.r.URL.Path)
	var texts []string
	for _, r := range in.Requests {
		if r.Model != "models/"+model || len(r.Content.Parts) != 1 || r.Content.Parts[0].Text == nil {
			return fmt.Errorf("every request needs the model %q and one text", "models/"+model)
		}
		texts = append(texts, *r.Content.Parts[0].Text)
	}
	if len(texts) == 0 || len(texts) > 100 {
		return fmt.Errorf("at most 100 requests can be in one batch")
	}
	if !s.embedding(x, model, texts) {
		return nil
	}
	b := []byte(`{"embeddings":[`)
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendVector(append(b, `{"values":`...), embed(text, defaultDimensions), ""), '}')
	}
	writeJSON(x.w, http.StatusOK, append(b, "]}"...))
	return nil
}
