package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

func (a *app) secretsCommand() *cobra.Command {
	v := &vaultFlags{}
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Work with the encrypted secrets of a formation that you write",
		Long: `Work with the encrypted secrets of a formation that you write.

They are in secrets.enc beside the manifest, and ${{ secrets.NAME }} in its files
stands for one. A value is typed, or read from the standard input, and never
taken from the command line, where others see it; results show masks.

The key that opens the file is, in this order, in SVC_SECRETS_KEY, in the key
store of the supervisor on this machine (keys/ID.key in its home), or in .key
beside the manifest, where the first "secrets set" makes one. Keep .key out of
version control.

"secrets setup" asks for all that a formation lacks. A deployed formation uses
what was deployed: deploy again, or change it there with PUT /v1/secrets/NAME.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&v.path, "path", ".", "directory of the formation")
	cmd.PersistentFlags().StringVar(&v.from, "key-from", keyAuto, "where the key is: auto, env, store or file")
	cmd.AddCommand(a.secretsSetupCommand(v), a.secretsSetCommand(v), a.secretsGetCommand(v), a.secretsListCommand(v),
		a.secretsDeleteCommand(v), a.secretsRotateCommand(v), a.secretsImportCommand(v))
	return cmd
}

// secretValue is one secret for programs.
type secretValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Created tells that there was none of the name.
	Created *bool `json:"created,omitempty"`
}

func (a *app) secretsGetCommand(flags *vaultFlags) *cobra.Command {
	var reveal bool
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Print the mask of a secret, or with --reveal its value",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			name, err := secretName(args[0])
			if err != nil {
				return err
			}
			v, err := a.readVault(flags)
			if err != nil {
				return err
			}
			value, ok := v.values[name]
			if !ok {
				return v.missing(name)
			}
			if !reveal {
				value = secretfile.Mask(value)
			}
			if a.json() {
				return a.printJSON(secretValue{Name: name, Value: value})
			}
			// As it is: a value may be for another program, with control characters.
			_, err = fmt.Fprintln(a.out, value)
			return err
		}),
	}
	cmd.Flags().BoolVar(&reveal, "reveal", false, "print the value itself")
	return cmd
}

// secretList is what a formation has and wants.
type secretList struct {
	Secrets map[string]string   `json:"secrets"` // masks by name
	Count   int                 `json:"count"`
	UsedBy  map[string][]string `json:"used_by"` // places by name
	Missing []string            `json:"missing"` // names that are used and have no value
}

func (a *app) secretsListCommand(flags *vaultFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the secrets with their masks, where they are used, and which are missing",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			v, err := a.readVault(flags)
			if err != nil {
				return err
			}
			list := secretList{Secrets: make(map[string]string), Count: len(v.values), UsedBy: a.uses(v), Missing: []string{}}
			for name, value := range v.values {
				list.Secrets[name] = secretfile.Mask(value)
			}
			for _, name := range slices.Sorted(maps.Keys(list.UsedBy)) {
				if _, ok := v.values[name]; !ok {
					list.Missing = append(list.Missing, name)
				}
			}
			if a.json() {
				return a.printJSON(list)
			}
			return a.printSecrets(list)
		}),
	}
}

func (a *app) printSecrets(list secretList) error {
	if len(list.Secrets)+len(list.Missing) == 0 {
		return a.result("there are no secrets, and none is used")
	}
	t := table{heading: []string{"NAME", "VALUE", "USED BY"}}
	for _, name := range slices.Sorted(maps.Keys(list.Secrets)) {
		t.add(name, list.Secrets[name], placesText(list.UsedBy[name]))
	}
	for _, name := range list.Missing {
		t.rows = append(t.rows, []cell{{name, plain}, {"missing", red}, {placesText(list.UsedBy[name]), plain}})
	}
	return a.printTable(a.out, t)
}

// placesText shows the first of some places.
func placesText(places []string) string {
	switch len(places) {
	case 0:
		return "-"
	case 1:
		return places[0]
	}
	return fmt.Sprintf("%s and %d more", places[0], len(places)-1)
}

// uses returns the places of the formation's files that use each secret. A
// formation that is not finished has its secrets, too.
func (a *app) uses(v *vault) map[string][]string {
	used, err := usesOf(v.dir)
	if err != nil {
		a.say("warning: where secrets are used is not known: %s", firstLine(err))
	}
	return used
}

// usesOf is uses for a formation that must load.
func usesOf(dir string) (map[string][]string, error) {
	used := make(map[string][]string)
	f, _, err := manifest.Load(dir)
	if err != nil {
		return used, err
	}
	for _, r := range secretRefs(f) {
		name := secretfile.Normalize(r.Name)
		used[name] = append(used[name], fmt.Sprintf("%s:%d:%d", r.File, r.Line, r.Col))
	}
	return used, nil
}

// secretRefs returns the places that use a secret, those that resolve it late
// at the end.
func secretRefs(f *manifest.Formation) []manifest.Ref {
	refs := f.SecretRefs()
	for _, r := range f.LateRefs() {
		if r.Kind == manifest.KindSecret {
			refs = append(refs, r)
		}
	}
	return refs
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// secretName returns the one form of a name.
func secretName(text string) (string, error) {
	if strings.Contains(text, "=") {
		return "", usagef("a value is not taken from the command line, where others see it: type it, or give it with --stdin")
	}
	name := secretfile.Normalize(text)
	if name == "" || len(name) > secretfile.MaxName {
		return "", usagef("a name has 1 to %d letters, digits and underscores", secretfile.MaxName)
	}
	return name, nil
}
