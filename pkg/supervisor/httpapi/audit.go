package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// auditLine is a record as it stands in the audit log file: that of the chain
// and what helps to read it.
type auditLine struct {
	registry.AuditRecord
	Hash       string `json:"hash"`
	PrevHash   string `json:"prev_hash"`
	Method     string `json:"method"`
	Path       string `json:"path"`
	DurationMS int64  `json:"duration_ms"`
}

// append commits rec to the chain and writes it to the log file.
func (a *API) append(c echo.Context, rec registry.AuditRecord, start time.Time) {
	ctx := context.WithoutCancel(c.Request().Context())
	rec, err := a.cfg.Registry.AppendAudit(ctx, rec)
	if err != nil {
		a.cfg.Log.Error().Err(err).Str("action", rec.Action).Str("request_id", rec.RequestID).Msg("a call is not in the audit")
		return
	}
	a.writeLine(auditLine{
		AuditRecord: rec, Hash: rec.Hash, PrevHash: rec.PrevHash, Method: c.Request().Method,
		Path: c.Request().URL.Path, DurationMS: a.now().Sub(start).Milliseconds(),
	})
}

func (a *API) writeLine(line auditLine) {
	if a.cfg.AuditLog == nil {
		return
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = a.cfg.AuditLog.Write(append(text, '\n'))
	}
	if err != nil {
		a.cfg.Log.Error().Err(err).Msg("the audit log file is not written")
	}
}

// refusalWindow is how long refused calls of one peer make one record.
const refusalWindow = time.Minute

// maxRefusers bounds the peers that are remembered; beyond it every refusal of
// a further peer is recorded under the address "many".
const maxRefusers = 10000

// refusals counts refused calls, so that a stranger who keeps trying cannot
// fill the disk with audit records: the first of a peer and minute is recorded
// at once, the others as one count when the minute is over.
type refusals struct {
	mu    sync.Mutex // guards peers
	peers map[string]*refusal
}

type refusal struct {
	since time.Time
	more  int // beyond the first
}

func newRefusals() *refusals { return &refusals{peers: make(map[string]*refusal)} }

// first tells whether a refusal of peer gets a record of its own.
func (r *refusals) first(peer string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.peers[peer]; ok {
		p.more++
		return false
	}
	if len(r.peers) >= maxRefusers {
		if p, ok := r.peers["many"]; ok {
			p.more++
			return false
		}
		peer = "many"
	}
	r.peers[peer] = &refusal{since: now}
	return true
}

// due removes and returns the counts whose minute is over at now.
func (r *refusals) due(now time.Time) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int)
	for peer, p := range r.peers {
		if now.Sub(p.since) < refusalWindow {
			continue
		}
		delete(r.peers, peer)
		if p.more > 0 {
			out[peer] = p.more
		}
	}
	return out
}

// Run records coalesced refusals until ctx ends, and then what is left of them.
func (a *API) Run(ctx context.Context) {
	tick := time.NewTicker(refusalWindow / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.flushRefusals(ctx, a.now())
		case <-ctx.Done():
			a.flushRefusals(context.WithoutCancel(ctx), a.now().Add(refusalWindow))
			return
		}
	}
}

func (a *API) flushRefusals(ctx context.Context, now time.Time) {
	for peer, more := range a.refusals.due(now) {
		rec, err := a.cfg.Registry.AppendAudit(ctx, registry.AuditRecord{
			Action: actionUnknown, RemoteAddr: peer, Status: 401, Result: fmt.Sprintf("refused, %d more", more),
		})
		if err != nil {
			a.cfg.Log.Error().Err(err).Str("peer", peer).Int("calls", more).Msg("refused calls are not in the audit")
			continue
		}
		a.writeLine(auditLine{AuditRecord: rec, Hash: rec.Hash, PrevHash: rec.PrevHash})
	}
}
