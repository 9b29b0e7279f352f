// Package turn runs a turn of chat from its request to its recorded reply.
//
// Begin commits the request before anything else happens; from then on the
// turn belongs to the formation, not to the connection that asked. It ends
// with one commit that holds the answer, the event, the transcript, the last
// frames and the state of the request. In between, finished steps are
// journalled and streamed frames are committed before anybody sees them.
//
//	Begin ── commit ──► accepted ──► running ──► completed | failed | cancelled
//	                        ▲           │
//	                        └── resume ◄┘ process died or stopped
//
// A request that was open when its process died is resumed by another one
// from its journal. Every open request has a live turn in the table of the
// process that has it in hand, so whoever asks there for it later joins it.
// While two processes live side by side, each answers for the other's turns
// from the store (remote.go).
package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// JobKind is the kind of the background jobs that run turns.
const JobKind = "turn"

var (
	// ErrContinues tells that a turn outlasted its threshold and goes on in the
	// background: the caller is answered with an acceptance.
	ErrContinues = errors.New("turn: goes on in the background")
	// ErrStopping ends a turn because the process stops; it resumes later.
	ErrStopping = errors.New("turn: the process is stopping")

	errCancelled = errors.New("turn: cancelled by its user")
)

// Enqueuer adds a background job in a commit; jobs.Queue satisfies it.
type Enqueuer interface {
	EnqueueTx(ctx context.Context, tx *store.Tx, kind, key string) error
}

// Handler answers one message; *overlord.Overlord satisfies it.
type Handler interface {
	Knows(agentID string) bool
	Handle(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error)
}

// Config is what a Service is made of.
type Config struct {
	DB       *store.DB
	Memory   *memory.Memory
	Overlord Handler
	Jobs     Enqueuer
	Async    manifest.Async
	Response manifest.Response
	NewID    func(prefix string) string
	// CancelGrace is how long a turn that is to end with its last reader waits
	// for one to come back; 0 means 5 s (reference runtime.md 5.2).
	CancelGrace time.Duration
	// Telemetry is told what turns do; nil is told nothing.
	Telemetry *telemetry.Hub
	// Redact takes secret values out of the text of a failure before its user
	// sees it; nil takes none.
	Redact func(string) string
	// Alert tells an operator what should not happen; nil tells nobody.
	Alert func(context.Context, Alert)
	Log   zerolog.Logger
}

// Alert is something an operator should see.
type Alert struct {
	Action  string // "turn.given_up"
	Message string
}

// Service runs turns. It is safe for concurrent use.
type Service struct {
	cfg      Config
	life     context.Context //nolint:containedctx // the life of all turns; ended by Stop
	stop     context.CancelCauseFunc
	sessions sessionLocks
	pace     pace
	slots    chan struct{} // one for each background turn that runs without its job
	opened   chan struct{} // closed by openOnce: recovered turns may go on
	openOnce sync.Once
	total    atomic.Int64
	owed     sync.WaitGroup // ends that are still to be stored

	mu   sync.Mutex // guards the fields that follow
	live map[string]*live
	idle []chan struct{} // closed when the table becomes empty
}

// New returns a service whose turns live until ctx ends or Stop is called.
func New(ctx context.Context, cfg Config) *Service {
	if cfg.CancelGrace == 0 {
		cfg.CancelGrace = defaultCancelGrace
	}
	if cfg.Redact == nil {
		cfg.Redact = func(text string) string { return text }
	}
	life, stop := context.WithCancelCause(ctx)
	return &Service{
		cfg: cfg, life: life, stop: stop, slots: make(chan struct{}, backgroundTurns),
		opened: make(chan struct{}), live: make(map[string]*live),
	}
}

// The modes a caller may ask for.
const (
	Auto  = manifest.ModeAuto
	Sync  = manifest.ModeSync
	Async = manifest.ModeAsync
)

// Request is a message to answer.
type Request struct {
	ID           string // "" for a generated one
	UserID       string
	SessionID    string // "" for a new session
	AgentID      string // "" for routing
	Message      string
	Files        []chat.File
	Click        *chat.UIReply // a choice made in a widget; nil for none
	Mode         string        // "", Auto, Sync or Async; "" means the manifest's
	Stream       bool          // frames are wanted; wins over Mode
	OnDisconnect string        // "" means the manifest's
	// Threshold replaces async.threshold_seconds when not nil.
	Threshold *time.Duration
	// IdempotencyKey lets the caller repeat the request; BodyHash and Route
	// ("POST /v1/chat") belong to it.
	IdempotencyKey string
	Route          string
	BodyHash       [32]byte
	// TraceParent is the traceparent header of the request, "" for none.
	TraceParent string
}

