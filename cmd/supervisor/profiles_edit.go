package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// profileCheck bounds the look whether a new profile works.
const profileCheck = 5 * time.Second

// profileName is the form of a profile's name.
var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// profileBook is the profiles file as it is written, with keys and comments
// that this program does not know.
type profileBook struct {
	path     string
	root     yaml.MapSlice
	comments yaml.CommentMap
}

// openProfiles reads the file for a change; a missing one is empty.
func openProfiles(path string) (*profileBook, error) {
	if _, err := readProfiles(path); err != nil {
		return nil, err // what cannot be understood is not overwritten
	}
	b := &profileBook{path: path, comments: yaml.CommentMap{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b.root = yaml.MapSlice{{Key: "version", Value: 1}}
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read profiles: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(raw, &b.root, yaml.UseOrderedMap(), yaml.CommentToMap(b.comments)); err != nil {
		return nil, fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, false))
	}
	return b, nil
}

// put sets a key of a mapping.
func put(m yaml.MapSlice, key string, value any) yaml.MapSlice {
	for i := range m {
		if m[i].Key == key {
			m[i].Value = value
			return m
		}
	}
	return append(m, yaml.MapItem{Key: key, Value: value})
}

// entries returns the profiles.
func (b *profileBook) entries() yaml.MapSlice {
	for _, item := range b.root {
		if m, ok := item.Value.(yaml.MapSlice); ok && item.Key == "profiles" {
			return m
		}
	}
	return nil
}

// set adds or replaces a profile; keys of an old one that p does not know stay.
func (b *profileBook) set(name string, p profile) {
	all := b.entries()
	var entry yaml.MapSlice
	for _, item := range all {
		if m, ok := item.Value.(yaml.MapSlice); ok && item.Key == name {
			entry = m
		}
	}
	for _, field := range []struct{ key, value string }{
		{"url", p.URL},
		{"key_id", p.KeyID},
		{"secret_key", string(p.SecretKey)},
		{"header_prefix", p.HeaderPrefix},
		{"ca_file", p.CAFile},
	} {
		if field.value != "" {
			entry = put(entry, field.key, field.value)
		}
	}
	b.root = put(b.root, "profiles", put(all, name, entry))
}

// remove takes a profile out.
func (b *profileBook) remove(name string) {
	b.root = put(b.root, "profiles", slices.DeleteFunc(b.entries(), func(item yaml.MapItem) bool { return item.Key == name }))
}

// use makes a profile the default; "" is none.
func (b *profileBook) use(name string) { b.root = put(b.root, "default", name) }

// save writes the file (0600) in one step.
func (b *profileBook) save() error {
	text, err := yaml.MarshalWithOptions(b.root, yaml.WithComment(b.comments))
	if err != nil {
		return fmt.Errorf("write profiles: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o700); err != nil {
		return fmt.Errorf("write profiles: %w", err)
	}
	_, err = toFile(b.path, true, func(w io.Writer) (int64, error) { return io.Copy(w, bytes.NewReader(text)) })
	return err
}

func (a *app) profilesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "Save supervisors under a name, for --profile",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.profilesAddCommand(), a.profilesListCommand(), a.profilesRemoveCommand(), a.profilesUseCommand())
	return cmd
}

