package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// undoTimeout bounds the removal of a formation whose deploy was interrupted.
const undoTimeout = time.Minute

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
	// Only a server that has the whole bundle can have made the formation. It
	// looks for an older one first, so the one to be removed is ours.
	var sent atomic.Bool
	launched, err := s.Deploy(ctx, client.DeployRequest{ID: b.id, Bundle: b.file}, func(p client.Progress) {
		if p.Stage != client.StageUploading {
			sent.Store(true)
		}
		view.show(p)
	})
	view.close()
	if err != nil && ctx.Err() != nil && sent.Load() {
		a.undo(ctx, s, b.id)
	}
	return launched, stageOf(err)
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
func (a *app) undo(ctx context.Context, s *client.Server, id string) {
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
	if e.Details != "" {
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
