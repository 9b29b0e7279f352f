package supervisor

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/version"
)

// spanFlush bounds the sending of the last spans at the end.
const spanFlush = 3 * time.Second

// tracing sends spans of the management calls to a collector.
type tracing struct{ provider *sdktrace.TracerProvider }

// openTracing returns nil unless the environment names a collector
// (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or asks for
// spans (OTEL_TRACES_EXPORTER=otlp). OTEL_TRACES_EXPORTER=none and
// OTEL_SDK_DISABLED=true turn it off. The exporter reads the other OTEL_*
// variables itself.
func openTracing(ctx context.Context, lookup func(string) (string, bool), serverID string) (*tracing, error) {
	value := func(name string) string {
		if v, ok := lookup(name); ok {
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
		attribute.String("service.instance.id", serverID),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	return &tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(client), sdktrace.WithResource(about))}, nil
}

// tracer is nil when nothing is traced.
func (t *tracing) tracer() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// close sends what waits.
func (t *tracing) close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spanFlush)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}