func (a *app) profilesAddCommand() *cobra.Command {
	var p profile
	var use bool
	cmd := &cobra.Command{
		Use:   "add NAME --url URL --key-id KEYID",
		Short: "Save a supervisor; the secret key is asked for, or read from stdin",
		Long: `Save a supervisor; the secret key is asked for, or read from stdin.

With --home instead of --url, address and keys are those of that home. The file
is ~/.svc/cli/profiles.yaml, readable by its owner alone.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if !profileName.MatchString(args[0]) {
				return usagef("%q is no name of a profile: use letters, digits and . _ -", args[0])
			}
			if err := a.completeProfile(cmd.Context(), &p); err != nil {
				return err
			}
			book, err := openProfiles(a.profilesPath())
			if err != nil {
				return err
			}
			book.set(args[0], p)
			if use {
				book.use(args[0])
			}
			if err := book.save(); err != nil {
				return err
			}
			return a.tryProfile(cmd, args[0])
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&p.URL, "url", "", "address: https://host:7890")
	flags.StringVar(&p.KeyID, "key-id", "", "id of the management key")
	flags.StringVar(&p.CAFile, "ca-file", "", "PEM file of the authority that signed the server's certificate")
	flags.StringVar(&p.HeaderPrefix, "header-prefix", "", "the server's header_prefix, when it is not SVC")
	flags.BoolVar(&use, "use", false, "make it the default")
	return cmd
}

// completeProfile takes from a home what was not given, and the secret from the
// person or from stdin: on the command line every user of the machine sees it.
func (a *app) completeProfile(ctx context.Context, p *profile) error {
	if a.home != "" {
		t, err := a.targetOfHome(a.home)
		if err != nil {
			return err
		}
		p.URL, p.KeyID, p.SecretKey, p.HeaderPrefix = t.url, t.keyID, t.secret, t.prefix
		return nil
	}
	if p.URL == "" {
		return usagef("--url is missing (or --home, to take address and keys from there)")
	}
	if p.CAFile != "" {
		path, err := filepath.Abs(p.CAFile)
		if err != nil {
			return fmt.Errorf("find the certificate: %w", err)
		}
		p.CAFile = path
	}
	if p.KeyID == "" {
		return nil // a server without auth
	}
	secret, err := a.readSecret(ctx, "secret key of "+p.KeyID+": ")
	if err == nil && secret == "" {
		err = usagef("the secret key is missing: type it, or give it on stdin")
	}
	p.SecretKey = client.Secret(secret)
	return err
}

// tryProfile tells whether a new profile works. It is saved either way.
func (a *app) tryProfile(cmd *cobra.Command, name string) error {
	a.home, a.profile = "", name
	t, s, err := a.connect()
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), profileCheck)
	defer cancel()
	_, err = s.List(ctx, "")
	if err != nil {
		a.say("warning: %v", t.advise(err))
	}
	if a.json() {
		return a.printJSON(map[string]any{"profile": name, "url": t.url, "works": err == nil})
	}
	if err != nil {
		return a.result("saved %s in %s; it does not work yet", name, a.profilesPath())
	}
	return a.result("saved %s in %s; the supervisor answers", name, a.profilesPath())
}

// savedProfile is a profile without its secrets.
type savedProfile struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	KeyID   string `json:"key_id"`
	Default bool   `json:"default"`
}

func (a *app) profilesListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the saved supervisors",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			p, err := readProfiles(a.profilesPath())
			if err != nil {
				return err
			}
			saved := []savedProfile{}
			t := table{heading: []string{"", "NAME", "URL", "KEY"}}
			for _, name := range slices.Sorted(maps.Keys(p.Profiles)) {
				one := p.Profiles[name]
				mark := ""
				if name == p.Default {
					mark = "*"
				}
				saved = append(saved, savedProfile{name, one.URL, one.KeyID, mark != ""})
				t.add(mark, name, one.URL, orDash(one.KeyID))
			}
			if a.json() {
				return a.printJSON(map[string]any{"profiles": saved})
			}
			return a.printTable(a.out, t)
		}),
	}
}

// profilesChange is a command that changes a profile that must be there.
func (a *app) profilesChange(use, short, did string, change func(b *profileBook, p *profiles, name string)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeProfiles,
		RunE: does(func(_ *cobra.Command, args []string) error {
			p, err := readProfiles(a.profilesPath())
			if err != nil {
				return err
			}
			if err := p.has(args[0]); err != nil {
				return err
			}
			book, err := openProfiles(a.profilesPath())
			if err != nil {
				return err
			}
			change(book, p, args[0])
			if err := book.save(); err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(map[string]any{"profile": args[0]})
			}
			return a.result("%s: %s", args[0], did)
		}),
	}
}

func (a *app) profilesRemoveCommand() *cobra.Command {
	return a.profilesChange("remove NAME", "Forget a saved supervisor", "removed", func(b *profileBook, p *profiles, name string) {
		b.remove(name)
		if p.Default == name {
			b.use("")
		}
	})
}

func (a *app) profilesUseCommand() *cobra.Command {
	return a.profilesChange("use NAME", "Make a saved supervisor the default", "the default", func(b *profileBook, _ *profiles, name string) {
		b.use(name)
	})
}
