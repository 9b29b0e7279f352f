package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// AuditEntry is a record with its place in the chain.
type AuditEntry struct {
	AuditRecord
	Hash     string `json:"hash"`
	PrevHash string `json:"prev_hash"`
}

// AuditFilter chooses records. Zero fields choose all.
type AuditFilter struct {
	Since, Until time.Time // both inclusive, in milliseconds
	Actor        string    // key id
	Action       string
	ID           string // formation
	Limit        int    // 0 is 100
}

const defaultAuditLimit = 100

// Audit returns the newest records that f chooses, the newest first.
func (r *Registry) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	query, args := f.query()
	rows, err := r.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read audit: %w", err)
	}
	defer rows.Close()
	var out []AuditEntry
	for rows.Next() {
		var text string
		var e AuditEntry
		if err := rows.Scan(&text, &e.PrevHash, &e.Hash); err != nil {
			return nil, fmt.Errorf("read audit: %w", err)
		}
		if err := json.Unmarshal([]byte(text), &e.AuditRecord); err != nil {
			return nil, fmt.Errorf("read audit record: %w", err)
		}
		e.AuditRecord.Hash, e.AuditRecord.PrevHash = e.Hash, e.PrevHash
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read audit: %w", err)
	}
	return out, nil
}

func (f AuditFilter) query() (string, []any) {
	var where []string
	var args []any
	add := func(condition string, value any) {
		where = append(where, condition)
		args = append(args, value)
	}
	if !f.Since.IsZero() {
		add("time >= ?", f.Since.UnixMilli())
	}
	if !f.Until.IsZero() {
		add("time <= ?", f.Until.UnixMilli())
	}
	for _, equal := range []struct{ column, value string }{{"actor", f.Actor}, {"action", f.Action}, {"id", f.ID}} {
		if equal.value != "" {
			add(equal.column+" = ?", equal.value)
		}
	}
	query := "SELECT record, prev_hash, hash FROM audit"
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	if f.Limit <= 0 {
		f.Limit = defaultAuditLimit
	}
	return query + " ORDER BY seq DESC LIMIT ?", append(args, f.Limit)
}
