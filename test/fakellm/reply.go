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
	writeJSON(x.w, reply.Status, x.talk.failure(reply.Status, message, reply.Code))
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
	b := x.talk.plain((*p)[:0], x, q, reply)
	x.cutBody(b, reply)
	*p = b
	x.server.buffers.Put(p)
}

// cutBody writes a plain body, or its first part when the reply is cut.
func (x *exchange) cutBody(b []byte, reply *Reply) {
	if reply.CutRune {
		reply.CutBytes = insideRune(b)
	}
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

// id is the number of this call's reply; all frames of a stream carry the same.
func (x *exchange) id() int64 {
	if x.serial == 0 {
		x.serial = x.server.serial.Add(1)
	}
	return x.serial
}

// callID is the id of the i-th tool call.
func callID(c ToolCall, i int) string {
	if c.ID == "" {
		return "call_fake_" + strconv.Itoa(i)
	}
	return c.ID
}

// tokens counts four bytes as a token.
func tokens(q *query, reply *Reply) (prompt, completion int) {
	prompt, completion = q.size/4+1+reply.CachedTokens, len(reply.Text)/4+1
	for _, c := range reply.Calls {
		completion += (len(c.Name)+len(c.Args))/4 + 1
	}
	return prompt, completion
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

// insideRune returns a position inside the first rune that has more than one
// byte, 0 when there is none.
func insideRune(b []byte) int {
	for i, c := range b {
		if c >= utf8.RuneSelf {
			return i + 1
		}
	}
	return 0
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
