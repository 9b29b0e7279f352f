package fakellm

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// dialect is a wire protocol: how calls are read and replies are written.
type dialect interface {
	// key returns the key that the caller shows.
	key(r *http.Request) string
	// read understands a call.
	read(x *exchange) (*query, error)
	// plain appends a reply in one piece.
	plain(b []byte, x *exchange, q *query, reply *Reply) []byte
	// stream writes the frames of a reply: an opening one, one for each delta,
	// and the end.
	stream(f *frameWriter, q *query, reply *Reply, chunks int)
	// failure returns the body of an error.
	failure(status int, message, code string) []byte
	// midway appends an error as a frame of a stream that has begun.
	midway(f *frameWriter, message, code string)
}

// query is what the server understood of a chat request.
type query struct {
	Model    string
	Stream   bool
	Messages []message

	schema  json.RawMessage // of the JSON that is asked for
	json    bool            // any JSON object is asked for
	usage   bool            // the stream shall end with a usage frame
	forced  string          // the tool that must be called, for protocols that ask for JSON so
	parts   []string
	user    string // the last user message
	last    string // role of the last message
	purpose string
	size    int // bytes of the request
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// exchange is one model call being answered.
type exchange struct {
	server *Server
	talk   dialect
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
	x.server.finish(&x.call)
}

// chat answers a call for a completion.
func (s *Server) chat(x *exchange) error {
	q, err := x.talk.read(x)
	if err != nil {
		return err
	}
	q.complete(len(x.body))
	x.call.Model, x.call.Purpose, x.call.Stream, x.call.User, x.call.Parts = q.Model, q.purpose, q.Stream, q.user, q.parts
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

// complete derives what rules match on.
func (q *query) complete(size int) {
	q.size = size
	for _, m := range slices.Backward(q.Messages) {
		if m.Role == "user" {
			q.user = m.text()
			break
		}
	}
	q.last = q.Messages[len(q.Messages)-1].Role
	switch {
	case q.user == probeText:
		q.purpose = probePurpose
	case q.purpose == "":
		q.purpose = "agent"
	}
}

// probePurpose is the purpose of calls that only find out whether a model is
// there, told by what they ask. They come whenever a formation is loaded, so
// scripts and counts leave them out.
const (
	probePurpose = "probe"
	probeText    = "Reply with the word ok."
	probeSilence = "recording.wav 3244"
)

// title names a schema: the purpose of a call in the protocols that have no
// other place for it.
func title(schema json.RawMessage) string {
	var s struct {
		Title string `json:"title"`
	}
	_ = json.Unmarshal(schema, &s)
	return s.Title
}

// decodedSize is the number of bytes behind base64.
func decodedSize(data string) (int, error) {
	raw, err := base64.StdEncoding.DecodeString(data)
	if err == nil && len(raw) == 0 {
		err = fmt.Errorf("it is empty")
	}
	return len(raw), err
}

// describePart is how a part of a message is recorded, whatever the protocol.
func describePart(kind, mediaType string, size int) string {
	return fmt.Sprintf("%s %s %d", kind, mediaType, size)
}

// text returns the content, be it a string or a list of parts.
func (m message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Content, &parts)
	var texts []string
	for _, p := range parts {
		if p.Type == "text" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// defaultText is a deterministic answer: a choice for a call that asks for
// JSON, else words that show what was asked.
func defaultText(q *query) string {
	switch {
	case q.schema != nil:
		return choose(q)
	case q.json:
		return `{"answer":"scripted"}`
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
