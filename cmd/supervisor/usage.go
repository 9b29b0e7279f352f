package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// usageGroups are what usage is added up by.
var usageGroups = [...]string{"day", "agent", "user", "model", "provider"}

func (a *app) usageCommand() *cobra.Command {
	d := &door{a: a, wish: needAdmin}
	var since, until string
	var q client.UsageQuery
	cmd := &cobra.Command{
		Use:   "usage ID",
		Short: "Show what a formation's calls to models used and cost, and its budgets",
		Long: `Show what a formation's calls to models used and cost, and its budgets of today.
A cost needs prices: llm.prices in the formation's manifest.`,
		Example: `  supervisor usage hello
  supervisor usage hello --by model --since 7d`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) (err error) {
			if !slices.Contains(usageGroups[:], q.GroupBy) {
				return usagef("--by %s: it must be one of %s", q.GroupBy, strings.Join(usageGroups[:], ", "))
			}
			now := time.Now()
			if q.From, err = pointInTime("--since", since, now); err != nil {
				return err
			}
			if q.To, err = pointInTime("--until", until, now); err != nil {
				return err
			}
			return d.within(cmd.Context(), args[0], func(f *client.Formation) error {
				usage, err := f.Usage(cmd.Context(), q)
				if err != nil {
					return err
				}
				return a.printUsage(usage)
			})
		}),
	}
	d.flags(cmd, "")
	flags := cmd.Flags()
	flags.StringVar(&q.GroupBy, "by", "day", "what it is added up by: "+strings.Join(usageGroups[:], ", "))
	flags.StringVar(&q.UserID, "user", "", "only this user")
	flags.StringVar(&since, "since", "24h", "only what is newer: a time (2026-01-02T15:04:05Z), a day (2026-01-02) or an age (2h, 7d)")
	flags.StringVar(&until, "until", "", "only what is older, given likewise")
	return cmd
}

func (a *app) printUsage(u *client.UsageReport) error {
	if a.json() {
		return a.printJSON(u)
	}
	t := table{heading: []string{strings.ToUpper(u.GroupBy), "REQUESTS", "CALLS", "TOKENS IN", "CACHED", "TOKENS OUT", "COST"}}
	for _, g := range u.Groups {
		t.add(usageRow(orDash(g.Key), &g.UsageTotals)...) // nobody's: of the overlord, or a probe
	}
	t.add(usageRow("total", &u.Totals)...)
	if err := a.printTable(a.out, t); err != nil || len(u.Budgets) == 0 {
		return err
	}
	fmt.Fprintln(a.out)
	t = table{heading: []string{"BUDGET", "OF", "TOKENS", "AMOUNT", "STATE"}}
	for _, b := range u.Budgets {
		tokens, amount := strconv.Itoa(b.Tokens.Used), costText(&client.Cost{Amount: b.Amount.Used})
		if b.Tokens.Limit != nil {
			tokens += " of " + strconv.Itoa(*b.Tokens.Limit)
		}
		if b.Amount.Limit != nil {
			amount += " of " + costText(&client.Cost{Amount: *b.Amount.Limit})
		}
		t.rows = append(t.rows, []cell{{text: b.Scope}, {text: b.ID}, {text: tokens}, {text: amount}, {b.State, budgetColour(b.State)}})
	}
	return a.printTable(a.out, t)
}

func usageRow(key string, t *client.UsageTotals) []string {
	cost := costText(t.Cost)
	if cost == "" && t.ModelCalls > 0 {
		cost = "unknown"
	}
	return []string{
		key, strconv.Itoa(t.Requests), strconv.Itoa(t.ModelCalls),
		strconv.Itoa(t.Tokens.Input), strconv.Itoa(t.Tokens.Cached), strconv.Itoa(t.Tokens.Output), orDash(cost),
	}
}

func budgetColour(state string) colour {
	switch state {
	case "warning":
		return yellow
	case "exceeded":
		return red
	}
	return plain
}
