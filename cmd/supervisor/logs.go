package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	req := client.LogsRequest{}
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Print the last lines of a formation's logs",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			switch {
			case req.Stream != "stdout" && req.Stream != "stderr" && req.Stream != "all":
				return usagef("--stream %q: it must be stdout, stderr or all", req.Stream)
			case req.Lines < 1 || req.Lines > 10000:
				return usagef("--lines %d: it must be 1 to 10000", req.Lines)
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			logs, err := s.Logs(cmd.Context(), args[0], req)
			if err != nil {
				return t.advise(err)
			}
			if err := a.printLogs(logs, req.Stream, follow); err != nil || !follow {
				return err
			}
			err = s.FollowLogs(cmd.Context(), args[0], req, func(line client.LogLine) error {
				return a.printLogLine(line, req.Stream)
			})
			return t.advise(a.endOfLogs(cmd.Context(), s, args[0], err))
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines until interrupted")
	cmd.Flags().IntVarP(&req.Lines, "lines", "n", 100, "how many of the last lines of each stream, up to 10000")
	cmd.Flags().StringVar(&req.Stream, "stream", "all", "which stream: stdout, stderr or all")
	return cmd
}

// endOfLogs says why a followed log ended. The end of the formation is no error.
func (a *app) endOfLogs(ctx context.Context, s *client.Server, id string, err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Name != client.NameBrokenStream || ctx.Err() != nil {
		return err
	}
	switch _, err := s.Get(ctx, id); {
	case client.StatusOf(err) == http.StatusNotFound:
		a.say("%s was deleted: its log ends here", id)
		return nil
	case err != nil:
		return err
	}
	return &hint{e, "follow the log again"}
}

// printLogs prints the last lines. When lines follow, each is an object of its
// own in JSON too.
func (a *app) printLogs(logs *client.Logs, stream string, follow bool) error {
	if a.json() && !follow {
		return a.printJSON(logs)
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"stdout", logs.Logs.Stdout}, {"stderr", logs.Logs.Stderr}} {
		for _, line := range part.lines {
			l := client.LogLine{FormationID: logs.FormationID, Stream: part.name, Line: line}
			if err := a.printLogLine(l, stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// printLogLine prints a line, behind the name of its stream when both are shown.
func (a *app) printLogLine(l client.LogLine, stream string) error {
	if a.json() {
		return json.NewEncoder(a.out).Encode(l)
	}
	prefix := ""
	if stream == "all" {
		prefix = l.Stream + " | "
	}
	_, err := fmt.Fprintln(a.out, prefix+printable(l.Line))
	return err
}
