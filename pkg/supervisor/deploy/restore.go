package deploy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// launchesAtOnce bounds how many children start at the same time after the
// supervisor came back: a start is mostly processor time.
const launchesAtOnce = 4

// Restore brings the fleet to what the registry says. It returns when every
// child that still lives is adopted or ended; those that have to be launched
// come up in the background, within ctx, while requests for them wait.
func (s *Service) Restore(ctx context.Context) error {
	if err := s.cfg.Dirs.sweep(); err != nil {
		return fmt.Errorf("sweep leftovers: %w", err)
	}
	if err := s.sweepDevs(ctx); err != nil {
		return fmt.Errorf("sweep drafts: %w", err)
	}
	rows, err := s.cfg.Registry.List(ctx)
	if err != nil {
		return fmt.Errorf("restore fleet: %w", err)
	}
	members := make([]*formation, len(rows))
	for i, row := range rows {
		if members[i], err = s.rejoin(ctx, row); err != nil {
			for _, f := range members[:i] {
				<-f.ops
			}
			return err
		}
	}
	launch := make([]bool, len(rows))
	var wg sync.WaitGroup
	for i, row := range rows {
		wg.Go(func() { launch[i] = s.restoreOne(ctx, members[i], row) })
	}
	wg.Wait()
	slots := make(chan struct{}, launchesAtOnce)
	for i, f := range members {
		if launch[i] {
			s.launches.Go(func() { s.bringUp(ctx, f, slots) })
		}
	}
	return nil
}

// rejoin makes a fleet member of a row; it holds the member's operation.
func (s *Service) rejoin(ctx context.Context, row registry.Formation) (*formation, error) {
	// What is registered comes back, also when the limit was lowered meanwhile.
	f, err := s.join(ctx, row.ID, row.RestartCount, math.MaxInt)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", row.ID, err)
	}
	socket, err := s.cfg.Ports.Reserve(row.ID, row.Port)
	if err != nil {
		s.leave(f)
		return nil, fmt.Errorf("restore %s: %w", row.ID, err)
	}
	f.setSocket(socket)
	if err := s.recallExit(ctx, f); err != nil {
		s.leave(f)
		return nil, fmt.Errorf("restore %s: %w", row.ID, err)
	}
	return f, nil
}

// restoreOne adopts what lives of a formation and ends what should not. It
// ends the member's operation unless launch is true.
func (s *Service) restoreOne(ctx context.Context, f *formation, row registry.Formation) (launch bool) {
	log := s.log.With().Str("formation", f.id).Logger()
	dir := firstDir
	if row.Current != nil {
		dir = row.Current.Dir
	}
	spec, err := s.spec(f, dir)
	adopted := false
	if err == nil {
		adopted, err = f.mgr.Adopt(ctx, spec)
	}
	if err != nil {
		log.Error().Err(err).Msg("looking for a living child failed")
	}
	if row.State != registry.Deployed {
		log.Info().Str("state", string(row.State)).Msg("finishing an interrupted deploy or delete")
		discard := s.cfg.Dirs.discard
		if row.State == registry.Deploying {
			discard = s.cfg.Dirs.discardDeployed // it may have come from a draft
		}
		if err := s.remove(ctx, f, discard); err != nil {
			log.Error().Err(err).Msg("an interrupted deploy or delete is not finished")
		}
		return false
	}
	if err := s.sweepVersions(ctx, f); err != nil {
		log.Error().Err(err).Msg("what an update left is not removed")
	}
	switch {
	case row.Desired == registry.Running && !adopted:
		return true
	case row.Desired == registry.Stopped && adopted:
		if err := f.mgr.Stop(ctx); err != nil {
			log.Error().Err(err).Msg("a child that should be stopped did not stop")
		}
	}
	f.came()
	<-f.ops
	return false
}

// bringUp launches f until it serves, the restart policy gives up, or somebody
// else takes over. It begins as the holder of f's operation.
func (s *Service) bringUp(ctx context.Context, f *formation, slots chan struct{}) {
	policy := s.cfg.Manager.Policy
	var history []process.Exit
	for {
		err := s.bringUpOnce(ctx, f, slots)
		if err != nil && ctx.Err() == nil {
			f.mgr.Refused(err) // unless there was a process, whose end says more
		}
		f.came()
		<-f.ops
		if err == nil || ctx.Err() != nil {
			return
		}
		exit := process.Exit{Time: s.now()}
		delay, giveUp := policy.Next(history, exit, 0)
		log := s.log.Error().Err(err).Str("formation", f.id)
		if giveUp || permanent(err) {
			log.Msg("the formation stays down: it could not be launched")
			return
		}
		log.Dur("again_in", delay).Msg("the formation could not be launched")
		history = append(history, exit)
		if !wait(ctx, delay) || f.lock(ctx) != nil {
			return
		}
		if f.settled() {
			<-f.ops
			return
		}
	}
}

func (s *Service) bringUpOnce(ctx context.Context, f *formation, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.launch(ctx, f, &track{}, f.mgr.Start)
}

// permanent tells that trying again cannot help: the files are wrong.
func permanent(err error) bool {
	name := fault.NameOf(err)
	return name == "ParseError" || name == "SecretsError"
}

// settled tells that an operator has started, stopped or deleted f meanwhile.
func (f *formation) settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone || f.mgr.Snapshot().Status != process.StatusCrashed
}

// wait returns false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Shutdown refuses further operations, cancels deploys, starts and restarts in
// progress, and drains and stops every child, those of drafts too. What should run
// still does so at the next start. The ctx given to Restore must have ended before.
func (s *Service) Shutdown(ctx context.Context) error {
	members := s.closeDoor()
	for _, f := range members {
		f.mu.Lock()
		if f.launch != nil {
			f.launch(errShuttingDown())
		}
		f.mu.Unlock()
	}
	s.launches.Wait()
	var wg sync.WaitGroup
	errs := make([]error, len(members)+1)
	wg.Go(func() { errs[len(members)] = s.endDevs() })
	for i, f := range members {
		wg.Go(func() {
			if err := f.mgr.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w", f.id, err)
			}
		})
	}
	wg.Wait()
	s.letGo(members)
	s.followers.Wait() // each ends with its child's connection
	return errors.Join(errs...)
}

// Settle refuses further operations and waits for those in progress, until ctx
// ends. Close or Shutdown must follow: Close has little to wait for then.
func (s *Service) Settle(ctx context.Context) error {
	for _, f := range s.closeDoor() {
		if err := f.lock(ctx); err != nil {
			return err
		}
		<-f.ops
	}
	return nil
}

// Close refuses further operations and lets go of the children, which go on
// serving; only those that run drafts end. The ctx given to Restore must have ended before.
func (s *Service) Close() {
	members := s.closeDoor()
	if err := s.endDevs(); err != nil {
		s.log.Error().Err(err).Msg("a draft did not stop well")
	}
	s.launches.Wait()
	s.letGo(members)
	s.followers.Wait()
}

// letGo closes the managers when no operation is in progress any more: each has
// met the stop, or is waited for. Those that still wait for their turn get it,
// and with it the answer that the door is closed.
func (s *Service) letGo(members []*formation) {
	for _, f := range members {
		f.ops <- struct{}{}
		f.mgr.Close()
		<-f.ops
	}
}

// closeDoor makes every further operation fail and ends deploys in progress.
func (s *Service) closeDoor() []*formation {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	members := s.members()
	for _, f := range members {
		f.mu.Lock()
		if f.cancel != nil {
			f.cancel(errShuttingDown())
		}
		f.mu.Unlock()
		f.cancelChange(errShuttingDown())
	}
	return members
}
