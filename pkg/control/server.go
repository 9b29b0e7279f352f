package control

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// server is the child's end of the wire: it turns messages into calls of a
// Formation, and faults into statuses.
type server struct {
	controlv1.UnimplementedFormationServiceServer
	f Formation
	// life ends when the child is about to exit; open Records streams end with it.
	life    context.Context //nolint:containedctx // the lifetime of the process, given to every stream
	stopped chan struct{}   // closed once f.Stop has returned
	once    sync.Once       // lets one caller stop f and set stopErr
	stopErr error
}

func newServer(life context.Context, f Formation) *server {
	return &server{f: f, life: life, stopped: make(chan struct{})}
}

func (s *server) Hello(ctx context.Context, m *controlv1.HelloRequest) (*controlv1.HelloResponse, error) {
	h, err := s.f.Hello(ctx, HelloRequest{FormationID: m.GetFormationId(), LaunchToken: m.GetLaunchToken()})
	if err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.HelloResponse{
		FormationId: h.FormationID, LaunchId: h.LaunchID, Build: h.Build, Pid: int64(h.PID),
		StartedAt: h.StartedAt.UnixMilli(), Serving: h.Serving, ControlVersion: int32(h.ControlVersion),
	}, nil
}

// Load sends progress as it comes. A supervisor that goes away cancels ctx.
func (s *server) Load(m *controlv1.LoadRequest, stream grpc.ServerStreamingServer[controlv1.LoadResponse]) error {
	var mu sync.Mutex // a loader may report from several goroutines; Send may not be called at once
	progress := func(message string) {
		mu.Lock()
		defer mu.Unlock()
		// An error here means the supervisor is gone; ctx tells the loader so.
		_ = stream.Send(&controlv1.LoadResponse{Event: &controlv1.LoadResponse_Progress{
			Progress: &controlv1.LoadProgress{Message: message},
		}})
	}
	loaded, err := s.f.Load(stream.Context(), LoadRequest{
		Dir: m.GetDir(), StateDir: m.GetStateDir(), Fence: m.GetFence(),
		ServerID: m.GetServerId(), HeaderPrefix: m.GetHeaderPrefix(), Budgets: m.GetBudgets(),
	}, progress)
	if err != nil {
		return toStatus(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return stream.Send(&controlv1.LoadResponse{Event: &controlv1.LoadResponse_Done{
		Done: &controlv1.LoadDone{Warnings: loaded.Warnings, Agents: int32(loaded.Agents)},
	}})
}

func (s *server) Serve(ctx context.Context, _ *controlv1.ServeRequest) (*controlv1.ServeResponse, error) {
	if err := s.f.Serve(ctx); err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.ServeResponse{}, nil
}

func (s *server) Pause(ctx context.Context, _ *controlv1.PauseRequest) (*controlv1.PauseResponse, error) {
	if err := s.f.Pause(ctx); err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.PauseResponse{}, nil
}

func (s *server) Fence(ctx context.Context, m *controlv1.FenceRequest) (*controlv1.FenceResponse, error) {
	n, err := s.f.Fence(ctx, m.GetLaunchIds())
	if err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.FenceResponse{Resumed: int64(n)}, nil
}

func (s *server) Health(ctx context.Context, _ *controlv1.HealthRequest) (*controlv1.HealthResponse, error) {
	h, err := s.f.Health(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.HealthResponse{Ready: h.Ready, Serving: h.Serving, Heartbeat: h.Heartbeat, Message: h.Message}, nil
}

func (s *server) Status(ctx context.Context, _ *controlv1.StatusRequest) (*controlv1.StatusResponse, error) {
	t, err := s.f.Status(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.StatusResponse{
		FormationId: t.FormationID, Version: t.Version, Agents: int32(t.Agents),
		ActiveRequests: t.ActiveRequests, TotalRequests: t.TotalRequests,
		UptimeSeconds: int64(t.Uptime / time.Second),
	}, nil
}

func (s *server) Drain(ctx context.Context, m *controlv1.DrainRequest) (*controlv1.DrainResponse, error) {
	d, err := s.f.Drain(ctx, DrainRequest{
		Timeout:     time.Duration(m.GetTimeoutMs()) * time.Millisecond,
		CloseSocket: m.GetCloseSocket(),
		LameDuck:    time.Duration(m.GetLameDuckMs()) * time.Millisecond,
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.DrainResponse{Unfinished: int64(d.Unfinished)}, nil
}

// Stop stops the formation and lets Serve (of this package) return once the
// reply is on its way. It goes on when the caller has given up.
func (s *server) Stop(ctx context.Context, _ *controlv1.StopRequest) (*controlv1.StopResponse, error) {
	if err := s.stop(context.WithoutCancel(ctx)); err != nil {
		return nil, toStatus(err)
	}
	return &controlv1.StopResponse{}, nil
}

// stop stops the formation once, whoever asks first: the supervisor, a signal,
// or the end of the control server.
func (s *server) stop(ctx context.Context) error {
	s.once.Do(func() {
		s.stopErr = s.f.Stop(ctx)
		close(s.stopped)
	})
	return s.stopErr
}
