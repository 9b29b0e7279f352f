package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// levels are those of events, from the least to the most urgent.
var levels = []string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}

func (a *app) eventsCommand() *cobra.Command {
	w := &eventWatcher{door: door{a: a, wish: wantAdmin}}
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "Print what happens in a formation, as it happens, until interrupted",
		Long: `Print what happens in a formation, as it happens, until interrupted.

Alone, or with --session, these are the events of chats, agents and their tasks.
--request, --agent, --level and --type look into the formation's whole log: every
event, and the lines that "supervisor logs" shows, as type "log". What happens
while the stream is broken is not seen; "supervisor trace" shows it afterwards.`,
		Example: `  supervisor events hello
  supervisor events hello --session s1
  supervisor events hello --level warning
  supervisor events hello --type 'agent.*' --output json`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			w.filter.Level = strings.ToUpper(w.filter.Level)
			if w.filter.Level != "" && !slices.Contains(levels, w.filter.Level) {
				return usagef("--level %q: it must be %s", w.filter.Level, strings.ToLower(strings.Join(levels, ", ")))
			}
			return w.within(cmd.Context(), args[0], func(*client.Formation) error { return w.watch(cmd.Context(), args[0]) })
		}),
	}
	w.flags(cmd, "only what happens for this user (default: with the admin key all)")
	flags := cmd.Flags()
	flags.StringVar(&w.filter.SessionID, "session", "", "only what happens in this session")
	flags.StringVar(&w.filter.RequestID, "request", "", "only what happens for this request")
	flags.StringVar(&w.filter.AgentID, "agent", "", "only what this agent does")
	flags.StringVar(&w.filter.Level, "level", "", "only from this level on: "+strings.ToLower(strings.Join(levels, ", ")))
	flags.StringVar(&w.filter.Type, "type", "", "only events of this type; * stands for any text")
	return cmd
}

// eventWatcher prints events of one formation.
type eventWatcher struct {
	door
	filter client.EventFilter
}

// watch prints events until ctx ends or the formation is gone for good. A
// stream that breaks, as at an update of the formation, is taken up again.
func (w *eventWatcher) watch(ctx context.Context, id string) error {
	if !w.a.json() && w.a.errTTY {
		w.a.say("following %s; Ctrl-C ends it", id)
	}
	failed, said, opened := 0, false, false
	tick := time.NewTicker(w.a.pause)
	defer tick.Stop()
	for {
		began := time.Now()
		err := w.f.FollowEvents(ctx, w.filter, func(e client.LiveEvent) error {
			failed, opened = 0, true
			if said {
				said = false
				w.a.say("the events of %s go on", id)
			}
			return w.print(&e)
		})
		e, ok := errors.AsType[*client.Error](err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !ok || !lost(e) || failed == followTries || e.IsDown() && !opened:
			return err
		}
		// A stream that stayed open was a good one, however quiet.
		opened = opened || e.Name == client.NameBrokenStream
		if failed++; e.Name == client.NameBrokenStream && time.Since(began) > w.a.pause {
			failed = 0
		}
		if !said && e.Name != client.NameBrokenStream {
			said = true
			w.a.say("%s does not answer: its events are followed again when it does", id)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// print prints one event; in JSON it is an object on a line of its own.
func (w *eventWatcher) print(e *client.LiveEvent) error {
	if w.a.json() {
		return json.NewEncoder(w.a.out).Encode(e)
	}
	if e.Fault {
		w.a.say("%s", e.Message)
		return nil
	}
	line := w.a.paint(dim, e.Time().Format("15:04:05.000"))
	if e.Level != "" {
		line += " " + w.a.paint(levelColour(e.Level), fmt.Sprintf("%-8s", strings.Map(noBreak, printable(e.Level))))
	}
	text := fmt.Sprintf(" %-18s %s", e.Type, e.Message)
	if detail := eventDetail(e); detail != "" {
		text += "  " + detail
	}
	_, err := fmt.Fprintln(w.a.out, line+strings.Map(noBreak, printable(text)))
	return err
}

// eventDetail says what an event is about: whom and which request.
func eventDetail(e *client.LiveEvent) string {
	var parts []string
	if data := strings.TrimSpace(string(e.Data)); data != "" && data != "null" && data != "{}" {
		parts = append(parts, data)
	}
	for _, id := range []string{e.AgentID, e.UserID, e.SessionID, e.RequestID} {
		if id != "" {
			parts = append(parts, id)
		}
	}
	return strings.Join(parts, " ")
}

func levelColour(level string) colour {
	switch level {
	case "WARNING":
		return yellow
	case "ERROR", "CRITICAL":
		return red
	case "DEBUG":
		return dim
	}
	return plain
}
