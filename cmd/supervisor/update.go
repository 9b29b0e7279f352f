package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) rollbackCommand() *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:   "rollback ID",
		Short: "Let a version from before take over again, without a gap",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			way := newAttempt(false)
			close(way.sent) // nothing is uploaded
			launched, err := a.swap(cmd.Context(), s, swap{
				id: args[0], way: way,
				do: func(ctx context.Context, show func(client.Progress)) (*client.Launched, error) {
					return s.Rollback(ctx, args[0], version, show)
				},
			})
			if err != nil {
				return t.advise(replacedVersion(err))
			}
			return a.printLaunched(launched)
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "which kept version, as the author named it or the SHA-256 of its bundle (default: the one before)")
	return cmd
}

func (a *app) cancelUpdateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel-update ID",
		Short: "Cancel the update that runs; the version before serves on",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			done, err := s.CancelUpdate(cmd.Context(), args[0])
			if err != nil {
				return t.advise(err)
			}
			if a.json() {
				return a.printJSON(done)
			}
			return a.result("%s: the update is cancelled, the version before is %s", args[0], orDash(done.Status))
		}),
	}
}

// replacedVersion says where a rollback ended. "The version before" would be the
// one that was wanted.
func replacedVersion(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Stage == "" || e.Stage == "validating" {
		return err
	}
	told := stageOf(err, false)
	if e.RollbackStatus != "failed" {
		told = &replaced{err, told.Error() + "\nthe version that ran serves on"}
	}
	return told
}
