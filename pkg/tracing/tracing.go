// Package tracing sends spans to an OpenTelemetry collector over OTLP/HTTP, when
// the environment names one.
//
// It promises that a collector that cannot be reached is told in the log, once,
// and changes nothing else. Which spans there are is decided by its callers: the
// supervisor's assembly and formation/telemetry/otlp.
package tracing

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
)

// Config says whose spans are sent.
type Config struct {
	// Env looks up the standard OTEL_* variables that decide whether anything is
	// sent. The exporter and the sampler read the others of the process. nil
	// finds none.
	Env func(name string) (string, bool)
	// About are the attributes of the resource; those of the environment win.
	About []attribute.KeyValue
	// Flush bounds the sending of the last spans.
	Flush time.Duration
	// Who goes on when spans are not sent, for the log: "the supervisor".
	Who string
	Log zerolog.Logger
}

// Tracing sends spans. It is safe for concurrent use; a nil one sends nothing.
type Tracing struct {
	provider *sdktrace.TracerProvider
	sender   *sender
	flush    time.Duration
}

// Open returns nil unless the environment names a collector
// (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or asks for
// spans (OTEL_TRACES_EXPORTER=otlp). OTEL_TRACES_EXPORTER=none and
// OTEL_SDK_DISABLED=true turn it off. It connects to nothing.
func Open(ctx context.Context, cfg Config) (*Tracing, error) {
	if on, err := wanted(cfg.Env); err != nil || !on {
		return nil, err
	}
	client, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(cfg.About...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	s := &sender{SpanExporter: client, who: cfg.Who, log: cfg.Log, quit: make(chan struct{})}
	return &Tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(s), sdktrace.WithResource(about)), s, cfg.Flush}, nil
}

func wanted(env func(string) (string, bool)) (bool, error) {
	value := func(name string) string {
		if env == nil {
			return ""
		}
		v, found := env(name)
		if !found { // then v means nothing
			return ""
		}
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

// Provider is nil when nothing is traced.
func (t *Tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close sends what waits, for Flush at most, and leaves nothing behind. A
// collector that is away must not make a good end or a reload look bad, so this
// cannot fail.
func (t *Tracing) Close(ctx context.Context) {
	if t == nil {
		return
	}
	late := time.AfterFunc(t.flush, func() { close(t.sender.quit) })
	defer late.Stop()
	if err := t.provider.Shutdown(context.WithoutCancel(ctx)); err != nil {
		t.sender.log.Warn().Err(err).Msg("the last traces are not sent")
	}
}

// sender is an exporter that tells the log when sending begins to fail and when
// it works again, instead of OpenTelemetry's global error handler.
type sender struct {
	sdktrace.SpanExporter
	who    string
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
		s.log.Warn().Err(err).Int("spans", len(spans)).Msg("traces are not sent; " + s.who + " goes on without them")
	case err == nil && s.failed:
		s.log.Info().Msg("traces are sent again")
	}
	s.failed = err != nil
	return nil
}
