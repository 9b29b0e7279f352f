package fakellm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// query is what the server reads of a chat request.
type query struct {
	Model          string          `json:"model"`
	Stream         bool            `json:"stream"`
	StreamOptions  *streamOptions  `json:"stream_options"`
	Messages       []message       `json:"messages"`
	ResponseFormat *responseFormat `json:"response_format"`

	user    string // the last user message
	last    string // role of the last message
	purpose string
	size    int // bytes of the request
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// exchange is one model call being answered.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	body   []byte
	call   Call
	begun  bool
	serial int64
}

// begin counts and records the call once what it asks is known.
func (x *exchange) begin() {
	x.begun = true
	x.server.begin(&x.call)
}

// end ends a call; one that was refused before it was understood counts too.
func (x *exchange) end() {
	if !x.begun {
		x.begin()
	}
	x.server.finish()
}

// chat answers /v1/chat/completions.
func (s *Server) chat(x *exchange) error {
	q, err := readQuery(x.body)
	if err != nil {
		return err
	}
	x.call.Model, x.call.Purpose, x.call.Stream, x.call.User = q.Model, q.purpose, q.Stream, q.user
	x.begin()
	reply, ok := s.match(q)
	if !ok {
		reply.Text = s.opts.Text
	}
	if reply.Text == "" && len(reply.Calls) == 0 {
		reply.Text = defaultText(q)
	}
	x.send(q, &reply)
	return nil
}

func readQuery(body []byte) (*query, error) {
	q := &query{purpose: "agent", size: len(body)}
	if err := json.Unmarshal(body, q); err != nil {
		return nil, fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	if q.Model == "" || len(q.Messages) == 0 {
		return nil, fmt.Errorf("you must provide a model and messages")
	}
	for _, m := range slices.Backward(q.Messages) {
		if m.Role == "user" {
			q.user = m.text()
			break
		}
	}
	q.last = q.Messages[len(q.Messages)-1].Role
	if q.ResponseFormat != nil && q.ResponseFormat.Type == "json_schema" {
		q.purpose = q.ResponseFormat.JSONSchema.Name
	}
	return q, nil
}

// text returns the content, be it a string or a list of parts.
func (m message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Content, &parts)
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// defaultText is a deterministic answer: a choice for a call that asks for
// JSON, else words that show what was asked.
func defaultText(q *query) string {
	switch {
	case q.purpose != "agent":
		return choose(q)
	case q.last == "tool":
		return "The tool answered: " + q.Messages[len(q.Messages)-1].text()
	default:
		return "Fake answer to: " + q.user
	}
}

// readBody reads the request into one allocation of its size.
func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, fmt.Errorf("the body is larger than %d bytes", maxBody)
	}
	if r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		return body, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the body is larger than %d bytes", maxBody)
	}
	return body, err
}
