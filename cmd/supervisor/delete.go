package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) deleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete ID...",
		Short: "Stop formations and remove them with all their data",
		Long: `Stop formations and remove them with all their data: versions, memory, keys.

A person at a terminal is asked before; a script is not.`,
		Args: cobra.MinimumNArgs(1),

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			if !yes && !a.confirms("remove "+strings.Join(args, ", ")+" with all data?") {
				return fmt.Errorf("nothing was removed")
			}
			return a.each(args, "deleted", func(id string, _ func(client.Progress)) (*client.Launched, error) {
				return nil, t.advise(s.Delete(cmd.Context(), id))
			})
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// confirms asks a person; a script is not asked.
func (a *app) confirms(question string) bool {
	if !a.inTTY {
		return true
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	in := bufio.NewScanner(a.in)
	return in.Scan() && strings.EqualFold(strings.TrimSpace(in.Text()), "y")
}
