package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// AuditCheck is what a walk over the whole chain found.
type AuditCheck struct {
	Valid    bool  `json:"valid"`
	Count    int64 `json:"count"`     // records that are there
	FirstSeq int64 `json:"first_seq"` // 0 when there is none
	LastSeq  int64 `json:"last_seq"`
	// BrokenAt is the first sequence number whose record is missing, was changed
	// or does not follow the one before; nil when there is none.
	BrokenAt *int64 `json:"broken_at"`
}

// verifyBatch is how many records are held in memory, and read in one
// transaction, at a time.
const verifyBatch = 500

// VerifyAudit walks the chain as it is at the moment of the call: every record
// is hashed anew, follows its predecessor without a gap from the first one on,
// and says the same as the columns that are searched. The database remembers the
// last number it gave out, so records cut off at the end are missed too. A
// chain that is broken is no error.
func (r *Registry) VerifyAudit(ctx context.Context) (AuditCheck, error) {
	var check AuditCheck
	var given int64
	err := r.read.QueryRowContext(ctx, `SELECT count(*), COALESCE(min(seq), 0), COALESCE(max(seq), 0),
		COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'audit'), 0) FROM audit`).
		Scan(&check.Count, &check.FirstSeq, &check.LastSeq, &given)
	if err != nil {
		return AuditCheck{}, fmt.Errorf("verify audit: %w", err)
	}
	w := auditWalk{prev: genesis, last: check.LastSeq}
	for !w.broken && w.seq < check.LastSeq {
		if err := w.batch(ctx, r.read); err != nil {
			return AuditCheck{}, fmt.Errorf("verify audit: %w", err)
		}
	}
	if !w.broken && w.seq < given {
		w.seq, w.broken = w.seq+1, true
	}
	if w.broken {
		check.BrokenAt = &w.seq
	}
	check.Valid = !w.broken
	return check, nil
}

// auditWalk is a place in the chain. seq is the last number that was found
// right or, when broken, the first that was not.
type auditWalk struct {
	seq, last int64
	prev      string
	broken    bool
}

// auditRow is a record as it is stored.
type auditRow struct {
	seq, time           int64
	actor, action, id   string
	status              int
	record, prev, chain string
}

// batch reads on and stops at the first fault. A table without a row below
// last has lost them between the calls, which is a fault as well.
func (w *auditWalk) batch(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `SELECT seq, time, actor, action, id, status, record, prev_hash, hash
		FROM audit WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?`, w.seq, w.last, verifyBatch)
	if err != nil {
		return err
	}
	defer rows.Close()
	from := w.seq
	for rows.Next() && !w.broken {
		var r auditRow
		err := rows.Scan(&r.seq, &r.time, &r.actor, &r.action, &r.id, &r.status, &r.record, &r.prev, &r.chain)
		if err != nil {
			return err
		}
		w.step(r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if w.seq == from && !w.broken {
		w.seq, w.broken = w.seq+1, true
	}
	return nil
}

func (w *auditWalk) step(r auditRow) {
	w.seq++
	if r.seq != w.seq || r.prev != w.prev || r.chain != chainHash(r.prev, []byte(r.record)) || !r.agrees() {
		w.broken = true
		return
	}
	w.prev = r.chain
}

// agrees tells whether the searched columns say what the hashed text says.
func (r auditRow) agrees() bool {
	var rec AuditRecord
	if json.Unmarshal([]byte(r.record), &rec) != nil {
		return false
	}
	at, err := time.Parse(time.RFC3339, rec.Time)
	return err == nil && at.UnixMilli() == r.time && rec.Seq == r.seq && rec.Actor == r.actor &&
		rec.Action == r.action && rec.ID == r.id && rec.Status == r.status
}
