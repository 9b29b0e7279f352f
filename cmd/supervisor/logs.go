package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	req := client.LogsRequest{}
	cmd := &cobra.Command{
		Use:     "logs ID...|all",
		Aliases: []string{"tail"},
		Short:   "Print the last lines of formations' logs, and with -f the new ones",
		Args:    cobra.MinimumNArgs(1),

		ValidArgsFunction: a.completeIDsOrAll,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			switch {
			case req.Stream != "stdout" && req.Stream != "stderr" && req.Stream != "all":
				return usagef("--stream %q: it must be stdout, stderr or all", req.Stream)
			case req.Lines < 1 || req.Lines > 10000:
				return usagef("--lines %d: it must be 1 to 10000", req.Lines)
			}
			if err := checkAll(args); err != nil {
				return err
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			r := &reader{a: a, s: s, req: req, every: slices.Contains(args, allFormations), colours: map[string]colour{}}
			return t.advise(r.run(cmd.Context(), distinct(args), follow))
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines until interrupted")
	cmd.Flags().IntVarP(&req.Lines, "lines", "n", 100, "how many of the last lines of each stream, up to 10000")
	cmd.Flags().StringVar(&req.Stream, "stream", "all", "which stream: stdout, stderr or all")
	return cmd
}

// reader prints the logs of formations, of several as one.
type reader struct {
	a     *app
	s     *client.Server
	req   client.LogsRequest
	every bool // all formations, also those that come later
	many  bool // lines need the name of their formation

	mu      sync.Mutex // guards what follows and the writing
	colours map[string]colour
	width   int // of the longest id
}

// run prints the last lines, then the new ones if they are followed.
func (r *reader) run(ctx context.Context, ids []string, follow bool) error {
	if r.every {
		list, err := r.s.List(ctx, "")
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, f := range list {
			ids = append(ids, f.ID)
		}
	}
	r.many = r.every || len(ids) > 1
	for _, id := range ids {
		r.meet(id)
	}
	if err := r.last(ctx, ids, follow); err != nil || !follow {
		return err
	}
	return r.follow(ctx, ids)
}

// meet gives a formation its colour and room for its name.
func (r *reader) meet(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.colours[id]; !known {
		r.colours[id] = labels[len(r.colours)%len(labels)]
	}
	r.width = max(r.width, len(id))
}

// last prints the last lines. When lines follow, each is an object of its own
// in JSON too.
func (r *reader) last(ctx context.Context, ids []string, follow bool) error {
	found := make([]*client.Logs, len(ids))
	errs := sideBySide(ids, func(i int, id string) (err error) {
		found[i], err = r.s.Logs(ctx, id, r.req)
		return err
	})
	found = slices.DeleteFunc(found, func(l *client.Logs) bool { return l == nil })
	err := several(errs)
	switch {
	case err != nil && (follow || len(found) == 0):
		return err
	case r.a.json() && !follow && !r.many:
		return r.a.printJSON(found[0])
	case r.a.json() && !follow:
		return cmp.Or(r.a.printJSON(map[string]any{"logs": found}), err)
	}
	for _, line := range inOrder(found) {
		if err := r.printLine(line); err != nil {
			return err
		}
	}
	return err
}

// timedLine is a line that is printed when its time has come.
type timedLine struct {
	client.LogLine
	at time.Time
}

// inOrder merges the streams of formations by the time that their records
// name. A line without one, such as one of a stack trace, stays behind the line
// before it. One formation's streams stay apart, as they are in its files.
func inOrder(logs []*client.Logs) []client.LogLine {
	var lines []timedLine
	for _, l := range logs {
		for _, part := range []struct {
			name  string
			lines []string
		}{{"stdout", l.Logs.Stdout}, {"stderr", l.Logs.Stderr}} {
			var at time.Time
			for _, text := range part.lines {
				at = timeOf(text, at)
				lines = append(lines, timedLine{client.LogLine{FormationID: l.FormationID, Stream: part.name, Line: text}, at})
			}
		}
	}
	if len(logs) > 1 {
		slices.SortStableFunc(lines, func(a, b timedLine) int { return a.at.Compare(b.at) })
	}
	merged := make([]client.LogLine, len(lines))
	for i, l := range lines {
		merged[i] = l.LogLine
	}
	return merged
}

// timeOf reads the time of a record, before when it has none.
func timeOf(line string, before time.Time) time.Time {
	if !strings.HasPrefix(line, "{") {
		return before
	}
	var record struct {
		Time time.Time `json:"time"`
	}
	if json.Unmarshal([]byte(line), &record) != nil || record.Time.IsZero() {
		return before
	}
	return record.Time
}

// printLine prints a line behind the names of its formation and stream, where they
// are not known anyway.
func (r *reader) printLine(l client.LogLine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.a.json() {
		return json.NewEncoder(r.a.out).Encode(l)
	}
	var label []string
	if r.many {
		label = append(label, r.a.paint(r.colours[l.FormationID], fmt.Sprintf("%-*s", r.width, l.FormationID)))
	}
	if r.req.Stream == "all" {
		tint := plain
		if l.Stream == "stderr" {
			tint = red
		}
		label = append(label, r.a.paint(tint, l.Stream))
	}
	if len(label) > 0 {
		label = append(label, "| ")
	}
	_, err := fmt.Fprintln(r.a.out, strings.Join(label, " ")+printable(l.Line))
	return err
}
