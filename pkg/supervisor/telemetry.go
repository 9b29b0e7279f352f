package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/version"
)

// spanFlush bounds the sending of the last spans at the end.
const spanFlush = 3 * time.Second

// tracing sends spans of the management calls to a collector. That it cannot be
// reached is told in the log and changes nothing else.
type tracing struct {
	provider *sdktrace.TracerProvider
	sender   *spanSender
}

// spanSender is an exporter that tells the log when sending begins to fail and
// when it works again, instead of OpenTelemetry's global error handler.
type spanSender struct {
	sdktrace.SpanExporter
	log    zerolog.Logger
	quit   chan struct{} // closed when what is being sent has had its time
	failed bool          // the last time; spans are sent by one goroutine
}

// ExportSpans never fails: nobody could do anything about it.
func (s *spanSender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- s.SpanExporter.ExportSpans(ctx, spans) }()
	var err error
	select {
	case err = <-sent:
	case <-s.quit:
		cancel()
		err = <-sent
	}
	switch {
	case err != nil && !s.failed:
		s.log.Warn().Err(err).Int("spans", len(spans)).Msg("traces are not sent; the supervisor goes on without them")
	case err == nil && s.failed:
		s.log.Info().Msg("traces are sent again")
	}
	s.failed = err != nil
	return nil
}

// openTracing returns nil unless the environment names a collector
// (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or asks for
// spans (OTEL_TRACES_EXPORTER=otlp). OTEL_TRACES_EXPORTER=none and
// OTEL_SDK_DISABLED=true turn it off. The exporter reads the other OTEL_*
// variables itself.
func (s *Supervisor) openTracing(ctx context.Context) (*tracing, error) {
	value := func(name string) string {
		if v, ok := s.cfg.LookupEnv(name); ok {
			return v
		}
		return ""
	}
	exporter := value("OTEL_TRACES_EXPORTER")
	named := value("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch {
	case exporter == "none", value("OTEL_SDK_DISABLED") == "true", exporter == "" && !named:
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, want otlp or none", exporter)
	}
	client, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "supervisor"), attribute.String("service.version", version.Version),
		attribute.String("service.instance.id", s.serverID()),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	sender := &spanSender{SpanExporter: client, log: s.log, quit: make(chan struct{})}
	return &tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(sender), sdktrace.WithResource(about)), sender}, nil
}

// tracer is nil when nothing is traced.
func (t *tracing) tracer() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// close sends what waits, for spanFlush at most, and leaves nothing behind. A
// collector that is away must not make a good end or a reload look bad, so this
// cannot fail.
func (t *tracing) close(ctx context.Context) {
	if t == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	late := time.AfterFunc(spanFlush, func() { close(t.sender.quit) })
	defer late.Stop()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.sender.log.Warn().Err(err).Msg("the last traces are not sent")
	}
}
