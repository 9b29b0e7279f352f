package turn

import (
	"sync"
	"time"
)

// paceWeight is the share of the newest duration in the running mean.
const paceWeight = 0.2

// pace estimates how long a turn will take from how long turns took lately:
// an exponential mean per explicitly named agent, and one of routed turns.
// Nothing known means fast.
type pace struct {
	mu   sync.Mutex // guards mean
	mean map[string]time.Duration
}

func (p *pace) note(agentID string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == nil {
		p.mean = make(map[string]time.Duration)
	}
	old, ok := p.mean[agentID]
	if !ok {
		p.mean[agentID] = took
		return
	}
	p.mean[agentID] = old + time.Duration(paceWeight*float64(took-old))
}

func (p *pace) estimate(agentID string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mean[agentID]
}
