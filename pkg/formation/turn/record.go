package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// settleEvery is how often the end of a turn is tried to be stored once it
// could not be. From so many tries on, an end that something else than a lack of
// room keeps from being stored is stored as a failure instead.
const (
	settleEvery = time.Second
	settleTries = 10
)

// end writes how a turn ended and tells everybody who waits. A turn that was
// cut because the process stops stays open: it resumes.
func (s *Service) end(t *live, answer chat.Answer, err error) {
	var lost error // the end could not be stored
	switch cause := context.Cause(t.ctx); {
	case errors.Is(cause, ErrStopping) && err != nil:
		t.err = errGoesOn()
		t.close(interrupted, "", t.err)
	case errors.Is(cause, errCancelled):
		lost = s.endCancelled(t)
	case err != nil:
		lost = s.endFailed(t, err)
	default:
		lost = s.endCompleted(t, answer)
	}
	if lost != nil && final(lost) {
		t.reply, t.err, lost = nil, errGoesOn(), nil
	}
	if lost != nil {
		s.log(&t.rec).Error().Err(lost).Msg("store the end of a turn; it is tried again")
		if t.err == nil {
			t.reply, t.err = nil, unstored(lost)
		}
		lost = t.err
	}
	t.stream.close(lost)
	s.tellEnd(t)
	t.cancel(nil)
	close(t.done)
	t.trace.Close() // nobody waits for an exporter
}

// log returns a logger whose records can be found by whose turn they are of.
func (s *Service) log(rec *request.Record) *zerolog.Logger {
	log := s.cfg.Log.With().Str("request", rec.ID).Str("user", rec.UserID).Str("session", rec.SessionID).Logger()
	return &log
}

const textUnstored = "the answer could not be stored"

// unstored is what a caller gets instead of an answer that was not stored.
func unstored(err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err
	}
	return fault.Wrap(fault.Internal, "", textUnstored, err)
}

// endCompleted records an answer. One that is a question leaves the request
// waiting for its user.
func (s *Service) endCompleted(t *live, answer chat.Answer) (lost error) {
	now := s.cfg.DB.Now().Truncate(time.Millisecond).UTC()
	message := t.remembered(answer)
	t.reply = t.replyOf(answer, now)
	stored, err := t.reply.encode()
	if err != nil {
		return s.endFailed(t, fmt.Errorf("encode reply: %w", err))
	}
	closing, err := t.stream.completed(t.reply, now.Sub(t.rec.CreatedAt))
	if err != nil {
		return s.endFailed(t, err)
	}
	ended, err := s.commitEnd(t, request.End{
		ID: t.rec.ID, Status: t.reply.Status, AgentID: answer.AgentID, Result: answer.Content, Reply: stored, At: now,
	}, closing, func(tx *store.Tx) error {
		if t.waited {
			if err := s.settleWaiting(tx, t, answer, now); err != nil {
				return err
			}
		}
		return s.cfg.Memory.Record(tx, memory.Turn{
			UserID: t.rec.UserID, SessionID: t.rec.SessionID, RequestID: t.rec.ID, AgentID: answer.AgentID,
			Message: message, Answer: answer.Content, AskedAt: t.rec.CreatedAt, AnsweredAt: now, Question: answer.Question,
		})
	})
	switch {
	case err == nil && !ended: // it was cancelled between the answer and this commit
		t.reply = cancelledReply(t.rec, now)
	case err == nil && len(answer.Widgets) > 0:
		t.tell("ui.emitted", "The answer comes with widgets", map[string]any{"widgets": len(answer.Widgets), "types": typesOf(answer.Widgets)})
	}
	return err
}

func typesOf(widgets []chat.Widget) []string {
	types := make([]string, len(widgets))
	for i := range widgets {
		types[i] = string(widgets[i].Type)
	}
	return types
}

// settleWaiting ends what waited in the session for the question that was
// pending: with the answer, when this turn brought it; else they are cancelled.
// When the answer is the next question, they wait on with this turn.
func (s *Service) settleWaiting(tx *store.Tx, t *live, answer chat.Answer, now time.Time) error {
	end := request.End{ID: t.rec.ID, Status: request.Cancelled, At: now}
	switch {
	case answer.Settles != chat.SettlesAnswered:
	case answer.Question != nil:
		return nil
	default:
		end.Status, end.AgentID, end.Result = request.Completed, answer.AgentID, answer.Content
		if len(answer.Widgets) > 0 {
			var err error
			if end.Reply, err = json.Marshal(answer.Widgets); err != nil {
				return fmt.Errorf("encode widgets: %w", err)
			}
		}
	}
	return request.Settle(tx, t.rec.UserID, t.rec.SessionID, end)
}

