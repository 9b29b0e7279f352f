package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/supervisor"
)

func (a *app) initCommand() *cobra.Command {
	var opts supervisor.InitOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the directory of a supervisor with settings and a random key pair",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			opts.Home = a.home
			if opts.Home == "" {
				opts.Home = a.defaultHome()
			}
			made, err := supervisor.Init(opts)
			if err != nil {
				return err
			}
			return a.printInit(opts.Home, made)
		}),
	}
	cmd.Flags().StringVar(&opts.Host, "host", "127.0.0.1", "address that the management API listens on")
	cmd.Flags().IntVar(&opts.Port, "port", 7890, "port that the management API listens on")
	cmd.Flags().Bool("yes", false, "never ask (nothing is asked in this release)")
	cmd.Flags().Bool("no-models", false, "fetch no model (none is fetched in this release)")
	return cmd
}

// printInit tells where the settings are. The secret stays in the file.
func (a *app) printInit(dir string, made supervisor.InitResult) error {
	if a.json() {
		return a.printJSON(map[string]any{
			"config": made.ConfigPath, "created": made.Created, "url": made.URL, "key_id": made.KeyID,
		})
	}
	verb := "wrote"
	if !made.Created {
		verb = "kept"
	}
	_, err := fmt.Fprintf(a.out, "%s %s (address and keys are in it)\nnext: supervisor serve --home %s\n",
		verb, made.ConfigPath, dir)
	return err
}
