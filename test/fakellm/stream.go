package fakellm

import (
	"net/http"
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
	return r.ChunkDelayMS > 0 || r.Cut || r.CutAfter > 0 || r.CutBytes > 0 || r.CutRune || r.Stall || r.StallAfter > 0 || r.GateAfter > 0
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
			f.data(data)
		}
		if !reply.NoDone {
			f.data("[DONE]")
		}
	default:
		chunks := x.server.opts.Chunks
		if reply.Chunks > 0 {
			chunks = reply.Chunks
		}
		x.talk.stream(&f, q, reply, chunks)
	}
	f.spoil(reply)
	return f.b, f.ends
}

// spoil puts the scripted faults into the frames.
func (f *frameWriter) spoil(reply *Reply) {
	switch {
	case reply.EndAfter > 0:
		f.keep(reply.EndAfter)
	case reply.GarbageAfter > 0:
		f.keep(reply.GarbageAfter)
		f.data("{nonsense")
	case reply.FailAfter > 0:
		f.keep(reply.FailAfter)
		f.x.talk.midway(f, reply.Message, reply.Code)
	case reply.CutRune:
		reply.CutBytes = insideRune(f.b)
	}
}

// keep forgets all frames but the first n.
func (f *frameWriter) keep(n int) {
	f.ends = f.ends[:min(n, len(f.ends))]
	f.b = f.b[:f.ends[len(f.ends)-1]]
}

// data writes a frame of data.
func (f *frameWriter) data(data string) {
	f.b = append(append(f.b, "data: "...), data...)
	f.close()
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
