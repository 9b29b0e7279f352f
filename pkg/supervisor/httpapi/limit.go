package httpapi

import (
	"container/list"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// RateLimit bounds how often one caller may ask. The zero value is no bound.
//
// Management calls are counted per key and peer address: a key that is used
// from two hosts has both shares. A call that names no known key counts for its
// address alone. Requests to formations are counted per address, apart from the
// management calls, since their keys are known to the formation only. An IPv6
// address stands for its /64 network, which is what one customer gets. /ping,
// /health, /metrics and /docs are not counted.
type RateLimit struct {
	PerMinute int // 0 is no bound
	// Burst is how many may come at once; 0 is PerMinute.
	Burst int
}

// maxCallers bounds the callers that are remembered. Beyond it the one that has
// been silent the longest is forgotten.
const maxCallers = 10000

// limiter is a token bucket for each caller. nil limits nothing.
type limiter struct {
	limit  rate.Limit
	burst  int
	refill time.Duration // after so long a silent caller's bucket is full again

	mu      sync.Mutex // guards what follows
	callers map[string]*list.Element
	recent  *list.List // of *caller, the latest first
}

type caller struct {
	name   string
	bucket *rate.Limiter
	last   time.Time
}

func newLimiter(r RateLimit) *limiter {
	if r.PerMinute <= 0 {
		return nil
	}
	if r.Burst <= 0 {
		r.Burst = r.PerMinute
	}
	perSecond := float64(r.PerMinute) / 60
	return &limiter{
		limit: rate.Limit(perSecond), burst: r.Burst,
		refill:  time.Duration(float64(r.Burst) / perSecond * float64(time.Second)),
		callers: make(map[string]*list.Element), recent: list.New(),
	}
}

// wait returns how long name has to wait before it may ask, 0 when it may now.
func (l *limiter) wait(name string, now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(now)
	at, known := l.callers[name]
	if !known {
		at = l.recent.PushFront(&caller{name: name, bucket: rate.NewLimiter(l.limit, l.burst)})
		l.callers[name] = at
	}
	l.recent.MoveToFront(at)
	c := at.Value.(*caller)
	c.last = now
	r := c.bucket.ReserveN(now, 1)
	delay := r.DelayFrom(now)
	if delay > 0 {
		r.CancelAt(now)
	}
	return delay
}

// forget drops callers whose bucket is full again, which a new one would be
// too, and makes room for one. mu is held.
func (l *limiter) forget(now time.Time) {
	for at := l.recent.Back(); at != nil; at = l.recent.Back() {
		c := at.Value.(*caller)
		if now.Sub(c.last) < l.refill && len(l.callers) < maxCallers {
			return
		}
		l.recent.Remove(at)
		delete(l.callers, c.name)
	}
}

// limit refuses a caller that asks too often, and tells when to come again.
func (a *API) limit(c echo.Context, name string) error {
	delay := a.limiter.wait(name, a.now())
	if delay == 0 {
		return nil
	}
	seconds := int(math.Ceil(delay.Seconds()))
	c.Response().Header().Set("Retry-After", strconv.Itoa(seconds))
	return fault.Errorf(fault.RateLimited, "RateLimited",
		"too many requests; try again in %d s (server.limits.requests_per_minute)", seconds)
}

// limitProxied counts requests to formations.
func (a *API) limitProxied(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := a.byRoute[c.Request().Method+c.Path()]
		if a.limiter == nil || isRPC(c) || r != nil && r.handler != nil {
			return next(c)
		}
		if err := a.limit(c, "proxy "+a.network(c)); err != nil {
			return err
		}
		return next(c)
	}
}

// network is the peer address of a request, the /64 of an IPv6 address.
func (a *API) network(c echo.Context) string {
	return httpx.PeerNetwork(c.Request(), a.cfg.TrustedProxies)
}
