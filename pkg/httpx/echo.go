package httpx

import (
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
)

// Config says how one side's door behaves.
type Config struct {
	Log zerolog.Logger
	// MaxBody is the largest request body in bytes of any route; 0 means no
	// limit here. Bind takes its own, usually smaller, limit.
	MaxBody int64
	// OnError renders err in the side's own envelope. err is always a
	// *fault.Error or wraps one (as *BodyError does), never an error of echo.
	// It is not called when the response has begun.
	OnError func(c echo.Context, err error)
	// HeaderPrefix is the word in X-<prefix>-* header names, "SVC" when empty.
	HeaderPrefix string
	// CORSHeaders are request headers that a browser may send from another
	// origin beside those that both doors know.
	CORSHeaders []string
	// AccessLog writes one record per request.
	AccessLog bool
	// Draining, when set and true, makes every answer close its connection, so
	// that clients move to the successor before this process stops.
	Draining func() bool
}

// NewEcho returns an echo instance without routes. Every request passes one
// middleware, which recovers panics, answers OPTIONS, sets the CORS headers
// and turns errors into calls of cfg.OnError.
func NewEcho(cfg Config) *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	d := &door{cfg: cfg, allowHeaders: []string{allowedHeaders(cfg)}}
	// Errors are rendered inside the middleware; this one only sees what echo
	// itself reports outside of it, which today is nothing.
	e.HTTPErrorHandler = func(err error, c echo.Context) { d.fail(&scope{Context: c}, err) }
	e.Use(d.middleware)
	return e
}

// HeaderName returns the full name of a header that follows the prefix, as
// people read it: HeaderName("", "User-Id") = "X-SVC-User-Id". Code that looks
// it up often keeps http.CanonicalHeaderKey of it.
func HeaderName(prefix, name string) string {
	if prefix == "" {
		prefix = "SVC"
	}
	return "X-" + prefix + "-" + name
}

// allowedHeaders is the list of request headers for browsers (reference
// server.md 3.1).
func allowedHeaders(cfg Config) string {
	names := []string{
		"Content-Type", "Authorization", "Accept", "Last-Event-ID", "X-Formation-ID", "X-Formation-Version",
		"X-Distillery-ID", "X-Distillery-Signature", "X-Distillery-Timestamp",
	}
	for _, name := range []string{
		"Admin-Key", "Client-Key", "User-Id", "Idempotency-Key", "Session-Id", "SDK", "Client", "App",
		"Key-ID", "Timestamp", "Signature",
	} {
		names = append(names, HeaderName(cfg.HeaderPrefix, name))
	}
	return strings.Join(append(names, cfg.CORSHeaders...), ", ")
}

// RequestID returns the id of the request: "req_" and 21 random characters,
// made at the first call, or what SetRequestID said.
func RequestID(c echo.Context) string {
	s, ok := c.(*scope)
	if !ok {
		return NewID("req_")
	}
	if s.id == "" {
		s.id = NewID("req_")
	}
	return s.id
}

// SetRequestID replaces the id of the request, for routes whose caller chooses it.
func SetRequestID(c echo.Context, id string) {
	if s, ok := c.(*scope); ok {
		s.id = id
	}
}

// Param returns the decoded path parameter name. echo leaves it encoded when
// the path holds an escape that matters, such as %2F.
func Param(c echo.Context, name string) string {
	v := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return v
	}
	if u, err := url.PathUnescape(v); err == nil {
		return u
	}
	return v
}

// scope is the context that handlers see: echo's own and the request's id.
// It exists because echo.Context.Set would cost a map per request.
type scope struct {
	echo.Context
	id string
}

// A pool of empty objects has no identity.
var scopes = sync.Pool{New: func() any { return new(scope) }}

// Header values shared by all responses, constants that Go cannot express: the
// header map holds slices. net/http only reads them.
var (
	anyValue     = []string{"*"}
	allowMethods = []string{"GET, POST, PUT, PATCH, DELETE, OPTIONS"}
	maxAge       = []string{"600"}
	closeValue   = []string{"close"}
)

type door struct {
	cfg          Config
	allowHeaders []string
}

func (d *door) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		s := scopes.Get().(*scope)
		s.Context, s.id = c, ""
		var start time.Time
		if d.cfg.AccessLog {
			start = time.Now()
		}
		defer func() {
			d.recovered(s, recover())
			if d.cfg.AccessLog {
				d.logAccess(s, start)
			}
			s.Context = nil
			scopes.Put(s)
		}()
		d.serve(s, next)
		return nil
	}
}

