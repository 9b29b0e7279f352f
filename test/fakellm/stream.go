package fakellm

import (
	"net/http"
	"strconv"
	"unicode/utf8"
)

// stream writes the completion as server-sent events: all at once when nothing
// in the reply asks for a pause, else frame by frame.
func (x *exchange) stream(q *query, reply *Reply) {
	h := x.w.Header()
	h["Content-Type"] = contentSSE
	h["Cache-Control"] = []string{"no-cache"}
	h["Transfer-Encoding"] = []string{"chunked"} // else a short stream would get a length
	p := x.server.buffer()
	b, ends := x.frames((*p)[:0], q, reply)
	if reply.halting() {
		x.halting(b, ends, reply)
	} else {
		x.pieces(b, max(reply.Pieces, 1))
	}
	*p = b
	x.server.buffers.Put(p)
}

// halting tells whether something happens between two frames.
func (r *Reply) halting() bool {
	return r.ChunkDelayMS > 0 || r.Cut || r.CutAfter > 0 || r.CutBytes > 0 || r.Stall || r.StallAfter > 0 || r.GateAfter > 0
}

// pieces writes b in n parts, whatever they cut.
func (x *exchange) pieces(b []byte, n int) {
	for i := range n {
		_, _ = x.w.Write(b[len(b)*i/n : len(b)*(i+1)/n])
		if i < n-1 {
			x.flush()
		}
	}
}

func (x *exchange) flush() { _ = http.NewResponseController(x.w).Flush() }

// halting writes frame by frame and does at each border what the reply says.
func (x *exchange) halting(b []byte, ends []int, reply *Reply) {
	from := 0
	for sent := 0; ; sent++ {
		if !x.border(sent, reply) || sent == len(ends) {
			return
		}
		to := ends[sent]
		if reply.CutBytes > 0 && reply.CutBytes < to {
			_, _ = x.w.Write(b[from:max(from, reply.CutBytes)])
			x.flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = x.w.Write(b[from:to])
		x.flush()
		from = to
	}
}

// border acts when sent frames are out; false ends the reply.
func (x *exchange) border(sent int, reply *Reply) bool {
	switch {
	case (reply.Cut || reply.CutAfter > 0) && sent == reply.CutAfter:
		x.flush()
		panic(http.ErrAbortHandler)
	case (reply.Stall || reply.StallAfter > 0) && sent == reply.StallAfter:
		x.flush()
		<-x.r.Context().Done()
		return false
	case reply.GateAfter > 0 && sent == reply.GateAfter && !x.pass(reply.Gate):
		return false
	}
	return sent == 0 || x.pause(reply.chunkDelay())
}

// frames appends all frames of the reply and returns where each one ends.
func (x *exchange) frames(b []byte, q *query, reply *Reply) ([]byte, []int) {
	f := frameWriter{x: x, b: b, model: q.Model}
	switch {
	case reply.RawStream != "":
		f.b = append(f.b, reply.RawStream...)
		f.ends = append(f.ends, len(f.b))
		return f.b, f.ends
	case len(reply.Frames) > 0:
		for _, data := range reply.Frames {
			f.b = append(f.b, "data: "...)
			f.b = append(f.b, data...)
			f.close()
		}
	default:
		f.completion(q, reply, x.server.opts.Chunks)
	}
	if !reply.NoDone {
		f.b = append(f.b, "data: [DONE]"...)
		f.close()
	}
	return f.b, f.ends
}

type frameWriter struct {
	x     *exchange
	b     []byte
	ends  []int
	model string
}

func (f *frameWriter) close() {
	f.b = append(f.b, "\n\n"...)
	f.ends = append(f.ends, len(f.b))
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

// completion writes role, text, tool calls, finish and usage frames.
func (f *frameWriter) completion(q *query, reply *Reply, chunks int) {
	if reply.Chunks > 0 {
		chunks = reply.Chunks
	}
	f.delta("", func(b []byte) []byte { return append(b, `"role":"assistant","content":""`...) })
	for _, piece := range split(reply.Text, chunks) {
		f.delta("", func(b []byte) []byte { return appendQuoted(append(b, `"content":`...), piece) })
	}
	for i, c := range reply.Calls {
		f.toolCall(c, i, chunks)
	}
	f.delta(finish(reply), func(b []byte) []byte { return b })
	if !reply.NoUsage && q.StreamOptions != nil && q.StreamOptions.IncludeUsage {
		f.b = append(f.b, `data: {"id":"chatcmpl-fake-`...)
		f.b = strconv.AppendInt(f.b, f.x.id(), 10)
		f.b = append(f.b, `","object":"chat.completion.chunk","created":1700000000,"model":`...)
		f.b = appendQuoted(f.b, f.model)
		f.b = append(f.b, `,"choices":[]`...)
		f.b = append(appendUsage(f.b, q, reply), '}')
		f.close()
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

// split cuts text into at most n pieces of about the same size, at rune borders.
func split(text string, n int) []string {
	if text == "" {
		return nil
	}
	pieces := make([]string, 0, n)
	for from, i := 0, 1; i <= n && from < len(text); i++ {
		to := len(text) * i / n
		for to < len(text) && !utf8.RuneStart(text[to]) {
			to++
		}
		if to > from {
			pieces = append(pieces, text[from:to])
			from = to
		}
	}
	return pieces
}
