package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) routeCommand() *cobra.Command {
	d := &door{a: a, wish: wantClient, user: a.userName}
	req := client.RouteRequest{}
	cmd := &cobra.Command{
		Use:   "route ID MESSAGE",
		Short: "Show which agent of a formation would answer a message, and why",
		Long: `Show which agent of a formation would answer a message, and why.

No agent sees the message and nothing is stored. A formation that routes by model
asks its model, as it would for a real message; overlord.routing.method: heuristic
decides by words alone.`,
		Example: `  supervisor route hello "Write a poem about the sea"
  supervisor route hello --session s1 "and now shorter"`,
		Args: cobra.ExactArgs(2),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			req.Message = args[1]
			return d.within(cmd.Context(), args[0], func(f *client.Formation) error {
				preview, err := f.Route(cmd.Context(), req)
				if err != nil {
					return err
				}
				return a.printRoute(preview)
			})
		}),
	}
	d.flags(cmd, "user id to ask as")
	cmd.Flags().StringVar(&req.SessionID, "session", "", "session that the message would continue")
	return cmd
}

func (a *app) printRoute(p *client.RoutePreview) error {
	if a.json() {
		return a.printJSON(p)
	}
	t := table{heading: []string{"AGENT", "SCORE", "WHY"}}
	for i, agent := range p.Agents {
		tint := plain
		if i == 0 {
			tint = green
		}
		t.rows = append(t.rows, []cell{
			{agent.ID, tint},
			{text: strconv.FormatFloat(agent.Score, 'f', 2, 64)},
			{text: orDash(strings.Join(agent.Reasons, "; "))},
		})
	}
	if err := a.printTable(a.out, t); err != nil || len(p.Agents) == 0 {
		return err
	}
	topic := "on topic"
	if p.OffTopic {
		topic = "off topic: no agent is for this"
	}
	return a.result("\n%s would answer (method %s: %s), %s", p.Agents[0].ID, p.Method, methodText(p), topic)
}

// methodText says what a method of routing means.
func methodText(p *client.RoutePreview) string {
	switch p.Method {
	case "single":
		return "it is the only agent"
	case "history":
		return "the session stays with its agent"
	case "model":
		return "a model chose"
	case "sop":
		return "a procedure names it"
	case "default":
		if p.OffTopic {
			return "it is the default agent"
		}
		return "by the words of the message"
	}
	return "as the formation says"
}
