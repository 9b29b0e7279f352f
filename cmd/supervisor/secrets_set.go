package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/secretfile"
)

func (a *app) secretsSetCommand(flags *vaultFlags) *cobra.Command {
	var force, stdin bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a secret to what you type, or to the standard input",
		Long: `Set a secret to what you type, or to the standard input.

At a terminal it is asked for and not shown. Else, and with --stdin, it is all of
the standard input without its last end of line. A secret that exists is replaced
with --force only.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("a value is not taken from the command line, where others see it: type it when asked, or pipe it in")
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: does(func(cmd *cobra.Command, args []string) error {
			name, err := secretName(args[0])
			if err != nil {
				return err
			}
			value, err := a.newValue(cmd.Context(), name, stdin)
			if err != nil {
				return err
			}
			created := false
			v, err := a.changeVault(flags, func(v *vault) error {
				old, exists := v.values[name]
				if exists && !force && old != value {
					return conflict("SecretExists", "there is a secret %s already: --force replaces it", name)
				}
				created, v.values[name] = !exists, value
				return nil
			})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(secretValue{name, secretfile.Mask(value), &created})
			}
			return a.result("%s: %s in %s", name, secretfile.Mask(value), v.enc)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a secret that exists")
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the value from the standard input, also at a terminal")
	return cmd
}

// newValue reads the value of a secret.
func (a *app) newValue(ctx context.Context, name string, stdin bool) (value string, err error) {
	if a.inTTY && !stdin {
		value, err = a.readSecret(ctx, "value of "+name+" (not shown): ")
	} else {
		var raw []byte
		raw, err = io.ReadAll(io.LimitReader(a.in, secretfile.MaxValue+3))
		value = strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("read the value: %w", err)
	case value == "":
		return "", usagef("the value is empty: type it, or give it on the standard input")
	}
	return value, checkValue(value)
}

func checkValue(value string) error {
	if len(value) > secretfile.MaxValue {
		return usagef("the value is over the limit of %d bytes", secretfile.MaxValue)
	}
	return nil
}

func (a *app) secretsDeleteCommand(flags *vaultFlags) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a secret; one that is used with --force only",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			name, err := secretName(args[0])
			if err != nil {
				return err
			}
			_, err = a.changeVault(flags, func(v *vault) error {
				if _, ok := v.values[name]; !ok {
					return v.missing(name)
				}
				if places := a.uses(v)[name]; len(places) > 0 && !force {
					return conflict("SecretInUse", "%s is used by %s: change that first, or give --force", name, placesText(places))
				}
				delete(v.values, name)
				return nil
			})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(map[string]any{"name": name, "deleted": true})
			}
			return a.result("%s: deleted", name)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete it although the formation uses it")
	return cmd
}

// imported is what an import did, by name.
type imported struct {
	Added       []string `json:"added"`
	Overwritten []string `json:"overwritten"`
	Unchanged   []string `json:"unchanged"`
	Empty       []string `json:"empty"` // without a value, not taken
}

func (a *app) secretsImportCommand(flags *vaultFlags) *cobra.Command {
	var force, stdin bool
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Take over the secrets of a .env file",
		Long: `Take over the secrets of a .env file, all of them or none.

FILE has lines NAME=VALUE; - or --stdin is the standard input. Names without a
value are left out. Secrets that exist with another value are replaced with
--force only.`,
		Args: cobra.MaximumNArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			from := "-"
			switch {
			case len(args) == 1 && (!stdin || args[0] == "-"):
				from = args[0]
			case len(args) == 1:
				return usagef("--stdin and a file are two sources: give one")
			case !stdin:
				return usagef("which file? - is the standard input")
			}
			values, err := a.readEnv(from)
			if err != nil {
				return err
			}
			var done imported
			if _, err = a.changeVault(flags, func(v *vault) error { return v.take(values, force, &done) }); err != nil {
				return err
			}
			return a.printImported(done)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace secrets that exist")
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the standard input")
	return cmd
}

func (a *app) readEnv(from string) (map[string]string, error) {
	in := a.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, fmt.Errorf("open the file to import: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, secretfile.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", from, err)
	}
	values, err := secretfile.ParseEnv(string(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return values, nil
}

// take adds values and says what that did.
func (v *vault) take(values map[string]string, force bool, done *imported) error {
	*done = imported{[]string{}, []string{}, []string{}, []string{}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch old, exists := v.values[name]; {
		case values[name] == "":
			done.Empty = append(done.Empty, name)
			continue
		case !exists:
			done.Added = append(done.Added, name)
		case old == values[name]:
			done.Unchanged = append(done.Unchanged, name)
		default:
			done.Overwritten = append(done.Overwritten, name)
		}
		v.values[name] = values[name]
	}
	if len(done.Overwritten) > 0 && !force {
		return conflict("SecretExists", "nothing was imported: %s exist with other values, and --force replaces them", strings.Join(done.Overwritten, ", "))
	}
	return nil
}

func (a *app) printImported(done imported) error {
	if a.json() {
		return a.printJSON(done)
	}
	for _, part := range []struct {
		what  string
		names []string
	}{{"added", done.Added}, {"overwritten", done.Overwritten}, {"unchanged", done.Unchanged}, {"without a value, left out", done.Empty}} {
		if len(part.names) == 0 {
			continue
		}
		if err := a.result("%s: %s", part.what, strings.Join(part.names, ", ")); err != nil {
			return err
		}
	}
	if len(done.Added)+len(done.Overwritten)+len(done.Unchanged)+len(done.Empty) == 0 {
		return a.result("there was nothing to import")
	}
	return nil
}
