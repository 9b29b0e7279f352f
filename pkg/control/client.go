package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/agentformation/service/pkg/fault"
	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// Client is the supervisor's end of the contract: a Formation that lives in
// another process. Its errors are faults; ErrNoAnswer is in their chain when
// the other process did not answer. It is safe for concurrent use.
type Client struct {
	rpc controlv1.FormationServiceClient
}

var _ Formation = (*Client)(nil)

// NewClient speaks to a child over conn. The caller owns conn.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: controlv1.NewFormationServiceClient(conn)}
}

// Hello implements Formation.
func (c *Client) Hello(ctx context.Context, req HelloRequest) (Hello, error) {
	r, err := c.rpc.Hello(ctx, &controlv1.HelloRequest{FormationId: req.FormationID, LaunchToken: req.LaunchToken})
	if err != nil {
		return Hello{}, fromStatus(ctx, err)
	}
	return Hello{
		FormationID:    r.GetFormationId(),
		LaunchID:       r.GetLaunchId(),
		Build:          r.GetBuild(),
		PID:            int(r.GetPid()),
		StartedAt:      time.UnixMilli(r.GetStartedAt()),
		Serving:        r.GetServing(),
		ControlVersion: int(r.GetControlVersion()),
	}, nil
}

// Load implements Formation. The progress callback runs on the caller's
// goroutine; the child waits for it.
func (c *Client) Load(ctx context.Context, req LoadRequest, progress func(message string)) (Loaded, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Load(ctx, &controlv1.LoadRequest{
		Dir: req.Dir, StateDir: req.StateDir, Fence: req.Fence,
		ServerId: req.ServerID, HeaderPrefix: req.HeaderPrefix, Budgets: req.Budgets,
	})
	if err != nil {
		return Loaded{}, fromStatus(ctx, err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return Loaded{}, loadEnd(ctx, err)
		}
		switch event := msg.GetEvent().(type) {
		case *controlv1.LoadResponse_Progress:
			progress(event.Progress.GetMessage())
		case *controlv1.LoadResponse_Done:
			return Loaded{Warnings: event.Done.GetWarnings(), Agents: int(event.Done.GetAgents())}, nil
		}
	}
}

// loadEnd explains the end of a Load stream that brought no result.
func loadEnd(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		return fault.Wrap(fault.Unavailable, "", "the formation's process did not finish loading",
			fmt.Errorf("load stream ended without a result: %w", ErrNoAnswer))
	}
	return fromStatus(ctx, err)
}

// Serve implements Formation.
func (c *Client) Serve(ctx context.Context) error {
	_, err := c.rpc.Serve(ctx, &controlv1.ServeRequest{})
	return fromStatus(ctx, err)
}

// Pause implements Formation.
func (c *Client) Pause(ctx context.Context) error {
	_, err := c.rpc.Pause(ctx, &controlv1.PauseRequest{})
	return fromStatus(ctx, err)
}

// Fence implements Formation.
func (c *Client) Fence(ctx context.Context, launchIDs []string) (int, error) {
	r, err := c.rpc.Fence(ctx, &controlv1.FenceRequest{LaunchIds: launchIDs})
	if err != nil {
		return 0, fromStatus(ctx, err)
	}
	return int(r.GetResumed()), nil
}

// Health implements Formation.
func (c *Client) Health(ctx context.Context) (Health, error) {
	r, err := c.rpc.Health(ctx, &controlv1.HealthRequest{})
	if err != nil {
		return Health{}, fromStatus(ctx, err)
	}
	return Health{Ready: r.GetReady(), Serving: r.GetServing(), Heartbeat: r.GetHeartbeat(), Message: r.GetMessage()}, nil
}

// Status implements Formation.
func (c *Client) Status(ctx context.Context) (Status, error) {
	r, err := c.rpc.Status(ctx, &controlv1.StatusRequest{})
	if err != nil {
		return Status{}, fromStatus(ctx, err)
	}
	return Status{
		FormationID:    r.GetFormationId(),
		Version:        r.GetVersion(),
		Agents:         int(r.GetAgents()),
		ActiveRequests: r.GetActiveRequests(),
		TotalRequests:  r.GetTotalRequests(),
		Uptime:         time.Duration(r.GetUptimeSeconds()) * time.Second,
	}, nil
}

// Drain implements Formation. ctx should outlast req.Timeout.
func (c *Client) Drain(ctx context.Context, req DrainRequest) (Drained, error) {
	r, err := c.rpc.Drain(ctx, &controlv1.DrainRequest{
		TimeoutMs: req.Timeout.Milliseconds(), CloseSocket: req.CloseSocket, LameDuckMs: req.LameDuck.Milliseconds(),
	})
	if err != nil {
		return Drained{}, fromStatus(ctx, err)
	}
	return Drained{Unfinished: int(r.GetUnfinished())}, nil
}

// Stop implements Formation: when it returns nil the child has agreed to exit
// and waits for nothing but its connections.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.rpc.Stop(ctx, &controlv1.StopRequest{})
	return fromStatus(ctx, err)
}
