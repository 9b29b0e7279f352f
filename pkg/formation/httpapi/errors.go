package httpapi

import (
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// errorWords gives a kind of fault its default code and its type (reference
// runtime.md 1.3).
func errorWords(kind fault.Kind) (code, typ string) {
	switch kind {
	case fault.Invalid:
		return "INVALID_REQUEST", "error.validation"
	case fault.Unauthenticated:
		return "UNAUTHORIZED", "error.authentication"
	case fault.Forbidden:
		return "FORBIDDEN", "error.authorization"
	case fault.NotFound:
		return "RESOURCE_NOT_FOUND", "error.not_found"
	case fault.NotAllowed:
		return "METHOD_NOT_ALLOWED", "error.validation"
	case fault.NotImplemented:
		return "METHOD_NOT_FOUND", "error.validation"
	case fault.Conflict:
		return "CONFLICT", "error.validation"
	case fault.Gone:
		return "GONE", "error.validation"
	case fault.TooLarge:
		return "PAYLOAD_TOO_LARGE", "error.validation"
	case fault.Unprocessable:
		return "INVALID_PARAMS", "error.validation"
	case fault.RateLimited:
		return "RATE_LIMITED", "error.processing"
	case fault.Unavailable:
		return "SYSTEM_OVERLOAD", "error.processing"
	case fault.Failed, fault.BadGateway, fault.Canceled:
		return "INTERNAL_ERROR", "error.processing"
	default:
		return "INTERNAL_ERROR", "error.internal"
	}
}

// renderError sends err in the formation's error envelope.
func (a *api) renderError(c echo.Context, err error) {
	f := fault.From(err)
	if gone := removedRoute(c.Request().Method, c.Request().URL.Path); gone != nil &&
		(f.Kind == fault.NotFound || f.Kind == fault.NotAllowed) {
		f = gone
		c.Response().Header().Del(echo.HeaderAllow)
	}
	if seconds, ok := f.Data["retry_after"].(int); ok {
		c.Response().Header().Set(echo.HeaderRetryAfter, strconv.Itoa(seconds))
	}
	e, status := a.failure(f, httpx.RequestID(c))
	if err := httpx.JSON(c, status, e); err != nil {
		a.cfg.Log.Error().Err(err).Msg("encode error reply")
	}
}

// failure is the envelope of a fault, and its status.
func (a *api) failure(f *fault.Error, requestID string) (*envelope, int) {
	code, typ := errorWords(f.Kind)
	if f.Name != "" {
		code = f.Name
	}
	message := a.cfg.Redact(f.Message)
	var data any = struct{}{}
	if len(f.Data) > 0 {
		data = f.Data
	}
	return &envelope{
		Object: objectError, Timestamp: a.cfg.Now().UnixMilli(), Type: typ,
		Request: requestInfo{ID: requestID},
		Error:   &errorInfo{Code: code, Message: message, Data: data},
		Data:    struct{}{}, Code: code, Message: message,
	}, f.Kind.HTTPStatus()
}

// The routes that older clients changed a running formation with (reference
// runtime.md 2.4). A path that ends in / stands for everything below it.
var (
	removedMethods = []struct {
		path    string
		methods []string
	}{
		{"/v1/agents", []string{"POST", "PATCH", "DELETE"}},
		{"/v1/agents/", []string{"POST", "PATCH", "DELETE"}},
		{"/v1/mcp", []string{"PATCH"}},
		{"/v1/mcp/servers", []string{"POST", "PATCH", "DELETE"}},
		{"/v1/mcp/servers/", []string{"POST", "PATCH", "DELETE"}},
		{"/v1/llm/settings", []string{"PATCH"}},
		{"/v1/memory", []string{"PATCH"}},
		{"/v1/async", []string{"PATCH"}},
		{"/v1/scheduler", []string{"PATCH"}},
	}
	removedPaths = []struct{ path, method string }{
		{"/v1/mcp/tools/call", "POST"},
		{"/v1/a2a/outbound", "PATCH"},
		{"/v1/logging/streams/", "PATCH"},
	}
)

const removedMessage = "A running formation is not changed through its API: change the formation files and redeploy"

// removedRoute returns the fault of a removed route, nil for all others.
func removedRoute(method, path string) *fault.Error {
	for _, r := range removedPaths {
		if r.method == method && matches(r.path, path) {
			return fault.New(fault.NotImplemented, "", removedMessage)
		}
	}
	for _, r := range removedMethods {
		if matches(r.path, path) && slices.Contains(r.methods, method) {
			return fault.New(fault.NotAllowed, "", removedMessage)
		}
	}
	return nil
}

func matches(pattern, path string) bool {
	if strings.HasSuffix(pattern, "/") {
		return len(path) > len(pattern) && strings.HasPrefix(path, pattern)
	}
	return path == pattern
}
