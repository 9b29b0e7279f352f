package overlord

import (
	"crypto/sha256"
	"time"
)

// cached is a model's decision about a message.
type cached struct {
	decision Decision
	until    time.Time
}

func cacheKey(in Input) [32]byte { return sha256.Sum256([]byte(in.LastAgent + "\x00" + in.Message)) }

func (r *router) lookup(key [32]byte) (Decision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.cache[key]
	if !ok || !r.cfg.Now().Before(c.until) {
		return Decision{}, false
	}
	return c.decision, true
}

// store keeps a model's decision. A full cache is emptied: decisions are cheap
// to make again and an order of age would cost more than it saves.
func (r *router) store(key [32]byte, d Decision) {
	caching := r.formation.Overlord.Caching
	if !caching.Enabled {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		clear(r.cache)
	}
	r.cache[key] = cached{decision: d, until: r.cfg.Now().Add(caching.TTL)}
}
