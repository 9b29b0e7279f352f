package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) statusCommand() *cobra.Command {
	var status string
	cmd := &cobra.Command{
		Use:     "status [ID...|all]",
		Aliases: []string{"list", "ls"},
		Short:   "Show how formations run and how they last ended",

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if err := checkAll(args); err != nil {
				return err
			}
			if known := statuses(); status != "" && !slices.Contains(known, status) {
				return usagef("--status %q: it must be %s", status, strings.Join(known, ", "))
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			items, err := collect(cmd.Context(), s, args, status)
			err = t.advise(err)
			if len(items) == 0 && err == nil && status == "" && a.outTTY {
				a.say("no formation is deployed: `supervisor deploy DIR` deploys one")
			}
			if len(items) > 0 || err == nil {
				err = errors.Join(a.printStatus(items), err)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "only those with this status: "+strings.Join(statuses(), ", "))
	return cmd
}

// statuses are those that a formation can have.
func statuses() []string {
	return []string{"running", "starting", "restarting", "stopping", "stopped", "crashed"}
}

// isAll tells whether the ids of a command line mean every formation.
func isAll(ids []string) bool {
	return len(ids) == 0 || (len(ids) == 1 && ids[0] == allFormations)
}

// collect gets the named formations, or all of them, with their last exit;
// with a status only those that have it. One that is missing does not hide
// the others.
func collect(ctx context.Context, s *client.Server, ids []string, status string) ([]client.Info, error) {
	every := isAll(ids)
	if every {
		list, err := s.List(ctx, status)
		if err != nil {
			return nil, err
		}
		ids = nil
		for _, f := range list {
			ids = append(ids, f.ID)
		}
	}
	found := make([]*client.Info, len(ids))
	errs := sideBySide(ids, func(i int, id string) (err error) {
		found[i], err = s.Get(ctx, id)
		return err
	})
	items := make([]client.Info, 0, len(ids))
	var failed []error
	for i, f := range found {
		switch {
		case errs[i] == nil && (status == "" || f.Status == status):
			items = append(items, *f)
		case every && client.StatusOf(errs[i]) == http.StatusNotFound:
			// deleted since the list was made
		case errs[i] != nil:
			failed = append(failed, errs[i])
		}
	}
	return items, several(failed)
}

func (a *app) printStatus(items []client.Info) error {
	if a.json() {
		return a.printJSON(map[string]any{"formations": items, "total": len(items)})
	}
	t := table{heading: []string{"NAME", "STATE", "PID", "PORT", "VERSION", "UPTIME", "RESTARTS", "LAST EXIT"}}
	for _, f := range items {
		t.rows = append(t.rows, []cell{
			{text: f.ID},
			{f.Status, stateColour(f)},
			{text: orDash(strconv.Itoa(f.PID))},
			{text: orDash(strconv.Itoa(f.Port))},
			{text: orDash(f.Version.Semantic)},
			{text: uptime(f)},
			{text: strconv.Itoa(f.RestartCount)},
			{text: lastExit(f.LastExit)},
		})
	}
	if err := a.printTable(a.out, t); err != nil {
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

// stateColour is green for what works, red for what does not, yellow between.
func stateColour(f client.Info) colour {
	switch f.Status {
	case "running":
		if f.Healthy != nil && !*f.Healthy {
			return yellow
		}
		return green
	case "crashed":
		return red
	case "stopped":
		return dim
	}
	return yellow
}

// uptime is how long the process of a formation lives.
func uptime(f client.Info) string {
	if f.PID != 0 && f.Uptime == 0 {
		return "0s" // and not none
	}
	return age(time.Duration(f.Uptime) * time.Second)
}

// maxReason is how much of the reason of an exit the table shows, in characters.
const maxReason = 60

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
	if short := []rune(text); len(short) > maxReason {
		text = string(short[:maxReason-1]) + "…"
	}
	if e.At != nil {
		text += ", " + e.At.Local().Format(time.DateTime)
	}
	return text
}
