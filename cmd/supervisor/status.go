package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [ID...]",
		Short: "Show how formations run and how they last ended",

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			items, err := collect(cmd.Context(), s, args)
			err = t.advise(err)
			if len(items) > 0 || err == nil {
				err = errors.Join(a.printStatus(items), err)
			}
			return err
		}),
	}
}

// collect gets the named formations, or all of them, with their last exit.
func collect(ctx context.Context, s *client.Server, ids []string) ([]client.Info, error) {
	if len(ids) == 0 || (len(ids) == 1 && ids[0] == allFormations) {
		list, err := s.List(ctx, "")
		if err != nil {
			return nil, err
		}
		ids = ids[:0]
		for _, f := range list {
			ids = append(ids, f.ID)
		}
	}
	items := make([]client.Info, 0, len(ids))
	for _, id := range ids {
		f, err := s.Get(ctx, id)
		if err != nil {
			return items, err
		}
		items = append(items, *f)
	}
	return items, nil
}

func (a *app) printStatus(items []client.Info) error {
	if a.json() {
		return a.printJSON(map[string]any{"formations": items, "total": len(items)})
	}
	rows := make([][]string, 0, len(items))
	for _, f := range items {
		rows = append(rows, []string{
			f.ID, f.Status, orDash(strconv.Itoa(f.PID)), age(time.Duration(f.Uptime) * time.Second),
			strconv.Itoa(f.RestartCount), strconv.Itoa(f.Port), lastExit(f.LastExit),
		})
	}
	heading := []string{"FORMATION", "STATE", "PID", "UPTIME", "RESTARTS", "PORT", "LAST EXIT"}
	if err := printTable(a.out, heading, rows); err != nil {
		return err
	}
	for _, f := range items {
		if f.Status != "crashed" || f.LastExit == nil || len(f.LastExit.Stderr) == 0 {
			continue
		}
		fmt.Fprintf(a.out, "\n%s, last lines of stderr:\n", f.ID)
		for _, line := range f.LastExit.Stderr {
			fmt.Fprintf(a.out, "  %s\n", printable(line))
		}
	}
	return nil
}

// lastExit shows how a process ended: "exit code 2, 2026-01-02 15:04:05".
func lastExit(e *client.Exit) string {
	if e == nil {
		return "-"
	}
	text := e.Reason
	switch {
	case text != "":
	case e.Signal != "":
		text = "signal " + e.Signal
	case e.ExitCode != nil:
		text = fmt.Sprintf("exit code %d", *e.ExitCode)
	default:
		text = "unknown"
	}
	if e.At != nil {
		text += ", " + e.At.Local().Format(time.DateTime)
	}
	return text
}
