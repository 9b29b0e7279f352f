package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// retryAfter is what a client is told to wait, in seconds, when a formation is
// down: about as long as a restart takes.
const retryAfter = "5"

// envelope is that of every good reply.
type envelope[T any] struct {
	Success bool `json:"success"`
	Data    T    `json:"data"`
}

func reply[T any](c echo.Context, status int, data T) error {
	return httpx.JSON(c, status, envelope[T]{Success: true, Data: data})
}

// failure is the envelope of every error.
type failure struct {
	Success bool   `json:"success"`
	Error   string `json:"error"`
	Message string `json:"message"`
	Code    int    `json:"code"`
}

// renderError answers with err as the server's envelope. It is also what the
// proxy's own errors become.
func (a *API) renderError(c echo.Context, err error) {
	f := toFailure(err)
	a.hint(c, f.Code)
	if err := httpx.JSON(c, f.Code, f); err != nil {
		a.cfg.Log.Error().Err(err).Msg("an error reply could not be encoded")
	}
}

// hint tells beside an error when to come again, or how to prove who one is.
func (a *API) hint(c echo.Context, status int) {
	switch h := c.Response().Header(); status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", retryAfter)
		}
	case http.StatusUnauthorized:
		if h.Get("WWW-Authenticate") == "" {
			h.Set("WWW-Authenticate", a.challenge())
		}
	}
}

func (a *API) challenge() string { return a.cfg.HeaderPrefix + "-HMAC" }

// toFailure names err. A path that exists with another method is unknown too:
// the API has no name for it (server.md 1.2).
func toFailure(err error) failure {
	f := fault.From(err)
	out := failure{Error: f.Name, Message: f.Message, Code: f.Kind.HTTPStatus()}
	switch f.Kind {
	case fault.NotAllowed, fault.NotImplemented:
		return failure{Error: "NotFound", Message: "Endpoint not found", Code: http.StatusNotFound}
	case fault.Internal, fault.Failed:
		out.Error = orElse(f.Name, "InternalError")
	case fault.Invalid, fault.Unprocessable, fault.Conflict, fault.Gone:
		out.Error = orElse(f.Name, "ValidationError")
	case fault.Unauthenticated, fault.Forbidden:
		out.Error = orElse(f.Name, "Unauthorized")
	case fault.NotFound:
		out.Error = orElse(f.Name, "NotFound")
	case fault.TooLarge:
		out.Error = orElse(f.Name, "PayloadTooLarge")
	case fault.RateLimited:
		out.Error = orElse(f.Name, "RateLimited")
	case fault.BadGateway:
		out.Error = orElse(f.Name, "BadGateway")
	case fault.Unavailable, fault.Canceled:
		out.Error = orElse(f.Name, "FormationUnavailable")
	}
	return out
}

func orElse(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

func invalid(format string, args ...any) error {
	return fault.Errorf(fault.Invalid, "ValidationError", format, args...)
}
