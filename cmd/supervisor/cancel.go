package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) cancelCommand() *cobra.Command {
	d := &door{a: a, wish: wantAdmin}
	cmd := &cobra.Command{
		Use:   "cancel ID REQUEST",
		Short: "End a request that a formation works on",
		Long: `End a request that a formation works on. Whoever waits for its answer is told;
what its tools have done stays done.`,
		Example: `  supervisor trace hello
  supervisor cancel hello req_-P6zTxqdXMDurwUkrHqyr`,
		Args: cobra.ExactArgs(2),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			return d.within(cmd.Context(), args[0], func(f *client.Formation) error {
				done, err := f.CancelRequest(cmd.Context(), args[1])
				if e, ok := errors.AsType[*client.Error](err); ok && e.Name == "REQUEST_NOT_FOUND" {
					return &hint{err, "`supervisor trace " + args[0] + "` lists those that there are"}
				}
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(done)
				}
				return a.result("%s: request %s is cancelled", args[0], done.RequestID)
			})
		}),
	}
	d.flags(cmd, "the user whose request it is (default: with the admin key any)")
	return cmd
}
