package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// The bounds of an interrupted deploy: how long the server's first step is
// waited for, and how long the removal may take.
const (
	firstStepTimeout = 10 * time.Second
	undoTimeout      = time.Minute
)

func (a *app) deployCommand() *cobra.Command {
	var includeDB bool
	cmd := &cobra.Command{
		Use:   "deploy DIR|BUNDLE",
		Short: "Check a formation, upload it and wait until it runs",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			b, err := a.openBundle(cmd.Context(), args[0], keepsName(includeDB))
			if err != nil {
				return err
			}
			launched, err := a.deploy(cmd.Context(), s, b)
			if err := errors.Join(t.advise(err), b.close()); err != nil {
				return err
			}
			return a.printLaunched(launched)
		}),
	}
	cmd.Flags().BoolVar(&includeDB, "include-db", false, "send the directory's memory.db as the formation's first memory")
	return cmd
}

// deploy sends a bundle. An interrupted deploy leaves no formation behind.
func (a *app) deploy(ctx context.Context, s *client.Server, b *bundle) (*client.Launched, error) {
	if err := absent(ctx, s, b.id); err != nil {
		return nil, err
	}
	view := a.newProgress(b.id)
	sending := &upload{done: make(chan struct{}), begun: make(chan struct{})}
	work, release := sending.context(ctx)
	launched, err := s.Deploy(work, client.DeployRequest{ID: b.id, Bundle: b.file}, func(p client.Progress) {
		sending.step(p)
		view.show(p)
	})
	release()
	view.close()
	if err != nil && ctx.Err() != nil {
		a.undo(ctx, s, b.id, sending)
	}
	return launched, stageOf(err)
}

// upload knows how far a deploy has come. Only when the server has told of a
// first step is the formation of that name surely ours to remove: until then
// it may still find that somebody else's is there.
type upload struct {
	done  chan struct{} // closed when the bundle is sent
	begun chan struct{} // closed at the first step of the server
}

func (u *upload) step(p client.Progress) {
	switch {
	case p.Stage == client.StageUploaded:
		close(u.done)
	case p.Stage != client.StageUploading && !isClosed(u.begun):
		close(u.begun)
	}
}

// context returns a context for the deploy. An interrupt ends it at once,
// except between the end of the upload and the server's first step.
func (u *upload) context(ctx context.Context) (context.Context, func()) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if isClosed(u.done) {
			timer := time.NewTimer(firstStepTimeout)
			defer timer.Stop()
			select {
			case <-u.begun:
			case <-timer.C:
			case <-work.Done():
			}
		}
		cancel()
	})
	return work, func() { stop(); cancel() }
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// absent refuses a formation that is there already, before anything is sent.
func absent(ctx context.Context, s *client.Server, id string) error {
	f, err := s.Get(ctx, id)
	switch {
	case err == nil:
		return &client.Error{
			Status: http.StatusConflict, Name: "ValidationError",
			Message: fmt.Sprintf("%s is deployed already (version %s, %s): `supervisor delete %s` removes it with its data",
				id, orDash(f.Version.Semantic), f.Status, id),
		}
	case client.StatusOf(err) == http.StatusNotFound:
		return nil
	}
	return err
}

// undo removes the formation of an interrupted deploy. It works on after the
// interrupt; a second one ends the program.
func (a *app) undo(ctx context.Context, s *client.Server, id string, sending *upload) {
	if !isClosed(sending.begun) {
		if isClosed(sending.done) {
			a.say("%s may still be deployed: look with `supervisor status %s`", id, id)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := s.Delete(ctx, id)
	switch {
	case err == nil:
		a.say("%s is removed again", id)
	case client.StatusOf(err) != http.StatusNotFound:
		a.say("%s could not be removed again: %v; try `supervisor delete %s`", id, err, id)
	}
}

// stageOf says where a deploy ended.
func stageOf(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Stage == "" {
		return err
	}
	text := fmt.Sprintf("%s at %s: %s", e.Name, e.Stage, e.Message)
	if e.Details != "" && !strings.HasPrefix(e.Details, "{") { // an object is for programs; the message says it too
		text += "\n" + e.Details
	}
	return &replaced{err, text}
}

func (a *app) printLaunched(l *client.Launched) error {
	if a.json() {
		return a.printJSON(l)
	}
	_, err := fmt.Fprintf(a.out, "%s: %s on port %d, %s\n", l.FormationID, l.Status, l.Port, printable(l.URL))
	return err
}