// endFailed records why a turn has no answer. The text of a fault is meant for
// its reader; anything else stays in the log.
func (s *Service) endFailed(t *live, err error) (lost error) {
	f := fault.From(err)
	message, code := s.cfg.Redact(f.Message), f.Name
	if code == "" {
		code = "INTERNAL_ERROR"
	}
	s.log(&t.rec).Warn().Err(err).AnErr("cause", errors.Unwrap(f)).Msg("turn failed")
	t.err = err
	ended, err := s.commitEnd(t, request.End{
		ID: t.rec.ID, Status: request.Failed, Error: message, ErrorCode: code,
		At: s.cfg.DB.Now(),
	}, t.stream.failed(message, classOf(f), code), nil)
	if err == nil && !ended {
		t.err, t.reply = nil, cancelledReply(t.rec, s.cfg.DB.Now())
	}
	return err
}

// endCancelled ends the stream of a turn whose record says cancelled already.
func (s *Service) endCancelled(t *live) (lost error) {
	now := s.cfg.DB.Now().Truncate(time.Millisecond).UTC()
	t.reply = cancelledReply(t.rec, now)
	_, lost = s.commitEnd(t, request.End{ID: t.rec.ID, Status: request.Cancelled, At: now}, t.stream.cancelled(now.Sub(t.rec.CreatedAt)), nil)
	return lost
}

// commitEnd writes the end of a turn in one commit. It reports false when the
// record had ended before: only a cancellation does that, and the stream is told
// to its readers as a cancelled one. A commit that fails is tried again in the
// background.
func (s *Service) commitEnd(t *live, e request.End, closing []Frame, more func(*store.Tx) error) (ended bool, err error) {
	end := &ending{turn: t, end: e, closing: closing, more: more, batch: t.stream.last(), trace: t.close(e.Status, e.AgentID, t.err)}
	// The turn's context may have ended: how it ended is stored all the same.
	if err = s.cfg.DB.Write(context.WithoutCancel(t.ctx), end.commit); err == nil {
		end.batch.show()
		return end.first, nil
	}
	if !final(err) {
		s.owed.Go(func() { s.settle(end) })
	}
	return false, err
}

// ending is what the last commit of a turn writes.
type ending struct {
	turn    *live
	end     request.End
	closing []Frame
	more    func(*store.Tx) error // nil for nothing
	batch   *batch
	trace   []byte // nil for none
	first   bool   // the record had not ended before
}

func (e *ending) commit(tx *store.Tx) (err error) {
	t, id := e.turn, e.end.ID
	if e.first, err = request.Finish(tx, e.end); err != nil {
		return err
	}
	if e.first && e.more != nil {
		if err := e.more(tx); err != nil {
			return err
		}
	}
	if t.journalled.Load() {
		if err := request.DropSteps(tx, id); err != nil {
			return err
		}
	}
	if t.filed && e.end.Status != request.AwaitingClarification {
		if err := request.DropFiles(tx, id); err != nil {
			return err
		}
	}
	if e.trace != nil {
		if err := request.SaveTrace(tx, id, e.trace); err != nil {
			return err
		}
	}
	if e.batch.closing = e.closing; !e.first {
		e.batch.closing = t.stream.cancelled(e.end.At.Sub(t.rec.CreatedAt))
	}
	return e.batch.append(tx)
}

// settle tries to store the end of a turn until it is, so that a full disk
// leaves no request open for ever. The next process resumes what is still owed
// when this one stops.
func (s *Service) settle(e *ending) {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for try := 1; ; try++ {
		select {
		case <-ticker.C:
		case <-s.life.Done():
			return
		}
		err := s.cfg.DB.Write(context.WithoutCancel(s.life), e.commit)
		if err == nil {
			s.log(&e.turn.rec).Info().Msg("stored the end of a turn after all")
		}
		if err == nil || final(err) {
			return
		}
		if try < settleTries || fault.KindOf(err) == fault.Unavailable {
			continue
		}
		if s.cfg.DB.Write(context.WithoutCancel(s.life), e.failed().commit) == nil {
			s.log(&e.turn.rec).Error().Err(err).Msg("the end of a turn can't be stored; it has failed")
			return
		}
	}
}

// failed is the end of a turn whose own end can't be stored, which is a failure
// already as far as its caller knows. It writes nothing that it need not.
func (e *ending) failed() *ending {
	const code = "INTERNAL_ERROR"
	return &ending{
		turn: e.turn, batch: e.batch, closing: e.turn.stream.failed(textUnstored, "error.processing", code),
		end: request.End{ID: e.end.ID, Status: request.Failed, Error: textUnstored, ErrorCode: code, At: e.end.At},
	}
}

// final tells that this process will not write again.
func final(err error) bool { return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrClosed) }
