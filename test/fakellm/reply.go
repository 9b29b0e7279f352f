package fakellm

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

var (
	contentJSON = []string{"application/json"}
	contentSSE  = []string{"text/event-stream"}
)

// buffer returns a buffer to build a reply in.
func (s *Server) buffer() *[]byte {
	if p, ok := s.buffers.Get().(*[]byte); ok {
		return p
	}
	b := make([]byte, 0, 4096)
	return &b
}

// send does what the reply says.
func (x *exchange) send(q *query, reply *Reply) {
	for name, value := range reply.Headers {
		x.w.Header().Set(name, value)
	}
	if reply.GateAfter == 0 && !x.pass(reply.Gate) || !x.pause(reply.delay()) {
		return
	}
	switch {
	case reply.Reset:
		x.reset()
	case reply.Stall && reply.StallAfter == 0 && !q.Stream:
		<-x.r.Context().Done()
	case reply.Status != 0 && reply.Status != http.StatusOK:
		x.fail(reply)
	case q.Stream:
		x.stream(q, reply)
	default:
		x.plain(q, reply)
	}
}

func (x *exchange) fail(reply *Reply) {
	if reply.Body != "" {
		writeJSON(x.w, reply.Status, []byte(reply.Body))
		return
	}
	message := reply.Message
	if message == "" {
		message = "scripted error"
	}
	writeError(x.w, reply.Status, message, reply.Code)
}

// pass waits at a gate; false means that the caller left.
func (x *exchange) pass(gate string) bool {
	if gate == "" {
		return true
	}
	x.server.mu.Lock()
	open := x.server.gate(gate)
	x.server.mu.Unlock()
	select {
	case <-open:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

func (x *exchange) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// reset makes the kernel send RST.
func (x *exchange) reset() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// plain writes the whole completion.
func (x *exchange) plain(q *query, reply *Reply) {
	if reply.Body != "" {
		x.cutBody([]byte(reply.Body), reply)
		return
	}
	p := x.server.buffer()
	b := x.head((*p)[:0], "chat.completion", q.Model)
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
	b = append(b, '}')
	x.cutBody(b, reply)
	*p = b
	x.server.buffers.Put(p)
}

// cutBody writes a plain body, or its first part when the reply is cut.
func (x *exchange) cutBody(b []byte, reply *Reply) {
	if reply.CutBytes <= 0 && !reply.Cut {
		writeJSON(x.w, http.StatusOK, b)
		return
	}
	h := x.w.Header()
	h["Content-Type"] = contentJSON
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	_, _ = x.w.Write(b[:min(reply.CutBytes, len(b))])
	_ = http.NewResponseController(x.w).Flush()
	panic(http.ErrAbortHandler)
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

// id is the number of this call's reply; all frames of a stream carry the same.
func (x *exchange) id() int64 {
	if x.serial == 0 {
		x.serial = x.server.serial.Add(1)
	}
	return x.serial
}

// appendToolCall leaves the function object and the call open.
func appendToolCall(b []byte, c ToolCall, i int, args string) []byte {
	id := c.ID
	if id == "" {
		id = "call_fake_" + strconv.Itoa(i)
	}
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"id":`...)
	b = appendQuoted(b, id)
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendQuoted(b, c.Name)
	b = append(b, `,"arguments":`...)
	return appendQuoted(b, args)
}

// appendUsage counts four bytes as a token.
func appendUsage(b []byte, q *query, reply *Reply) []byte {
	prompt, completion := q.size/4+1, len(reply.Text)/4+1
	for _, c := range reply.Calls {
		completion += (len(c.Name)+len(c.Args))/4 + 1
	}
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(completion), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	return append(b, `,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}`...)
}

func finish(reply *Reply) string {
	switch {
	case reply.Finish != "":
		return reply.Finish
	case len(reply.Calls) > 0:
		return "tool_calls"
	default:
		return "stop"
	}
}

func quote(s string) []byte { return appendQuoted(nil, s) }

// appendQuoted appends s as a JSON string, in one pass when nothing needs an escape.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, err := json.Marshal(s)
			if err != nil {
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
