package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/secretfile"
)

// templateName is the file beside a manifest that names the secrets of the
// formation, without values. It is never part of a bundle.
const templateName = "secrets"

func (a *app) secretsSetupCommand(flags *vaultFlags) *cobra.Command {
	var force, stdin bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Give a value to every secret that the formation uses and lacks",
		Long: `Give a value to every secret that the formation uses and lacks.

At a terminal each is asked for and not shown; Enter alone leaves one for later.
Else, and with --stdin, the values are lines NAME=VALUE of the standard input,
as in a .env file: all of them are taken or none, names that nothing uses are
left out, and it fails when some are still without a value. --force asks for
secrets that have a value, too, and replaces them.

What a formation uses is found in its files, and in the file secrets beside the
manifest, with lines NAME=. Setup adds what is missing there, for those who get
the formation without its values.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			w, err := a.newWizard(flags, force)
			if err != nil {
				return err
			}
			w.saveTemplate()
			if a.inTTY && !stdin {
				err = w.ask(cmd.Context())
			} else {
				err = w.read()
			}
			if err != nil {
				return err
			}
			return w.print(a.inTTY && !stdin)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also those that have a value")
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read lines NAME=VALUE from the standard input, also at a terminal")
	return cmd
}

// wizard gives values to secrets.
type wizard struct {
	a     *app
	flags *vaultFlags
	force bool

	names    []string // that are used or named, in the order of the files
	used     map[string][]string
	had      map[string]bool
	template string // path
	listed   map[string]string
	noText   bool // the template can't be read, and stays as it is

	set, unused []string
}

func (a *app) newWizard(flags *vaultFlags, force bool) (*wizard, error) {
	v, err := a.readVault(flags)
	if err != nil {
		return nil, err
	}
	used, err := usesOf(v.dir)
	if err != nil {
		return nil, &hint{
			fmt.Errorf("which secrets are used is not known: %s", firstLine(err)), "mend what `supervisor validate " + shellWord(flags.path) + "` shows first",
		}
	}
	w := &wizard{a: a, flags: flags, force: force, used: used, had: make(map[string]bool), template: filepath.Join(v.dir, templateName)}
	for name := range v.values {
		w.had[name] = true
	}
	w.readTemplate()
	w.names = slices.Sorted(maps.Keys(w.used))
	for _, name := range slices.Sorted(maps.Keys(w.listed)) {
		if w.used[name] == nil {
			w.names = append(w.names, name)
		}
	}
	return w, nil
}

// readTemplate reads which names the template has. Whatever else is in its
// place is left alone.
func (w *wizard) readTemplate() {
	f, err := os.Open(w.template)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(f, secretfile.MaxFile+1))
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		w.listed, err = secretfile.ParseEnv(string(raw))
	}
	if err != nil {
		w.noText = true
		w.a.say("warning: %s is not used: %v", w.template, err)
		return
	}
	for _, value := range w.listed {
		if value != "" {
			w.a.say("warning: %s has values that everybody can read: `supervisor secrets import %s` takes them over, then remove them there", w.template, shellWord(w.template))
			break
		}
	}
}

// ask asks a person. Each answer is kept at once: who has enough may interrupt.
func (w *wizard) ask(ctx context.Context) error {
	open := w.open()
	if w.force {
		open = w.names
	}
	if len(open) > 0 {
		w.a.say("Type each value and Enter, or Enter alone to leave it as it is. What you type is not shown.")
	}
	for i, name := range open {
		state := ""
		if w.had[name] {
			state = ", has a value"
		}
		value, err := w.a.readSecret(ctx, fmt.Sprintf("%d/%d %s (%s%s): ", i+1, len(open), name, w.place(name), state))
		if err != nil {
			return fmt.Errorf("read the value of %s: %w", name, err)
		}
		if value == "" {
			continue
		}
		if err := w.keep(map[string]string{name: value}); err != nil {
			return err
		}
	}
	return nil
}

func (w *wizard) place(name string) string {
	if w.used[name] == nil {
		return "named in " + templateName
	}
	return placesText(w.used[name])
}

// read takes the values from the standard input.
func (w *wizard) read() error {
	values, err := w.a.readEnv("-")
	if err != nil {
		return err
	}
	for name, value := range values {
		switch {
		case !slices.Contains(w.names, name):
			w.unused = append(w.unused, name)
			delete(values, name)
		case value == "":
			delete(values, name)
		}
	}
	slices.Sort(w.unused)
	if len(values) == 0 {
		return nil
	}
	return w.keep(values)
}

// keep stores values.
func (w *wizard) keep(values map[string]string) error {
	for _, value := range values {
		if err := checkValue(value); err != nil {
			return err
		}
	}
	var done imported
	if _, err := w.a.changeVault(w.flags, func(v *vault) error { return v.take(values, w.force, &done) }); err != nil {
		return err
	}
	for name := range values {
		w.had[name] = true
	}
	w.set = slices.Concat(w.set, done.Added, done.Overwritten)
	return nil
}

// open returns the names that have no value.
func (w *wizard) open() []string {
	open := []string{}
	for _, name := range w.names {
		if !w.had[name] {
			open = append(open, name)
		}
	}
	return open
}

// saveTemplate adds the names that the template lacks. That it can't be written
// is no fault of the secrets.
func (w *wizard) saveTemplate() {
	var lines strings.Builder
	for _, name := range w.names {
		if _, ok := w.listed[name]; !ok {
			lines.WriteString(name + "=\n")
		}
	}
	if lines.Len() == 0 || w.noText {
		return
	}
	head := ""
	if w.listed == nil {
		head = "# The secrets that this formation uses. Their values are in secrets.enc:\n# `supervisor secrets setup` asks for them.\n"
	}
	f, err := os.OpenFile(w.template, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644) //nolint:gosec // names, for others to read
	if err == nil {
		if endsInLine(f) {
			head = "\n" + head
		}
		_, err = f.WriteString(head + lines.String())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.a.say("warning: the names are not written down: %v", err)
	}
}

// endsInLine tells whether the last line of a file has no end.
func endsInLine(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = f.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// setupResult is what setup did, by name.
type setupResult struct {
	Set     []string `json:"set"`
	Unused  []string `json:"unused"`  // given, and not taken
	Missing []string `json:"missing"` // still without a value
}

// print tells what was done. A person knows what was left out on purpose; a
// program does not.
func (w *wizard) print(person bool) error {
	r := setupResult{Set: append([]string{}, w.set...), Unused: append([]string{}, w.unused...), Missing: w.open()}
	slices.Sort(r.Set)
	if w.a.json() {
		if err := w.a.printJSON(r); err != nil {
			return err
		}
	} else if err := w.a.printSetup(r); err != nil {
		return err
	}
	if len(r.Missing) == 0 || person {
		return nil
	}
	return fmt.Errorf("still without a value: %s", strings.Join(r.Missing, ", "))
}

func (a *app) printSetup(r setupResult) error {
	for _, part := range []struct {
		what  string
		names []string
	}{{"set", r.Set}, {"not used by the formation, left out", r.Unused}, {"without a value", r.Missing}} {
		if len(part.names) == 0 {
			continue
		}
		if err := a.result("%s: %s", part.what, strings.Join(part.names, ", ")); err != nil {
			return err
		}
	}
	if len(r.Missing) == 0 {
		return a.result("every secret that is used has a value")
	}
	return nil
}
