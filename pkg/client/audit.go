package client

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// AuditFilter chooses records of the audit log; a zero field chooses all.
type AuditFilter struct {
	Since, Until time.Time
	Actor        string // the id of a key
	Action       string
	ID           string // of a formation
	// Limit is how many of the newest; 0 means 100, the server gives at most 1000.
	Limit int
}

// AuditEntry is one record of the audit log.
type AuditEntry struct {
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Actor     string    `json:"actor"`
	Action    string    `json:"action"`
	ID        string    `json:"id"` // of the formation, "" for the supervisor itself
	Result    string    `json:"result"`
	Status    int       `json:"status"`
	RequestID string    `json:"request_id"`
	// RemoteAddr is where the call came from.
	RemoteAddr string `json:"remote_addr"`
	Hash       string `json:"hash"`
	PrevHash   string `json:"prev_hash"`
}

// Audit returns records of management calls, newest first.
func (s *Server) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	c := newCall(http.MethodGet, "rpc", "audit")
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			c.query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	for name, value := range map[string]string{"actor": f.Actor, "action": f.Action, "id": f.ID} {
		if value != "" {
			c.query.Set(name, value)
		}
	}
	if f.Limit > 0 {
		c.query.Set("limit", strconv.Itoa(f.Limit))
	}
	var out struct {
		Entries []AuditEntry `json:"entries"`
	}
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return out.Entries, nil
}

// AuditCheck is what the supervisor found when it went over the chain.
type AuditCheck struct {
	Valid    bool  `json:"valid"`
	Count    int64 `json:"count"`
	FirstSeq int64 `json:"first_seq"`
	LastSeq  int64 `json:"last_seq"`
	// BrokenAt is the first record that does not fit the one before, nil when
	// the chain is whole.
	BrokenAt *int64 `json:"broken_at"`
}

// VerifyAudit lets the supervisor check the chain of its audit log. A broken
// chain is a result, not an error.
func (s *Server) VerifyAudit(ctx context.Context) (*AuditCheck, error) {
	c := newCall(http.MethodGet, "rpc", "audit", "verify")
	c.timeout = DeployTimeout // every record is read
	var out AuditCheck
	if err := s.caller.json(ctx, c, &out); err != nil {
		return nil, err
	}
	return &out, nil
}
