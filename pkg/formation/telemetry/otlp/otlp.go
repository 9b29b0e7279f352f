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
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"

	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/tracing"
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
	tracing *tracing.Tracing
}

// Open returns nil unless the environment asks for spans, as tracing.Open does.
// It connects to nothing.
func Open(ctx context.Context, cfg Config) (*Exporter, error) {
	way, err := tracing.Open(ctx, tracing.Config{
		Env: cfg.Env, Flush: flushTime, Who: "the formation", Log: cfg.Log,
		About: []attribute.KeyValue{
			attribute.String("service.name", cfg.FormationID), attribute.String("service.namespace", "formations"),
			attribute.String("service.version", version.Version), attribute.String("service.instance.id", cfg.LaunchID),
		},
	})
	if err != nil || way == nil {
		return nil, err
	}
	return &Exporter{way}, nil
}

// Export hands an ended trace over. It does not wait for the collector.
func (e *Exporter) Export(t *telemetry.Trace) {
	if e == nil {
		return
	}
	send(e.tracing.Provider().Tracer("formation"), t)
}

// Close sends what waits, for two seconds at most. A collector that is away
// must not make a good end look bad, so this cannot fail.
func (e *Exporter) Close(ctx context.Context) {
	if e != nil {
		e.tracing.Close(ctx)
	}
}
