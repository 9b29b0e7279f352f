package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/version"
)

const rootHelp = `Hosts formations: teams of AI agents, each run as a process of its own.

The supervisor to call is found in this order: --home (its config.yaml has the
address and the keys), --profile or SVC_PROFILE (from ~/.svc/cli/profiles.yaml),
SVC_SERVER_URL with SVC_KEY_ID and SVC_SECRET_KEY, the default profile, and the
home ~/.svc/server; an installed program takes /var/lib/svc where that is not.
--server replaces the address and keeps the rest.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unauthorised,
6 unavailable, 130 interrupted.`

// rootCommand builds the command tree.
func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "supervisor",
		Short:         "Serve formations and work with them",
		Long:          rootHelp,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&a.home, "home", "", "directory of the supervisor: settings, formations, state")
	root.PersistentFlags().StringVar(&a.profile, "profile", "", "name of a saved supervisor")
	root.PersistentFlags().StringVar(&a.server, "server", "", "address of the supervisor, instead of the one found")
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "text", "how to print results: text or json")
	if err := root.RegisterFlagCompletionFunc("profile", a.completeProfiles); err != nil {
		panic(err) // the flag is not the one above
	}
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.output != "text" && a.output != "json" {
			return fmt.Errorf("--output %q: it must be text or json", a.output)
		}
		return nil
	}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Formations:", []*cobra.Command{
			a.deployCommand(), a.updateCommand(), a.rollbackCommand(), a.cancelUpdateCommand(), a.statusCommand(),
			a.startCommand(), a.stopCommand(), a.restartCommand(), a.deleteCommand(),
			a.logsCommand(), a.chatCommand(), a.routeCommand(), a.toolsCommand(), a.traceCommand(), a.cancelCommand(),
			a.eventsCommand(), a.usageCommand(), a.downloadCommand(), a.auditCommand(),
		}},
		{"Writing a formation:", []*cobra.Command{
			a.newCommand(), a.validateCommand(), a.schemaCommand(),
			a.devCommand(), a.upCommand(), a.downCommand(), a.draftCommand(), a.secretsCommand(),
		}},
		{"The supervisor on this machine:", []*cobra.Command{
			a.initCommand(), a.serveCommand(), a.reloadCommand(), a.configCommand(), a.keysCommand(),
			a.backupCommand(), a.restoreCommand(), a.doctorCommand(),
		}},
		{"This program:", []*cobra.Command{a.profilesCommand(), a.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("This program:")
	root.SetCompletionCommandGroupID("This program:")
	strictHelp(root)
	return root
}

// strictHelp lets the commands that cobra adds fail for what they do not know,
// like all others: alone they print help and end with 0.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, topic []string) error {
				if _, rest, err := root.Find(topic); err != nil || len(rest) > 0 {
					return usagef("there is no command %q", strings.Join(topic, " "))
				}
				return nil
			}
		case "completion":
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// does wraps the work of a command, so that explain can tell its errors from
// those that cobra finds in the command line.
func does(work func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := work(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

// failure is an error of a command that was called rightly.
type failure struct{ error }

// Unwrap returns the error itself.
func (f *failure) Unwrap() error { return f.error }
