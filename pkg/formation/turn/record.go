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
// could not be.
const settleEvery = time.Second

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

// unstored is what a caller gets instead of an answer that was not stored.
func unstored(err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err
	}
	return fault.Wrap(fault.Internal, "", "the answer could not be stored", err)
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
	b, trace := t.stream.last(), t.close(e.Status, e.AgentID, t.err)
	did := false // not the result, which is read while settle tries on
	commit := func(tx *store.Tx) (err error) {
		if did, err = request.Finish(tx, e); err != nil {
			return err
		}
		if did && more != nil {
			if err := more(tx); err != nil {
				return err
			}
		}
		if t.journalled.Load() {
			if err := request.DropSteps(tx, t.rec.ID); err != nil {
				return err
			}
		}
		if t.filed && e.Status != request.AwaitingClarification {
			if err := request.DropFiles(tx, t.rec.ID); err != nil {
				return err
			}
		}
		if trace != nil {
			if err := request.SaveTrace(tx, t.rec.ID, trace); err != nil {
				return err
			}
		}
		if b.closing = closing; !did {
			b.closing = t.stream.cancelled(e.At.Sub(t.rec.CreatedAt))
		}
		return b.append(tx)
	}
	// The turn's context may have ended: how it ended is stored all the same.
	if err = s.cfg.DB.Write(context.WithoutCancel(t.ctx), commit); err == nil {
		b.show()
		return did, nil
	}
	if !final(err) {
		s.owed.Go(func() { s.settle(t, commit) })
	}
	return false, err
}

// settle tries to store the end of a turn until it is, so that a full disk
// leaves no request open for ever. The next process resumes what is still owed
// when this one stops.
func (s *Service) settle(t *live, commit func(*store.Tx) error) {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.life.Done():
			return
		}
		err := s.cfg.DB.Write(context.WithoutCancel(s.life), commit)
		if err == nil {
			s.log(&t.rec).Info().Msg("stored the end of a turn after all")
		}
		if err == nil || final(err) {
			return
		}
	}
}

// final tells that this process will not write again.
func final(err error) bool { return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrClosed) }
