package httpapi

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/mcpserver"
	"github.com/agentformation/service/pkg/formation/rate"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// limits are server.limits of the formation's file (reference runtime.md 7.3).
// Requests are counted per kind of key and user, those that name none together;
// what needs no key is free. A stream is one request, and a call of a tool is one
// of its route. Wrong keys are counted per address.
type limits struct {
	of            manifest.RateLimit
	admin, client *rate.Callers
	guesses       *rate.Guesses
	// near are the peers who are believed for whom they forward: the supervisor's
	// proxy is on this host.
	near []netip.Prefix
	now  func() time.Time
}

// newLimits returns nil when nothing is limited.
func newLimits(of manifest.RateLimit, now func() time.Time) *limits {
	if of.RequestsPerMinute <= 0 {
		return nil
	}
	return &limits{
		of: of, now: now,
		admin:   rate.NewCallers(of.RequestsPerMinute, of.Burst),
		client:  rate.NewCallers(of.RequestsPerMinute, of.Burst),
		guesses: rate.NewGuesses(of.RequestsPerMinute, of.Burst),
		near:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	}
}

// count counts a request of a user, or refuses it.
func (l *limits) count(admin bool, user string) error {
	callers := l.client
	if admin {
		callers = l.admin
	}
	if user == "" {
		user = defaultUser
	}
	wait := callers.Take(user, l.now())
	if wait <= 0 {
		return nil
	}
	seconds := rate.Seconds(wait)
	return fault.Errorf(fault.RateLimited, "RATE_LIMITED", "Too many requests: this formation takes %d a minute of each user; try again in %d s",
		l.of.RequestsPerMinute, seconds).With("retry_after", seconds)
}

// verdict is what the keys of a request came to.
type verdict struct {
	opens bool // one opens the route
	admin bool // that one is an administrator's
	wrong bool // one that was tried is none
}

// check counts wrong keys, and refuses an address from which too many came.
func (l *limits) check(r *http.Request, v verdict) error {
	if !v.opens && !v.wrong {
		return nil // it brought none
	}
	from := httpx.PeerNetwork(r, l.near)
	var wait time.Duration
	if v.wrong {
		wait = l.guesses.Wrong(from, l.now())
	} else {
		wait = l.guesses.Right(from, v.admin, l.now())
	}
	if wait <= 0 {
		return nil
	}
	seconds := rate.Seconds(wait)
	return fault.Errorf(fault.RateLimited, "RATE_LIMITED", "Too many wrong keys came from this address; try again in %d s", seconds).
		With("retry_after", seconds)
}

// due is a request that is not counted yet, since its body may name its user.
type due struct{ paid bool }

// pay counts a request whose user is known now.
func (a *api) pay(who caller) error {
	if who.due == nil || who.due.paid {
		return nil
	}
	who.due.paid = true
	return a.limits.count(who.admin, who.user)
}

// count counts a request whose user is known, also on a route that knows none. An
// id that can't be is nobody's.
func (a *api) count(c echo.Context, rule userRule, who caller) error {
	if rule == userNone {
		_ = a.identify(c, userOptional, &who) // looked at next
	}
	if checkUserID(who.user) != nil {
		who.user = ""
	}
	return a.limits.count(who.admin, who.user)
}

// countedLater answers a request that is counted as soon as its user is known.
// One whose body can't be read counts for the default user.
func (a *api) countedLater(c echo.Context, who caller, answer handler) error {
	who.due = &due{}
	err := answer(c, who)
	if err != nil {
		if over := a.pay(who); over != nil {
			return over
		}
	}
	return err
}

// nameUser takes the user that a body names when nothing else of the request did.
func (a *api) nameUser(who *caller, user string) error {
	if !who.named && user != "" {
		if err := checkUserID(user); err != nil {
			return err
		}
		who.user = user
	}
	return a.pay(*who)
}

// countMessage counts a message of the tool protocol that is no call of a tool:
// those are counted as requests of their routes.
func (a *api) countMessage(r *http.Request, who caller, body []byte) error {
	if a.limits == nil || !mcpserver.NeedsKey(body) || onlyCalls(body) {
		return nil
	}
	user := strings.TrimSpace(first(r.Header[a.head.userKey]))
	if checkUserID(user) != nil {
		user = ""
	}
	return a.limits.count(who.admin, user)
}

// onlyCalls tells that a body holds nothing but calls of tools.
func onlyCalls(body []byte) bool {
	var batch []map[string]json.RawMessage // names of members are exact in maps
	if json.Unmarshal(body, &batch) != nil {
		var one map[string]json.RawMessage
		if json.Unmarshal(body, &one) != nil {
			return false
		}
		batch = append(batch[:0], one)
	}
	return !slices.ContainsFunc(batch, func(m map[string]json.RawMessage) bool {
		var method string
		return json.Unmarshal(m["method"], &method) != nil || method != "tools/call"
	})
}
