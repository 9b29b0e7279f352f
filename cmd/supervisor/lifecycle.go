package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// allFormations stands for every formation on a command line; no formation
// can have this id.
const allFormations = "all"

// verb is a command that acts on formations, several side by side.
type verb struct {
	use, short string
	// skips says which formations "all" leaves out.
	skips []string
	did   string
	do    func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) (*client.Launched, error)
}

func (a *app) startCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "start", short: "Start formations that are stopped or crashed", did: "running",
		skips: []string{"running", "starting", "restarting", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) (*client.Launched, error) {
			return s.Start(ctx, id, progress)
		},
	})
}

func (a *app) stopCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "stop", short: "Finish the open work of formations and stop them", did: "stopped",
		skips: []string{"stopped", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, _ func(client.Progress)) (*client.Launched, error) {
			return nil, s.Stop(ctx, id)
		},
	})
}

func (a *app) restartCommand() *cobra.Command {
	return a.verbCommand(verb{
		use: "restart", short: "Stop formations and start them again", did: "running",
		skips: []string{"stopped", "stopping"},
		do: func(ctx context.Context, s *client.Server, id string, progress func(client.Progress)) (*client.Launched, error) {
			return s.Restart(ctx, id, progress)
		},
	})
}

func (a *app) verbCommand(v verb) *cobra.Command {
	return &cobra.Command{
		Use:   v.use + " ID...|all",
		Short: v.short,
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: a.completeIDsOrAll,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if err := checkAll(args); err != nil {
				return err
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			if slices.Contains(args, allFormations) {
				if args, err = v.all(cmd.Context(), s); err != nil {
					return t.advise(err)
				}
			}
			return a.each(args, v.did, func(id string, progress func(client.Progress)) (*client.Launched, error) {
				l, err := v.do(cmd.Context(), s, id, progress)
				return l, t.advise(stageOf(err, false))
			})
		}),
	}
}

// checkAll refuses ids beside "all": one that is mistyped would go unnoticed.
func checkAll(ids []string) error {
	if len(ids) > 1 && slices.Contains(ids, allFormations) {
		return usagef("%s is every formation: name no others beside it", allFormations)
	}
	return nil
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
	Port   int    `json:"port,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Error  string `json:"error,omitempty"`
}

// each does something for every id, several side by side, goes on after an
// error, and returns the errors in the order of the ids.
func (a *app) each(ids []string, did string, do func(id string, progress func(client.Progress)) (*client.Launched, error)) error {
	ids = distinct(ids)
	view := a.newProgress(ids...)
	outcomes := make([]outcome, len(ids))
	errs := sideBySide(ids, func(i int, id string) error {
		defer view.done(id)
		l, err := do(id, func(p client.Progress) { view.show(id, p) })
		outcomes[i] = outcome{ID: id, Status: did}
		if l != nil {
			outcomes[i].Port, outcomes[i].PID = l.Port, l.PID
		}
		if err != nil {
			outcomes[i] = outcome{ID: id, Error: err.Error()}
			return fmt.Errorf("%s: %w", id, err)
		}
		return nil
	})
	view.close()
	if err := a.printOutcomes(outcomes); err != nil {
		return err
	}
	return several(errs)
}

// distinct drops repetitions.
func distinct(ids []string) []string {
	var once []string
	for _, id := range ids {
		if !slices.Contains(once, id) {
			once = append(once, id)
		}
	}
	return once
}

// printOutcomes prints what became of each; the errors come on stderr.
func (a *app) printOutcomes(outcomes []outcome) error {
	switch {
	case a.json():
		return a.printJSON(map[string]any{"formations": outcomes})
	case len(outcomes) == 0:
		a.say("no formation is there to do it for")
		return nil
	case len(outcomes) == 1:
		if o := outcomes[0]; o.Error == "" {
			fmt.Fprintf(a.out, "%s: %s\n", o.ID, o.Status)
		}
		return nil
	}
	t := table{heading: []string{"NAME", "RESULT", "PID", "PORT"}}
	for _, o := range outcomes {
		result := cell{o.Status, green}
		if o.Error != "" {
			result = cell{"failed", red}
		}
		t.rows = append(t.rows, []cell{
			{text: o.ID}, result, {text: orDash(strconv.Itoa(o.PID))}, {text: orDash(strconv.Itoa(o.Port))},
		})
	}
	return a.printTable(a.out, t)
}
