package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/openapi"
)

// newTracer returns nil, which traces nothing, for nil.
func newTracer(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		return nil
	}
	return p.Tracer("github.com/agentformation/service/pkg/supervisor/httpapi")
}

// traced makes a span of a management call, as a child of the caller's when it
// sent a traceparent. The names are those of OpenTelemetry's HTTP conventions.
func (a *API) traced(next echo.HandlerFunc) echo.HandlerFunc {
	if a.tracer == nil {
		return next
	}
	return func(c echo.Context) (err error) {
		if !isRPC(c) {
			return next(c)
		}
		r := c.Request()
		route := "" // of an unknown route
		if a.byRoute[r.Method+c.Path()] != nil {
			route = openapi.Template(c.Path())
		}
		attributes := []attribute.KeyValue{
			attribute.String("http.request.method", knownMethod(r.Method)),
			attribute.String("url.path", r.URL.Path),
			attribute.String("client.address", httpx.PeerAddr(r, a.cfg.TrustedProxies)),
			attribute.String("svc.request.id", httpx.RequestID(c)),
		}
		if route != "" {
			attributes = append(attributes, attribute.String("http.route", route))
		}
		if id := formationID(c); id != "" {
			attributes = append(attributes, attribute.String("svc.formation.id", id))
		}
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := a.tracer.Start(ctx, spanName(r, route),
			trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
		// Also when the answer breaks off, which is a panic.
		defer func() {
			a.endSpan(c, span, err)
			span.End()
		}()
		c.SetRequest(r.WithContext(ctx))
		return next(c)
	}
}

// endSpan says what came of the call. A failure that is the call's outcome came
// when the answer had begun, or in an envelope of its own: the status is that of
// the answer.
func (a *API) endSpan(c echo.Context, span trace.Span, err error) {
	status := c.Response().Status
	if k, _ := c.Get(callKey).(*call); k != nil {
		if k.claim != nil && k.claim.Verified() {
			span.SetAttributes(attribute.String("svc.key.id", k.claim.KeyID))
		}
		if err == nil {
			err = k.outcome
		}
	}
	if err != nil && !c.Response().Committed { // an error is answered after us
		status = toFailure(err).Code
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	if err == nil {
		return
	}
	f := toFailure(err)
	span.SetAttributes(attribute.String("error.type", f.Error))
	if f.Code >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, f.Message)
	}
}

func spanName(r *http.Request, route string) string {
	if route == "" {
		return knownMethod(r.Method)
	}
	return r.Method + " " + route
}

// knownMethod keeps what a client invents out of names.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "_OTHER"
}
