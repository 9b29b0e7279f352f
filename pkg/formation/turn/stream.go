package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// Frame is one frame of a stream.
type Frame = request.Frame

const (
	defaultCancelGrace = 5 * time.Second
	onDisconnectCancel = "cancel"
)

// stream is the frames of a live turn. A frame is numbered when it is made,
// committed in a batch with whatever else is waiting, and shown after that.
// There is at most one commit under way per turn, so batches grow with load
// and a lone frame waits for nothing.
//
// Events come from the turn's one goroutine. A nil stream shows nothing.
type stream struct {
	service *Service
	rec     *request.Record
	enc     encoder

	// Owned by the turn's goroutine: the text that readers hold, from this
	// life and earlier ones, how much of it the current telling has repeated,
	// and whether the two differ.
	sent   strings.Builder
	pos    int
	broken bool
	// replayed counts the markers that an earlier life has shown.
	replayed map[string]int

	mu      sync.Mutex // guards the fields that follow
	next    uint64     // id of the next frame
	base    uint64     // frames up to this id are in the store only
	shown   []Frame    // committed, ids base+1 and on
	pending []Frame    // made and not yet in a commit
	patient int        // so many of the last pending ones wait for the next
	writing bool       // a commit of frames is under way
	ended   bool
	err     error // with ended: the closing frames could not be stored
	readers map[*reader]struct{}
	leaves  int // how often one has left, here or in another process
}

type reader struct{ wake chan struct{} }

func newStream(s *Service, rec *request.Record) *stream {
	return &stream{service: s, rec: rec, enc: encoder{rec: rec, now: s.cfg.DB.Now}, next: 1, readers: make(map[*reader]struct{})}
}

// resume continues a stream of an earlier life after its stored frames.
func (st *stream) resume(frames []Frame) {
	st.replayed = make(map[string]int)
	for _, f := range frames {
		st.next = f.ID + 1
		var token struct{ Type, Stage, Content string }
		if f.Event != "" || json.Unmarshal(f.Data, &token) != nil {
			continue
		}
		if token.Type == string(chat.Content) {
			st.sent.WriteString(token.Content)
			continue
		}
		st.replayed[token.Type+"/"+token.Stage]++
	}
	st.base = st.next - 1
}

// event shows one event of the turn.
func (st *stream) event(e chat.Event) error {
	if e.Type == chat.Content {
		st.content(e)
		return nil
	}
	st.progress(e)
	return nil
}

func (st *stream) progress(e chat.Event) {
	if st == nil || (e.Type == chat.Progress && !st.service.cfg.Response.Progress) {
		return
	}
	if key := string(e.Type) + "/" + e.Stage; st.replayed[key] > 0 {
		st.replayed[key]--
		return
	}
	st.push(Frame{Data: st.enc.event(e)}, e.Soon)
}

// content shows a slice of the answer, except what readers have already. When
// a repeated telling differs from what they have, no more slices follow: the
// completed frame tells them to take its text instead.
func (st *stream) content(e chat.Event) {
	if e.Restart {
		st.pos = 0
		return
	}
	if st.broken {
		return
	}
	text, have := e.Content, st.sent.String()[st.pos:]
	if n := len(have); n > 0 {
		if len(text) <= n && strings.HasPrefix(have, text) {
			st.pos += len(text)
			return
		}
		if !strings.HasPrefix(text, have) {
			st.broken = true
			return
		}
		text = text[n:]
	}
	st.sent.WriteString(text)
	st.pos = st.sent.Len()
	e.Content = text
	st.push(Frame{Data: st.enc.event(e)}, false)
}

// discontinuous tells whether the deltas that readers hold do not add up to text.
func (st *stream) discontinuous(text string) bool {
	return st != nil && st.sent.Len() > 0 && st.sent.String() != text
}

// push adds a frame. A patient one goes with the commit of what follows it.
func (st *stream) push(f Frame, patient bool) {
	st.mu.Lock()
	f.ID = st.next
	st.next++
	st.pending = append(st.pending, f)
	if patient {
		st.patient++
	} else {
		st.patient = 0
	}
	start := !st.writing && !patient
	st.writing = st.writing || start
	st.mu.Unlock()
	if start {
		st.write()
	}
}

// completed makes the closing frames of a turn with an answer.
func (st *stream) completed(r *Reply, took time.Duration) ([]Frame, error) {
	if st == nil {
		return nil, nil
	}
	frames := []Frame{{Data: st.enc.completed(closing{
		content: r.Response, status: "success", took: took, discontinuous: st.discontinuous(r.Response), asks: r.Asks(),
	})}}
	if len(r.Widgets) > 0 {
		data, err := json.Marshal(struct {
			UI []chat.Widget `json:"ui"`
		}{r.Widgets})
		if err != nil {
			return nil, fmt.Errorf("encode widgets: %w", err)
		}
		frames = append(frames, Frame{Event: "ui", Data: data})
	}
	return frames, nil
}

// failed makes the closing frames of a turn without one.
func (st *stream) failed(message, class, code string) []Frame {
	if st == nil {
		return nil
	}
	return []Frame{{Event: "error", Data: st.enc.failed(message, class, code)}}
}

// classOf is the class of a failed turn (reference runtime.md 1.3): that of
// processing, unless the fault has a name of its own and is about something else.
func classOf(f *fault.Error) string {
	switch {
	case f.Name == "":
	case f.Kind == fault.NotFound:
		return "error.not_found"
	case f.Kind == fault.Forbidden:
		return "error.authorization"
	case f.Kind == fault.Invalid, f.Kind == fault.Unprocessable, f.Kind == fault.Conflict, f.Kind == fault.TooLarge:
		return "error.validation"
	}
	return "error.processing"
}

