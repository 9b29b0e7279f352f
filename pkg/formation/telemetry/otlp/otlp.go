// Package otlp sends ended traces to an OpenTelemetry collector over OTLP/HTTP,
// in the words of the GenAI semantic conventions.
//
// It does nothing unless the environment names a collector. Traces are handed
// over when their turn has ended, so a turn never waits for it; what a
// collector does not take in time is dropped. What users, models and tools said
// is never sent. Only the assembly imports it.
package otlp

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/version"
)

// flushTime bounds the sending of the last spans.
const flushTime = 2 * time.Second

// Config says whose spans are sent.
type Config struct {
	// Env looks up the standard OTEL_* variables that decide whether anything is
	// sent. The exporter and the sampler read the others of the process.
	Env         func(name string) (string, bool)
	FormationID string
	LaunchID    string
	Log         zerolog.Logger
}

// Exporter sends traces. It is safe for concurrent use; a nil Exporter sends
// nothing.
type Exporter struct {
	provider *sdktrace.TracerProvider
	sender   *sender
}

// wanted tells whether the environment asks for spans, as the supervisor's own
// tracing understands it.
func wanted(env func(string) (string, bool)) (bool, error) {
	value := func(name string) string {
		if env == nil {
			return ""
		}
		v, _ := env(name)
		return v
	}
	exporter := value("OTEL_TRACES_EXPORTER")
	named := value("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch {
	case exporter == "none", value("OTEL_SDK_DISABLED") == "true", exporter == "" && !named:
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, want otlp or none", exporter)
	}
	return true, nil
}

// Open returns nil unless the environment names a collector
// (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or asks for
// spans (OTEL_TRACES_EXPORTER=otlp). It connects to nothing.
func Open(ctx context.Context, cfg Config) (*Exporter, error) {
	if on, err := wanted(cfg.Env); err != nil || !on {
		return nil, err
	}
	client, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", cfg.FormationID), attribute.String("service.namespace", "formations"),
		attribute.String("service.version", version.Version), attribute.String("service.instance.id", cfg.LaunchID),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	s := &sender{SpanExporter: client, log: cfg.Log, quit: make(chan struct{})}
	return &Exporter{sdktrace.NewTracerProvider(sdktrace.WithBatcher(s), sdktrace.WithResource(about)), s}, nil
}

// Export hands an ended trace over. It does not wait for the collector.
func (e *Exporter) Export(t *telemetry.Trace) {
	if e == nil {
		return
	}
	send(e.provider.Tracer("formation"), t)
}

// Close sends what waits, for two seconds at most. A collector that is away
// must not make a good end look bad, so this cannot fail.
func (e *Exporter) Close(ctx context.Context) {
	if e == nil {
		return
	}
	late := time.AfterFunc(flushTime, func() { close(e.sender.quit) })
	defer late.Stop()
	if err := e.provider.Shutdown(context.WithoutCancel(ctx)); err != nil {
		e.sender.log.Warn().Err(err).Msg("the last traces are not sent")
	}
}

// sender tells the log when sending begins to fail and when it works again,
// instead of OpenTelemetry's global error handler.
type sender struct {
	sdktrace.SpanExporter
	log    zerolog.Logger
	quit   chan struct{} // closed when what is being sent has had its time
	failed bool          // the last time; spans are sent by one goroutine
}

// ExportSpans never fails: nobody could do anything about it.
func (s *sender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
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
		s.log.Warn().Err(err).Int("spans", len(spans)).Msg("traces are not sent; the formation goes on without them")
	case err == nil && s.failed:
		s.log.Info().Msg("traces are sent again")
	}
	s.failed = err != nil
	return nil
}
