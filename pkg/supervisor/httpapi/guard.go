package httpapi

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

const (
	// maxBody bounds the bodies of management routes but the bundle, in bytes.
	maxBody = 1 << 20
	// bodyTimeout is how long such a body may take to arrive.
	bodyTimeout = 30 * time.Second

	actionUnknown = "unknown"
)

// call is one /rpc request on its way through the guard.
type call struct {
	action string
	bundle bool // its body is streamed
	claim  *auth.Claim
	body   []byte // of every route but those that take a bundle
	events bool   // the answer is a stream although the client did not say so
	// outcome is the fault of an operation that was answered as an event
	// stream, so with HTTP status 200, or in an envelope of its own, or whose
	// answer broke off.
	outcome error
}

// errPanicked is what the audit knows of a call whose handler panicked.
var errPanicked = errors.New("the handler panicked")

// callKey is where the call of a request is kept.
const callKey = "call"

func callOf(c echo.Context) *call { return c.Get(callKey).(*call) }

// guard lets only signed requests through to /rpc and records each.
func (a *API) guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !isRPC(c) {
			return next(c)
		}
		start := a.now()
		k := &call{action: actionUnknown}
		if r := a.byRoute[c.Request().Method+c.Path()]; r != nil {
			k.action, k.bundle = r.action, r.bundle
		}
		c.Set(callKey, k)
		recorded := false
		defer func() {
			if !recorded { // the handler panicked, which is answered elsewhere
				k.outcome = errPanicked
				a.record(c, k, nil, start)
			}
		}()
		err := a.authorize(c, k)
		if err == nil {
			err = named(next(c))
		}
		recorded = true
		a.record(c, k, err, start)
		if err != nil && c.Response().Committed {
			// The answer broke off; its end must not look like one.
			k.outcome = err
			panic(http.ErrAbortHandler)
		}
		return err
	}
}

// named gives the router's own errors their name: no such path, or no such
// method on it.
func named(err error) error {
	if _, ok := errors.AsType[*echo.HTTPError](err); ok {
		return fault.Wrap(fault.NotFound, "NotFound", "Endpoint not found", err)
	}
	return err
}

// authorize checks the request's signature and the caller's rate. Where the
// signature covers a body which is streamed, the handler finishes the claim.
func (a *API) authorize(c echo.Context, k *call) (err error) {
	k.claim, err = a.cfg.Auth.Check(c.Request())
	if a.limiter != nil {
		if limited := a.limit(c, a.caller(c, k.claim)); limited != nil {
			return limited
		}
	}
	if err != nil || k.bundle {
		return err
	}
	if k.body, err = readBody(c); err != nil {
		return err
	}
	return k.claim.Finish(sha256.Sum256(k.body), int64(len(k.body)))
}

// caller names who is counted. A claim that is not verified yet names a key that
// exists, at least: the count of that key at this address, and no other, can be
// used up without its secret.
func (a *API) caller(c echo.Context, claim *auth.Claim) string {
	if claim == nil {
		return "- " + a.network(c)
	}
	return "key " + claim.KeyID + " " + a.network(c)
}

func readBody(c echo.Context) ([]byte, error) {
	req := c.Request()
	if req.ContentLength == 0 {
		return nil, nil
	}
	rc := http.NewResponseController(c.Response().Writer)
	if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
		defer rc.SetReadDeadline(time.Time{}) //nolint:errcheck // it could be set
	}
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(req.Body, maxBody+1))
	switch {
	case n > maxBody:
		return nil, fault.Errorf(fault.TooLarge, "PayloadTooLarge", "the body is larger than %d bytes", maxBody)
	case err != nil:
		return nil, fault.Wrap(fault.Invalid, "ValidationError", "the body could not be read", err)
	}
	return buf.Bytes(), nil
}

// record appends the audit record of a finished call. It happens although the
// client may have left. Refusals, of which a stranger can cause any number, are
// coalesced.
func (a *API) record(c echo.Context, k *call, err error, start time.Time) {
	rec := registry.AuditRecord{
		Action: k.action, ID: formationID(c), RequestID: httpx.RequestID(c),
		RemoteAddr: httpx.PeerAddr(c.Request(), a.cfg.TrustedProxies),
		Status:     c.Response().Status, Result: "success",
	}
	if k.claim != nil && k.claim.Verified() {
		rec.Actor = k.claim.KeyID
	}
	if err = errors.Join(err, k.outcome); err != nil {
		rec.Result, rec.Status = "failure", toFailure(err).Code
	}
	a.count(rec.Status, a.now().Sub(start))
	if rec.Status == http.StatusUnauthorized || rec.Status == http.StatusTooManyRequests {
		rec.Result = "refused"
		if !a.refusals.first(refuser{rec.RemoteAddr, rec.Status}, start) {
			return
		}
	}
	a.append(c, rec, start)
}

func (a *API) count(status int, took time.Duration) {
	if a.cfg.Calls != nil {
		a.cfg.Calls.Observe(status, took)
	}
}

// formationID is the formation that a call is about, "" for none.
func formationID(c echo.Context) string {
	id := httpx.Param(c, "id")
	if id == "" {
		id = c.Request().Header.Get(headerFormationID)
	}
	return id[:min(len(id), 64)]
}
