package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Bounds of the history of exits.
const (
	maxExits      = 100  // of a formation; older ones are dropped
	maxExitLines  = 20   // of an exit's stderr; the last ones stay
	maxExitText   = 2000 // bytes of a reason or line
	truncatedMark = "…"
)

// Exit tells how one process of a formation ended.
type Exit struct {
	Time   time.Time
	Code   int    // -1 when a signal ended it or nobody knows
	Signal string // "" when none did
	Reason string // for people
	Launch string // id of the launch, "" when it is not known
	Served time.Duration
	Stderr []string // its last lines
}

// AddExit appends to a formation's history, of which the newest 100 are kept.
func (r *Registry) AddExit(ctx context.Context, id string, e Exit) error {
	lines := make([]string, 0, maxExitLines)
	for _, line := range e.Stderr[max(0, len(e.Stderr)-maxExitLines):] {
		lines = append(lines, bounded(line))
	}
	stderr, err := json.Marshal(lines)
	if err != nil {
		return fmt.Errorf("record exit of %s: %w", id, err)
	}
	err = r.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx,
			`INSERT INTO exits (formation_id, time, code, signal, reason, launch, served, stderr)
			 SELECT id, ?, ?, ?, ?, ?, ?, ? FROM formations WHERE id = ?`,
			e.Time.UnixMilli(), e.Code, e.Signal, bounded(e.Reason), e.Launch, e.Served.Milliseconds(), string(stderr), id)
		if err := expectRow(res, err, ErrNotFound); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx,
			`DELETE FROM exits WHERE formation_id = ?1 AND seq <=
			 (SELECT seq FROM exits WHERE formation_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, id, maxExits)
		return err
	})
	if err != nil {
		return fmt.Errorf("record exit of %s: %w", id, err)
	}
	return nil
}

// bounded cuts what a child may have made long, and keeps it text.
func bounded(s string) string {
	if len(s) > maxExitText {
		s = s[:maxExitText] + truncatedMark
	}
	return strings.ToValidUTF8(s, "�")
}

// Exits returns at most limit ends of a formation's processes, the newest
// first. A limit of 0 or below means all that are kept.
func (r *Registry) Exits(ctx context.Context, id string, limit int) ([]Exit, error) {
	if limit <= 0 {
		limit = maxExits
	}
	rows, err := r.read.QueryContext(ctx,
		`SELECT time, code, signal, reason, launch, served, stderr FROM exits
		 WHERE formation_id = ? ORDER BY seq DESC LIMIT ?`, id, limit)
	if err != nil {
		return nil, fmt.Errorf("read exits of %s: %w", id, err)
	}
	defer rows.Close()
	all := []Exit{}
	for rows.Next() {
		var e Exit
		var at, served int64
		var stderr string
		if err := rows.Scan(&at, &e.Code, &e.Signal, &e.Reason, &e.Launch, &served, &stderr); err != nil {
			return nil, fmt.Errorf("read exits of %s: %w", id, err)
		}
		if err := json.Unmarshal([]byte(stderr), &e.Stderr); err != nil {
			return nil, fmt.Errorf("read exits of %s: %w", id, err)
		}
		e.Time, e.Served = fromMillis(at), time.Duration(served)*time.Millisecond
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read exits of %s: %w", id, err)
	}
	return all, nil
}