// Begin accepts a turn: when it returns, the request is durable. A repeated
// idempotency key joins or replays the request it names. Faults:
// AGENT_NOT_FOUND, CONFLICT.
func (s *Service) Begin(ctx context.Context, r Request) (*Handle, error) {
	if r.AgentID != "" && !s.cfg.Overlord.Knows(r.AgentID) {
		return nil, fault.Errorf(fault.NotFound, "AGENT_NOT_FOUND", "no agent with id %q in this formation", r.AgentID)
	}
	t := s.newTurn(r)
	var key *request.Key
	if r.IdempotencyKey != "" {
		key = &request.Key{Scope: keyScope(r), BodyHash: r.BodyHash}
	}
	accepted, err := s.accept(ctx, t, key)
	if err != nil {
		return nil, err
	}
	h := &Handle{ID: t.rec.ID, UserID: t.rec.UserID, SessionID: t.rec.SessionID, IdempotencyKey: r.IdempotencyKey, service: s, live: t}
	if accepted.Existing {
		rec := accepted.Record
		h.ID, h.SessionID, h.Replayed = rec.ID, rec.SessionID, true
		h.live, h.rec = s.find(rec.ID), &rec
	}
	h.Async = accepted.Record.Mode == request.ModeAsync
	h.threshold = s.threshold(r)
	return h, nil
}

func (s *Service) newTurn(r Request) *live {
	now := s.cfg.DB.Now()
	rec := request.Record{
		ID: r.ID, UserID: r.UserID, SessionID: r.SessionID, Status: request.Processing, Mode: s.mode(r),
		OnDisconnect: r.OnDisconnect, AgentID: r.AgentID, Message: r.Message, LaunchID: s.cfg.DB.LaunchID(),
		CreatedAt: now.Truncate(time.Millisecond).UTC(),
	}
	if rec.ID == "" {
		rec.ID = s.cfg.NewID("req_")
	}
	if r.Click != nil {
		rec.Click = encodeClick(r.Click)
	}
	if rec.OnDisconnect == "" {
		rec.OnDisconnect = s.cfg.Async.OnDisconnect
	}
	fresh := rec.SessionID == ""
	if fresh {
		rec.SessionID = s.cfg.NewID("sess_")
	}
	t := s.newLive(rec, r.TraceParent)
	t.sent, t.filed, t.fresh = r.Files, len(r.Files) > 0, fresh
	if rec.Mode == request.ModeStream {
		t.stream = newStream(s, &t.rec)
		t.stream.writing = true // the commit of the request takes the first frames along
		t.stream.progress(chat.Event{Type: chat.Progress, Stage: chat.StageInit, Content: "Request accepted"})
	}
	return t
}

// mode decides how a request is answered: a caller that streams gets a stream,
// else the mode asked for, else an estimate above the threshold makes it async.
func (s *Service) mode(r Request) string {
	mode := r.Mode
	if mode == "" {
		mode = s.cfg.Async.Mode
	}
	switch {
	case r.Stream:
		return request.ModeStream
	case mode == Async:
		return request.ModeAsync
	case mode == Auto && s.cfg.Async.EnableEstimation && s.pace.estimate(r.AgentID) >= s.thresholdOf(r):
		return request.ModeAsync
	}
	return request.ModeSync
}

func (s *Service) thresholdOf(r Request) time.Duration {
	if r.Threshold != nil {
		return *r.Threshold
	}
	return s.cfg.Async.Threshold
}

// threshold is how long a caller waits before it is answered with an
// acceptance; 0 means until the end.
func (s *Service) threshold(r Request) time.Duration {
	if r.Mode == Sync || (r.Mode == "" && s.cfg.Async.Mode == Sync) {
		return 0
	}
	return s.thresholdOf(r)
}

