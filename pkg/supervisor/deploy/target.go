package deploy

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// targetWait is how long a request waits for a formation that is being
// replaced.
const targetWait = 30 * time.Second

// Target says where a formation answers now.
type Target struct {
	Port   int
	Launch string // differs for each process
}

// Target returns where requests for id go. While the process starts or is
// replaced it waits, at most 30 s. The errors are 404 FormationNotFound and 503
// FormationUnavailable.
func (s *Service) Target(ctx context.Context, id string) (Target, error) {
	f, err := s.member(id)
	if err != nil {
		return Target{}, err
	}
	return f.await(ctx)
}

// await is Target for a member.
func (f *formation) await(ctx context.Context) (Target, error) {
	snap := f.mgr.Snapshot()
	if snap.Status == process.StatusRunning {
		return f.target(snap), nil
	}
	timer := time.NewTimer(targetWait)
	defer timer.Stop()
	for {
		f.mu.Lock()
		changed, gone, coming := f.changed, f.gone, f.coming
		f.mu.Unlock()
		snap := f.mgr.Snapshot() // after changed was taken, so that no event is missed
		switch {
		case gone:
			return Target{}, errNotFound(f.id)
		case snap.Status == process.StatusRunning:
			return f.target(snap), nil
		case snap.Status == process.StatusStarting, snap.Status == process.StatusRestarting, coming:
		default:
			return Target{}, errUnavailable(f.id, snap.Status)
		}
		select {
		case <-changed:
		case <-timer.C:
			return Target{}, errUnavailable(f.id, snap.Status)
		case <-ctx.Done():
			return Target{}, fault.Wrap(fault.Canceled, "", "the caller left", context.Cause(ctx))
		}
	}
}

func (f *formation) target(snap process.Snapshot) Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Target{Port: f.socket.Port(), Launch: snap.LaunchID}
}

// errUnavailable says that nobody serves. The text ends with the status: clients,
// such as pkg/client, tell by that whether to wait or to start the formation.
func errUnavailable(id string, status process.Status) error {
	return fault.Errorf(fault.Unavailable, "FormationUnavailable", "Formation '%s' is %s", id, status)
}
