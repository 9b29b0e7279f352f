package deploy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// followRecords takes a serving child's audit and alert records into the audit
// chain until that child or this service ends. A record is acknowledged when it
// is committed; one whose acknowledgement was lost comes again, under the same
// request id.
func (s *Service) followRecords(ctx context.Context, f *formation) {
	child, ok := f.mgr.Control()
	if !ok || !s.mayFollow() {
		return
	}
	go func() {
		defer s.followers.Done()
		err := child.Records(ctx, 0, func(r control.Record) error {
			return f.seen.once(r.Seq, func() error { return s.record(ctx, f.id, r) })
		})
		if err != nil && !errors.Is(err, control.ErrNoAnswer) && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("formation", f.id).Msg("the formation's records are not followed any more")
		}
	}()
}

// mayFollow counts a follower unless the service is going down.
func (s *Service) mayFollow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return false
	}
	s.followers.Add(1)
	return true
}

// seenRecords is how many records' numbers are remembered: more than two
// children can have on their way.
const seenRecords = 1000

// records remembers what was taken: while an update is in progress two children
// tell the same store's records.
type records struct {
	mu   sync.Mutex // held while a record is taken
	set  map[uint64]bool
	list []uint64 // those of set, the oldest first
}

// once takes a record unless that was done before.
func (r *records) once(seq uint64, take func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set[seq] {
		return nil
	}
	if err := take(); err != nil {
		return err
	}
	if r.set == nil {
		r.set = make(map[uint64]bool)
	}
	r.set[seq] = true
	if r.list = append(r.list, seq); len(r.list) > seenRecords {
		delete(r.set, r.list[0])
		r.list = r.list[1:]
	}
	return nil
}

func (s *Service) record(ctx context.Context, id string, r control.Record) error {
	if r.Kind == control.RecordAlert {
		s.log.Warn().Str("formation", id).Str("action", r.Action).Msg(r.Message)
	}
	_, err := s.cfg.Registry.AppendAudit(context.WithoutCancel(ctx), registry.AuditRecord{
		Action: r.Action, Actor: r.Actor, ID: id, Result: r.Result, RequestID: fmt.Sprintf("%s-%d", id, r.Seq),
	})
	if err == nil && r.Kind == control.RecordAlert {
		s.alertRecord(id, r)
	}
	return err
}