// accept commits the request and starts it. The live turn is entered in the
// table before the commit, so that a duplicate finds it, and so does its job:
// the engine may fetch that before this process hears of its own commit.
func (s *Service) accept(ctx context.Context, t *live, key *request.Key) (request.Accepted, error) {
	if err := ctx.Err(); err != nil {
		return request.Accepted{}, err
	}
	var accepted request.Accepted
	entered := false // only the store's writer and, after it, this goroutine look
	done, first := make(chan error, 1), &batch{stream: t.stream}
	s.cfg.DB.Submit(func(tx *store.Tx) (err error) {
		if accepted, err = request.Accept(tx, t.rec, key); err != nil || accepted.Existing {
			return err
		}
		if err := request.SaveFiles(tx, t.rec.ID, t.sent); err != nil {
			return err
		}
		t.rivals = tx.Siblings()
		if !entered {
			s.enter(t)
			entered = true
		}
		if t.rec.Mode == request.ModeAsync {
			return s.cfg.Jobs.EnqueueTx(context.WithoutCancel(ctx), tx, JobKind, t.rec.ID)
		}
		return first.append(tx)
	}, func(err error) {
		if err == nil && !accepted.Existing {
			first.show()
		} else if entered {
			s.leave(t)
		}
		done <- err
	})
	if err := <-done; err != nil {
		t.discard()
		return request.Accepted{}, err
	}
	if accepted.Existing {
		t.discard()
		return accepted, nil
	}
	t.sent = nil // many turns may wait, and files are large
	s.total.Add(1)
	s.queue(t)
	go roomy(func() { s.run(t) })
	return accepted, nil
}

func (s *Service) enter(t *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[t.rec.ID] = t
}

func (s *Service) find(id string) *live {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id]
}

// leave takes an ended turn out of the table; its record tells the rest.
func (s *Service) leave(t *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[t.rec.ID] == t {
		delete(s.live, t.rec.ID)
	}
	if len(s.live) > 0 {
		return
	}
	for _, c := range s.idle {
		close(c)
	}
	s.idle = nil
}

// whenIdle returns a channel that is closed once no turn is open.
func (s *Service) whenIdle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	if len(s.live) == 0 {
		close(c)
	} else {
		s.idle = append(s.idle, c)
	}
	return c
}

// Counts returns how many turns were accepted by this process and how many are open.
func (s *Service) Counts() (total, active int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total.Load(), int64(len(s.live))
}

// run is the life of one turn in this process: wait for the session's turn,
// recall, answer, record. The session's next turn begins when the record is
// there to be recalled.
func (s *Service) run(t *live) {
	defer s.leave(t)
	defer func() { t.queued.leave() }()
	answer, err := s.answer(t)
	s.end(t, answer, err)
}

func (s *Service) answer(t *live) (answer chat.Answer, err error) {
	defer func() { // the turns of others go on
		if v := recover(); v != nil {
			s.log(&t.rec).Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("a turn panicked")
			answer, err = chat.Answer{}, fault.New(fault.Internal, "", "internal error")
		}
	}()
	release, err := s.admit(t)
	if err != nil {
		return chat.Answer{}, err
	}
	defer release()
	t.tell("chat.started", "The turn has begun", nil)
	ctx, in := t.ctx, overlord.Input{
		Message: t.rec.Message, AgentID: t.rec.AgentID, Journal: &journal{service: s, turn: t},
		Deltas: t.stream != nil && s.cfg.Response.Deltas(), UserID: t.rec.UserID,
		SessionID: t.rec.SessionID, RequestID: t.rec.ID, Click: t.click(),
	}
	if err := s.readFiles(t); err != nil {
		return chat.Answer{}, err
	}
	in.Files = t.files
	if !t.fresh {
		if err := s.remind(t, &in); err != nil {
			return chat.Answer{}, fmt.Errorf("recall: %w", err)
		}
	}
	begin := time.Now()
	answer, err = s.cfg.Overlord.Handle(ctx, in, t.sink)
	if err == nil {
		s.pace.note(t.rec.AgentID, time.Since(begin))
	}
	return answer, err
}

// remind gives a message what it follows in its session.
func (s *Service) remind(t *live, in *overlord.Input) error {
	past, err := s.recall(t)
	if err != nil {
		return err
	}
	in.History, in.LastAgent = past.History, past.LastAgent
	t.waited = past.Pending != nil
	if !t.waited || s.cfg.DB.Now().Sub(past.Asked) > s.cfg.Async.ResultTTL { // nobody answers that any more
		return nil
	}
	t.pending, in.Pending = past.Pending, past.Pending
	in.Waiting = func(ctx context.Context) ([]chat.File, error) {
		return request.Files(ctx, s.cfg.DB, past.Pending.RequestID)
	}
	return nil
}
