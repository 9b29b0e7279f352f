package httpapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// refusalWindow is how long refused calls of one peer make one record.
const refusalWindow = time.Minute

// maxRefusers bounds the peers that are remembered; beyond it every refusal of
// a further peer is recorded under the address "many".
const maxRefusers = 10000

// refusals counts refused calls, so that a stranger who keeps trying cannot
// fill the disk with audit records: the first of a peer, kind and minute is
// recorded at once, the others as one count when the minute is over.
type refusals struct {
	mu    sync.Mutex // guards peers
	peers map[refuser]*refusal
}

// refuser is who was refused, and with which status: 401 or 429.
type refuser struct {
	peer   string
	status int
}

type refusal struct {
	since time.Time
	more  int // beyond the first
}

func newRefusals() *refusals { return &refusals{peers: make(map[refuser]*refusal)} }

// first tells whether a refusal gets a record of its own.
func (r *refusals) first(who refuser, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.peers[who]; ok {
		p.more++
		return false
	}
	if len(r.peers) >= maxRefusers {
		who.peer = "many"
		if p, ok := r.peers[who]; ok {
			p.more++
			return false
		}
	}
	r.peers[who] = &refusal{since: now}
	return true
}

// due removes and returns the counts whose minute is over at now.
func (r *refusals) due(now time.Time) map[refuser]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[refuser]int)
	for who, p := range r.peers {
		if now.Sub(p.since) < refusalWindow {
			continue
		}
		delete(r.peers, who)
		if p.more > 0 {
			out[who] = p.more
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
	for who, more := range a.refusals.due(now) {
		rec, err := a.cfg.Registry.AppendAudit(ctx, registry.AuditRecord{
			Action: actionUnknown, RemoteAddr: who.peer, Status: who.status, Result: fmt.Sprintf("refused, %d more", more),
		})
		if err != nil {
			a.cfg.Log.Error().Err(err).Str("peer", who.peer).Int("calls", more).Msg("refused calls are not in the audit")
			continue
		}
		a.writeLine(auditLine{AuditEntry: entryOf(rec)})
	}
}
