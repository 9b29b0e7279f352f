package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			if a.json() {
				return a.printJSON(map[string]string{
					"version": version.Version, "commit": version.Commit, "go": runtime.Version(),
				})
			}
			_, err := fmt.Fprintln(a.out, version.String())
			return err
		}),
	}
}
