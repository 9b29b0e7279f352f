package supervisor

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/agentformation/service/pkg/tracing"
	"github.com/agentformation/service/pkg/version"
)

// spanFlush bounds the sending of the last spans at the end.
const spanFlush = 3 * time.Second

// openTracing opens the way of the management calls' spans to a collector; nil
// when the environment names none.
func (s *Supervisor) openTracing(ctx context.Context) (*tracing.Tracing, error) {
	return tracing.Open(ctx, tracing.Config{
		Env: s.cfg.LookupEnv, Flush: spanFlush, Who: "the supervisor", Log: s.log,
		About: []attribute.KeyValue{
			attribute.String("service.name", "supervisor"), attribute.String("service.version", version.Version),
			attribute.String("service.instance.id", s.serverID()),
		},
	})
}
