// Package spool keeps audit and alert records in the formation's store until
// the supervisor has acknowledged them, so that none is lost while no
// supervisor is there. The assembly passes them on over the control protocol.
package spool

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/store"
)

// The kinds of records; the numbers are those of the control protocol.
const (
	Audit = 1
	Alert = 2
)

// batchSize bounds how many records are read at once.
const batchSize = 100

// Record is one audit or alert record.
type Record struct {
	Seq     uint64 // set by the store, ascending
	Time    time.Time
	Kind    int // Audit or Alert
	Action  string
	Actor   string
	Result  string
	Message string
	Detail  []byte // JSON object or nil
}

// Spool is the queue of one formation. It is safe for concurrent use.
type Spool struct {
	db *store.DB

	mu   sync.Mutex    // guards the field that follows
	wake chan struct{} // closed and replaced when records were added
}

// New returns the spool of an open store.
func New(db *store.DB) *Spool { return &Spool{db: db, wake: make(chan struct{})} }

// Add stores a record; it is durable when Add returns. A zero Time is now.
func (s *Spool) Add(ctx context.Context, r Record) error {
	if err := s.db.Write(ctx, func(tx *store.Tx) error { return s.Put(tx, r) }); err != nil {
		return err
	}
	s.Wake()
	return nil
}

// Put stores a record in the commit that it is about; Wake after it.
func (s *Spool) Put(tx *store.Tx, r Record) error {
	if r.Time.IsZero() {
		r.Time = s.db.Now()
	}
	_, err := tx.Exec(`INSERT INTO records (time, kind, action, actor, result, message, detail) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		r.Time.UnixMilli(), r.Kind, r.Action, r.Actor, r.Result, r.Message, r.Detail)
	if err != nil {
		return fmt.Errorf("store %s record: %w", r.Action, err)
	}
	return nil
}

// Wake lets followers look again: another process on the same store may have
// added records.
func (s *Spool) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.wake)
	s.wake = make(chan struct{})
}

// Follow calls sink for every record after a sequence number, then for new
// ones, until ctx ends or sink fails. What sink took is removed.
func (s *Spool) Follow(ctx context.Context, after uint64, sink func(Record) error) error {
	if err := s.follow(ctx, after, sink); ctx.Err() == nil {
		return err
	}
	return nil // whatever a read made of the end of ctx
}

func (s *Spool) follow(ctx context.Context, after uint64, sink func(Record) error) error {
	if err := s.remove(ctx, after); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		wake := s.wake
		s.mu.Unlock()
		records, err := s.read(ctx, after)
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := sink(r); err != nil {
				return err
			}
			after = r.Seq
		}
		if len(records) > 0 {
			if err := s.remove(ctx, after); err != nil {
				return err
			}
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Spool) read(ctx context.Context, after uint64) ([]Record, error) {
	rows, err := s.db.Query(ctx, `SELECT seq, time, kind, action, actor, result, message, detail FROM records
		WHERE seq > ? ORDER BY seq LIMIT ?`, int64(after), batchSize)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		var r Record
		var at int64
		if err := rows.Scan(&r.Seq, &at, &r.Kind, &r.Action, &r.Actor, &r.Result, &r.Message, &r.Detail); err != nil {
			return nil, fmt.Errorf("read records: %w", err)
		}
		r.Time = time.UnixMilli(at).UTC()
		out = append(out, r)
	}
	return out, rows.Err()
}

func (s *Spool) remove(ctx context.Context, upTo uint64) error {
	if upTo == 0 {
		return nil
	}
	if err := s.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(`DELETE FROM records WHERE seq <= ?`, int64(upTo))
		return err
	}); err != nil {
		return fmt.Errorf("remove acknowledged records: %w", err)
	}
	return nil
}
