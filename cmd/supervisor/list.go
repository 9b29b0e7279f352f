package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) listCommand() *cobra.Command {
	var status string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the formations",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			items, err := s.List(cmd.Context(), status)
			if err != nil {
				return t.advise(err)
			}
			return a.printList(items)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "only those with this status (running, stopped, crashed, ...)")
	return cmd
}

func (a *app) printList(items []client.Info) error {
	if a.json() {
		if items == nil {
			items = []client.Info{}
		}
		return a.printJSON(map[string]any{"formations": items, "total": len(items)})
	}
	rows := make([][]string, 0, len(items))
	for _, f := range items {
		rows = append(rows, []string{
			f.ID, f.Name, orDash(f.Version.Semantic), f.Status, health(f.Healthy), strconv.Itoa(f.Port),
			age(time.Duration(f.Uptime) * time.Second),
		})
	}
	return printTable(a.out, []string{"ID", "NAME", "VERSION", "STATUS", "HEALTHY", "PORT", "UPTIME"}, rows)
}

func health(h *bool) string {
	switch {
	case h == nil:
		return "-"
	case *h:
		return "yes"
	}
	return "no"
}
