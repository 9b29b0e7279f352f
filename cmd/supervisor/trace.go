package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) traceCommand() *cobra.Command {
	d := &door{a: a, wish: wantAdmin}
	var limit int
	var verbose bool
	cmd := &cobra.Command{
		Use:   "trace ID [REQUEST]",
		Short: "Show what a formation did for a request, or its newest requests",
		Long: `Show what a formation did for a request: who was considered, each call of a model
and of a tool, with duration, tokens, cost and errors. Without a request it shows
the newest ones to choose from.`,
		Example: `  supervisor trace hello
  supervisor trace hello req_-P6zTxqdXMDurwUkrHqyr --verbose`,
		Args: cobra.RangeArgs(1, 2),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usagef("--limit %d: it must be 1 or more", limit)
			}
			return d.within(cmd.Context(), args[0], func(f *client.Formation) error {
				if len(args) == 1 {
					list, err := f.Requests(cmd.Context())
					if err != nil {
						return err
					}
					return a.printRequests(args[0], list[:min(limit, len(list))])
				}
				trace, err := f.Trace(cmd.Context(), args[1])
				if e, ok := errors.AsType[*client.Error](err); ok && e.Name == "REQUEST_NOT_FOUND" {
					return &hint{err, "`supervisor trace " + args[0] + "` lists those that there are"}
				}
				if err != nil {
					return err
				}
				return a.printTrace(trace, verbose)
			})
		}),
	}
	d.flags(cmd, "only requests of this user (default: with the admin key all)")
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "how many of the newest requests")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print all that each step says of itself, such as what a tool was given")
	return cmd
}

func (a *app) printRequests(id string, list []client.RequestSummary) error {
	if a.json() {
		return a.printJSON(map[string]any{"requests": orEmpty(list), "count": len(list)})
	}
	if len(list) == 0 && a.outTTY {
		a.say("nothing was asked yet: `supervisor chat %s MESSAGE` asks something", id)
	}
	t := table{heading: []string{"REQUEST", "USER", "STATUS", "BEGAN", "TOOK", "ERROR"}}
	for _, r := range list {
		took := "-"
		if r.CompletedAt != nil {
			took = tookText(r.CompletedAt.Sub(r.CreatedAt))
		}
		t.rows = append(t.rows, []cell{
			{text: r.RequestID},
			{text: r.UserID},
			{r.Status, statusColour(r.Status)},
			{text: r.CreatedAt.Local().Format(time.DateTime)},
			{text: took},
			{text: trouble(r.Failure)},
		})
	}
	return a.printTable(a.out, t)
}

// statusColour is that of the state of a request or a span.
func statusColour(status string) colour {
	switch status {
	case "failed", "error":
		return red
	case "cancelled", "awaiting_clarification":
		return yellow
	}
	return plain
}

// tookText shows how long something took: 7ms, 1.25s, 3m4s.
func tookText(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func (a *app) printTrace(trace *client.Trace, verbose bool) error {
	if a.json() {
		return a.printJSON(trace)
	}
	t := table{heading: []string{"STEP", "TOOK", "TOKENS", "COST", "STATUS"}}
	rows := treeOf(trace.Spans)
	for _, r := range rows {
		t.rows = append(t.rows, []cell{
			{text: r.branch + r.span.label()}, {text: millis(r.span.DurationMS)}, {text: r.span.tokens()}, {text: r.span.cost()}, r.span.state(),
		})
	}
	if err := a.printTable(a.out, t); err != nil {
		return err
	}
	if verbose {
		if err := a.printAttributes(rows); err != nil {
			return err
		}
	}
	return a.result("\n%s", totalsText(&trace.Totals))
}

// printAttributes prints what the steps say of themselves.
func (a *app) printAttributes(rows []treeRow) error {
	for _, r := range rows {
		lines := []string{"", a.paint(bold, printable(r.span.label()))}
		for _, name := range slices.Sorted(maps.Keys(r.span.Attributes)) {
			lines = append(lines, "  "+printable(name+": "+plainJSON(r.span.Attributes[name])))
		}
		if _, err := fmt.Fprintln(a.out, strings.Join(lines, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// plainJSON shows a text without its quotes, everything else as it is.
func plainJSON(raw json.RawMessage) string {
	var text *string
	switch err := json.Unmarshal(raw, &text); {
	case err != nil:
		return string(raw)
	case text == nil:
		return "-"
	}
	return *text
}

func millis(ms float64) string { return tookText(time.Duration(ms * float64(time.Millisecond))) }

func totalsText(t *client.TraceTotals) string {
	parts := []string{
		millis(t.DurationMS), count(t.ModelCalls, "model call"), count(t.ToolCalls, "tool call"),
		fmt.Sprintf("%d tokens in, %d out", t.Tokens.Input, t.Tokens.Output),
	}
	if t.Tokens.Cached > 0 {
		parts[3] += fmt.Sprintf(" (%d cached)", t.Tokens.Cached)
	}
	if c := costText(t.Cost); c != "" {
		parts = append(parts, c)
	} else if t.ModelCalls > 0 {
		parts = append(parts, "cost unknown (no price in llm.prices)")
	}
	if t.SpansDropped > 0 {
		parts = append(parts, fmt.Sprintf("%s not kept", count(t.SpansDropped, "step")))
	}
	return "total: " + strings.Join(parts, ", ")
}

// costText shows money, "" for an unknown amount.
func costText(c *client.Cost) string {
	if c == nil {
		return ""
	}
	digits := 4
	for amount := c.Amount; amount > 0 && amount < 0.01 && digits < 9; amount *= 10 {
		digits++ // two digits that count
	}
	return strings.TrimSpace(strconv.FormatFloat(c.Amount, 'f', digits, 64) + " " + c.Currency)
}
