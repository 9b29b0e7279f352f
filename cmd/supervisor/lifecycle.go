package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// allFormations stands for every formation on a command line; no formation
// can have this id.
const allFormations = "all"

// verb is a command that acts on formations one after another.
type verb struct {
	use, short string
	// skips says which formations "all" leaves out.
	skips []string
	did   string
	do    func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) error
}

func (a *app) startCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "start", short: "Start formations that are stopped or crashed", did: "running",
		skips: []string{"running", "starting", "restarting", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) error {
			_, err := s.Start(ctx, id, progress)
			return err
		},
	})
}

func (a *app) stopCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "stop", short: "Finish the open work of formations and stop them", did: "stopped",
		skips: []string{"stopped", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, _ func(client.Progress)) error {
			return s.Stop(ctx, id)
		},
	})
}

func (a *app) restartCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "restart", short: "Stop formations and start them again", did: "running",
		skips: []string{"stopped", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) error {
			_, err := s.Restart(ctx, id, progress)
			return err
		},
	})
}

func (a *app) verbCommand(v verb) *cobra.Command {
	return &cobra.Command{
		Use:   v.use + " ID...|all",
		Short: v.short,
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			if slices.Contains(args, allFormations) {
				if args, err = v.all(cmd.Context(), s); err != nil {
					return t.advise(err)
				}
			}
			return a.each(args, v.did, func(id string) error {
				view := a.newProgress(id)
				defer view.close()
				return t.advise(v.do(cmd.Context(), s, id, view.show))
			})
		}),
	}
}

// all returns the formations that the verb has something to do for.
func (v verb) all(ctx context.Context, s *client.Server) ([]string, error) {
	list, err := s.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range list {
		if !slices.Contains(v.skips, f.Status) {
			ids = append(ids, f.ID)
		}
	}
	return ids, nil
}

// outcome is what became of one formation.
type outcome struct {
	ID     string `json:"id"`
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
}

// each does something for every id, goes on after an error, and returns the
// errors, the first one in front.
func (a *app) each(ids []string, did string, do func(id string) error) error {
	outcomes := make([]outcome, 0, len(ids))
	var errs []error
	for _, id := range ids {
		o := outcome{ID: id, Status: did}
		if err := do(id); err != nil {
			o.Status, o.Error = "", err.Error()
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
		if !a.json() && o.Error == "" {
			fmt.Fprintf(a.out, "%s: %s\n", id, did)
		}
		outcomes = append(outcomes, o)
	}
	if a.json() {
		if err := a.printJSON(map[string]any{"formations": outcomes}); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