// cancelled makes the closing frames of a cancelled turn.
func (st *stream) cancelled(took time.Duration) []Frame {
	if st == nil {
		return nil
	}
	return []Frame{{Data: st.enc.completed(closing{status: request.Cancelled, took: took, discontinuous: st.discontinuous("")})}}
}

// last returns the batch of the end's own commit. Nothing is written before it.
func (st *stream) last() *batch {
	if st != nil {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.writing, st.patient = true, 0
	}
	return &batch{stream: st}
}

// batch is the frames of one commit. Each try takes what is pending by then:
// frames made since, or those of an earlier commit that failed.
type batch struct {
	stream *stream
	frames []Frame
	// closing are the last frames of the stream, without the one that says so, in
	// the batch of its end. A try may have others than the one before.
	closing []Frame
	all     []Frame // of the last try
}

func (b *batch) append(tx *store.Tx) error {
	if b.stream == nil {
		return nil
	}
	b.stream.mu.Lock()
	pending, next := b.stream.pending, b.stream.next
	b.stream.pending, b.stream.patient = nil, 0
	b.stream.mu.Unlock()
	if len(b.frames) > 0 && len(pending) > 0 && pending[0].ID < b.frames[0].ID {
		b.frames = append(pending, b.frames...)
	} else {
		b.frames = append(b.frames, pending...)
	}
	if b.all = b.frames; b.closing != nil {
		b.all = slices.Clip(b.frames)
		for i, f := range append(slices.Clip(b.closing), Frame{Event: "done", Data: []byte(`{"finished":true}`)}) {
			f.ID = next + uint64(i)
			b.all = append(b.all, f)
		}
	}
	return request.AppendFrames(tx, b.stream.rec.ID, b.all)
}

// show makes a committed batch visible and tells whether more is waiting; then
// the stream stays marked as writing.
func (b *batch) show() (more bool) {
	st := b.stream
	if st == nil {
		return false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.shown = append(st.shown, b.all...)
	st.writing = len(st.pending) > st.patient
	st.wakeAll()
	return st.writing
}

// write hands what is pending to the store; more is written when that commit
// is done.
func (st *stream) write() {
	b := &batch{stream: st}
	st.service.cfg.DB.Submit(b.append, func(err error) {
		if err != nil {
			st.fail(b, err)
			return
		}
		if b.show() {
			// This runs in the store's writer, which must not wait for its
			// own queue.
			go st.write()
		}
	})
}

func (st *stream) wakeAll() {
	for r := range st.readers {
		select {
		case r.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// fail ends a turn whose frames can't be stored. They stay the next to be.
func (st *stream) fail(b *batch, err error) {
	st.mu.Lock()
	st.pending, st.patient = append(b.frames, st.pending...), 0
	st.mu.Unlock()
	if t := st.service.find(st.rec.ID); t != nil {
		t.cancel(fmt.Errorf("store the stream: %w", err))
	}
}

// close tells readers that no more frames come; err tells why the closing ones
// are missing.
func (st *stream) close(err error) {
	if st == nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended, st.err = true, err
	st.wakeAll()
}

// follow emits the frames after an id, stored ones first, then as they are
// committed, until the turn ends or ctx does.
func (st *stream) follow(ctx context.Context, after uint64, emit func([]Frame) error) error {
	r := &reader{wake: make(chan struct{}, 1)}
	st.mu.Lock()
	st.readers[r] = struct{}{}
	base := st.base
	st.mu.Unlock()
	defer st.left(r)
	if after < base {
		stored, err := request.Frames(ctx, st.service.cfg.DB, st.rec.ID, after)
		if err != nil {
			return err
		}
		for len(stored) > 0 && stored[len(stored)-1].ID > base {
			stored = stored[:len(stored)-1]
		}
		if err := emit(stored); err != nil {
			return err
		}
		after = base
	}
	for {
		st.mu.Lock()
		var fresh []Frame
		if skip := after - base; skip < uint64(len(st.shown)) {
			fresh = st.shown[skip:]
		}
		ended, failed := st.ended, st.err
		st.mu.Unlock()
		if len(fresh) > 0 {
			if err := emit(fresh); err != nil {
				return err
			}
			after = fresh[len(fresh)-1].ID
			continue
		}
		if ended {
			return failed
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// left removes a reader.
func (st *stream) left(r *reader) {
	st.mu.Lock()
	delete(st.readers, r)
	st.mu.Unlock()
	st.checkReaders()
}

// checkReaders cancels a turn that is to end with its readers, after a grace,
// when none is left and none comes back, to this process or another.
func (st *stream) checkReaders() {
	if st.rec.OnDisconnect != onDisconnectCancel {
		return
	}
	st.mu.Lock()
	st.leaves++
	leave := st.leaves
	st.mu.Unlock()
	t := st.service.find(st.rec.ID)
	if t == nil || !st.unread(leave) {
		return
	}
	timer := time.AfterFunc(st.service.cfg.CancelGrace, func() {
		if !st.unread(leave) {
			return
		}
		if found, err := request.ReadElsewhere(t.ctx, st.service.cfg.DB, st.rec.ID); found || err != nil {
			return // whoever reads there tells when it leaves
		}
		if _, err := st.service.cancelTurn(t.ctx, t); err != nil && !errors.Is(err, context.Canceled) {
			st.service.log(st.rec).Warn().Err(err).Msg("cancel a turn without readers")
		}
	})
	context.AfterFunc(t.ctx, func() { timer.Stop() })
}

// unread tells that nobody reads, and that nobody has left since a leave: each
// has the whole grace to come back in.
func (st *stream) unread(leave int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.readers) == 0 && !st.ended && st.leaves == leave
}