// serve answers one request; a panic passes through it.
func (d *door) serve(s *scope, next echo.HandlerFunc) {
	req, res := s.Request(), s.Response()
	h := res.Header()
	h["Access-Control-Allow-Origin"] = anyValue
	if d.cfg.Draining != nil && d.cfg.Draining() {
		h["Connection"] = closeValue
	}
	if req.Method == http.MethodOptions {
		h["Access-Control-Allow-Methods"] = allowMethods
		h["Access-Control-Allow-Headers"] = d.allowHeaders
		h["Access-Control-Max-Age"] = maxAge
		res.WriteHeader(http.StatusOK)
		return
	}
	h["Access-Control-Expose-Headers"] = anyValue
	// An earlier stream on this connection may have left its write deadline.
	_ = http.NewResponseController(res.Writer).SetWriteDeadline(time.Time{})
	if limit := d.cfg.MaxBody; limit > 0 && (req.ContentLength < 0 || req.ContentLength > limit) {
		req.Body = http.MaxBytesReader(res.Writer, req.Body, limit)
	}
	if slashInParam(s) {
		d.fail(s, echo.ErrNotFound)
		return
	}
	if err := next(s); err != nil {
		d.fail(s, err)
	}
}

// slashInParam tells that echo let the last parameter of a route swallow
// further path segments: /v1/requests/a/b is no request called "a/b".
func slashInParam(c echo.Context) bool {
	if strings.HasSuffix(c.Path(), "*") {
		return false
	}
	for _, v := range c.ParamValues() {
		if strings.IndexByte(v, '/') >= 0 {
			return true
		}
	}
	return false
}

// fail logs what has to be looked at and lets the side render the error.
func (d *door) fail(s *scope, err error) {
	err = asFault(err)
	if fault.KindOf(err) == fault.Internal && s.Request().Context().Err() != nil {
		err = fault.Wrap(fault.Canceled, "", "the client closed the connection", err)
	}
	if fault.KindOf(err) == fault.Internal {
		cause := err
		if u := errors.Unwrap(fault.From(err)); u != nil {
			cause = u
		}
		d.cfg.Log.Error().Err(cause).Str("request_id", RequestID(s)).
			Str("method", s.Request().Method).Str("path", s.Request().URL.Path).Msg("request failed")
	}
	if fault.KindOf(err) == fault.TooLarge {
		s.Response().Header()["Connection"] = closeValue // the rest is not worth waiting for
	}
	if !s.Response().Committed && d.cfg.OnError != nil {
		d.cfg.OnError(s, err)
	}
}

// recovered ends a request whose handler panicked. A response that has begun
// can only be cut, which http.ErrAbortHandler does.
func (d *door) recovered(s *scope, r any) {
	if r == nil {
		return
	}
	if err, ok := r.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(r)
	}
	d.cfg.Log.Error().Interface("panic", r).Str("request_id", RequestID(s)).
		Str("method", s.Request().Method).Str("path", s.Request().URL.Path).
		Bytes("stack", debug.Stack()).Msg("handler panicked")
	if s.Response().Committed {
		panic(http.ErrAbortHandler)
	}
	if d.cfg.OnError != nil {
		d.cfg.OnError(s, fault.New(fault.Internal, "", "internal error"))
	}
}

// logAccess writes the record of a finished request. The query is left out: it
// may carry personal data.
func (d *door) logAccess(s *scope, start time.Time) {
	d.cfg.Log.Info().Str("request_id", RequestID(s)).Str("method", s.Request().Method).
		Str("path", s.Request().URL.Path).Int("status", s.Response().Status).
		Int64("bytes", s.Response().Size).Dur("duration_ms", time.Since(start)).Msg("request")
}

// asFault gives the errors of echo and net/http their meaning.
func asFault(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(big.Limit)
	}
	var he *echo.HTTPError
	if !errors.As(err, &he) {
		return fault.Wrap(fault.Internal, "", "internal error", err)
	}
	switch he.Code {
	case http.StatusNotFound:
		return fault.Wrap(fault.NotFound, "", "Endpoint not found", err)
	case http.StatusMethodNotAllowed:
		return fault.Wrap(fault.NotAllowed, "", "Method not allowed", err)
	default:
		return fault.Wrap(fault.Internal, "", "internal error", err)
	}
}
