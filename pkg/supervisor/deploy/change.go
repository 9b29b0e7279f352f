package deploy

import (
	"context"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// change is an update or rollback in progress. The formation's mu guards its
// fields.
type change struct {
	what      string // "update" or "rollback"
	cancel    context.CancelCauseFunc
	committed bool          // the new version is current: what follows cannot be cancelled
	done      chan struct{} // closed when it is over
}

// CheckUpdate tells early whether an update or rollback of id could begin: 404
// FormationNotFound, 409 UpdateInProgress.
func (s *Service) CheckUpdate(id string) error {
	f, err := s.member(id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mayChange()
}

// mayChange refuses while another change is in progress; mu is held.
func (f *formation) mayChange() error {
	switch {
	case f.change != nil:
		return f.errChanging()
	case f.cancel != nil:
		return fault.Errorf(fault.Conflict, "UpdateInProgress", "Formation '%s' is being deployed for the first time", f.id)
	}
	return nil
}

// errChanging says what is in progress; mu is held.
func (f *formation) errChanging() error {
	return fault.Errorf(fault.Conflict, "UpdateInProgress", "Formation '%s' has %s in progress; wait for it or cancel it", f.id, article(f.change.what))
}

func article(what string) string {
	if what == "update" {
		return "an update"
	}
	return "a " + what
}

// settledVersion refuses what would meet an update or rollback in progress.
func (f *formation) settledVersion() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.change != nil {
		return f.errChanging()
	}
	return nil
}

// beginChange makes the one change of a formation and waits for its turn. The
// returned context outlives ctx and ends when the change is cancelled; end must
// be called.
func (s *Service) beginChange(ctx context.Context, id, what string) (_ *formation, _ context.Context, end func(), err error) {
	f, err := s.member(id)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &change{what: what, cancel: cancel, done: make(chan struct{})}
	f.mu.Lock()
	if err = f.mayChange(); err == nil {
		f.change = c
	}
	f.mu.Unlock()
	if err != nil {
		cancel(nil)
		return nil, nil, nil, err
	}
	over := func() {
		f.mu.Lock()
		f.change = nil
		f.mu.Unlock()
		cancel(nil)
		close(c.done)
	}
	if _, unlock, err := s.operate(ctx, id); err == nil {
		return f, ctx, func() { unlock(); over() }, nil
	} else if cause := context.Cause(ctx); cause != nil {
		over()
		return nil, nil, nil, cause
	} else {
		over()
		return nil, nil, nil, err
	}
}

// commit runs record as the point of no return: a change that was cancelled
// before does not reach it, and none can be cancelled after it.
func (f *formation) commit(ctx context.Context, record func(context.Context) error) error {
	f.mu.Lock()
	c, cause := f.change, context.Cause(ctx)
	if cause == nil {
		c.committed = true
	}
	f.mu.Unlock()
	if cause != nil {
		return cause
	}
	err := record(context.WithoutCancel(ctx))
	if err != nil {
		f.mu.Lock()
		c.committed = false
		f.mu.Unlock()
	}
	return err
}

// cancelChange ends a change in progress because of cause. It returns nil when
// there is none that can be cancelled.
func (f *formation) cancelChange(cause error) *change {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.change == nil || f.change.committed {
		return nil
	}
	f.change.cancel(cause)
	return f.change
}

// CancelUpdate gives up the update or rollback in progress: the version that
// served before goes on. It returns the formation's port and status when that is
// done. The errors are 404 FormationNotFound and 400 NoUpdateInProgress, also
// when the new version has taken over already.
func (s *Service) CancelUpdate(ctx context.Context, id string) (port int, status process.Status, err error) {
	f, err := s.member(id)
	if err != nil {
		return 0, "", err
	}
	cause := fault.New(fault.Conflict, "DeployConflict", "The update was cancelled; the version from before goes on")
	c := f.cancelChange(cause)
	if c == nil {
		return 0, "", f.errNothingToCancel()
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return 0, "", fault.Wrap(fault.Canceled, "", "the caller left", context.Cause(ctx))
	}
	v, err := s.Get(ctx, id)
	if err != nil {
		return 0, "", err
	}
	return v.Port, v.Process.Status, nil
}

func (f *formation) errNothingToCancel() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.change != nil {
		return fault.Errorf(fault.Invalid, "NoUpdateInProgress",
			"The new version of '%s' has taken over already and cannot be cancelled; roll back instead", f.id)
	}
	return fault.Errorf(fault.Invalid, "NoUpdateInProgress", "Formation '%s' has no update in progress", f.id)
}
