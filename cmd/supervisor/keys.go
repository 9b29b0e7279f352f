package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// formationKeys are the keys of one formation's API.
type formationKeys struct {
	FormationID string `json:"formation_id"`
	Admin       string `json:"admin_key,omitempty"`
	Client      string `json:"client_key,omitempty"`
	// Manifest names the keys that the manifest sets, which are not shown.
	Manifest []string `json:"set_in_manifest,omitempty"`
	// Mixed names those that only some of the kept versions set.
	Mixed []string `json:"set_in_some_manifests,omitempty"`
	// Previous are the pairs before that are still accepted.
	Previous []secretfile.PreviousKeys `json:"previous,omitempty"`
	// Taken says that the formation accepts the keys; nil when it was not asked.
	Taken *bool `json:"in_effect,omitempty"`
}

func (a *app) keysCommand() *cobra.Command {
	keys := &cobra.Command{
		Use:   "keys",
		Short: "Work with the keys of a home on this machine",
		Long: `Work with the keys of a home on this machine.

Management keys sign calls of the management API; they are in config.yaml. Each
formation has keys of its own, an admin key and a client key, for its API. What
is changed here holds at once, without a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	keys.AddCommand(a.keysAddCommand(), a.keysListCommand(), a.keysShowCommand(), a.keysRotateCommand(), a.keysRemoveCommand())
	return keys
}

func (a *app) keysShowCommand() *cobra.Command {
	var kind kindFlag
	var draft bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Print the generated keys of a formation, or a management key",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeKeys,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if draft {
				return a.showDraftKeys(cmd.Context(), args[0])
			}
			h, err := a.openHome()
			if err != nil {
				return err
			}
			if own, err := h.isManagement(kind, args[0]); err != nil {
				return err
			} else if own {
				return a.printManagementKey(h.managementKey(args[0]))
			}
			k, err := h.keys(args[0])
			if err != nil {
				return err
			}
			return a.printKeys(k)
		}),
	}
	kind.register(cmd)
	cmd.Flags().BoolVar(&draft, "draft", false, "those of the draft that runs")
	return cmd
}

func (a *app) showDraftKeys(ctx context.Context, id string) error {
	t, err := a.targetOfHome(a.homeDir())
	if err != nil {
		return err
	}
	k, err := t.draftKeys(ctx, id, a.userName)
	if err != nil {
		return err
	}
	return a.printKeys(k)
}

func (a *app) printKeys(k *formationKeys) error {
	if a.json() {
		return a.printJSON(k)
	}
	for _, row := range []struct{ name, value string }{{"admin_key", k.Admin}, {"client_key", k.Client}} {
		switch setting := "server.api_keys." + row.name; {
		case row.value == "":
			row.value = "(set in the manifest: " + setting + ")"
		case slices.Contains(k.Mixed, row.name):
			row.value += "  (some versions set their own: " + setting + ")"
		}
		fmt.Fprintf(a.out, "%-11s %s\n", row.name+":", row.value)
	}
	for _, p := range k.Previous {
		fmt.Fprintf(a.out, "until %s also: %s %s\n", p.ValidUntil.Local().Format(time.DateTime), p.Admin, p.Client)
	}
	return nil
}

// keys reads the generated keys of a formation and asks its manifest for those
// that were never generated.
func (h *home) keys(id string) (*formationKeys, error) {
	path, err := h.keysFile(id)
	if err != nil {
		return nil, err
	}
	stored, err := secretfile.LoadKeys(path)
	if err != nil {
		return nil, keysError(path, err)
	}
	return h.keysOf(id, stored)
}

// keysOf adds to stored keys what the manifests of the formation say.
func (h *home) keysOf(id string, stored secretfile.FormationKeys) (*formationKeys, error) {
	k := &formationKeys{
		FormationID: id, Admin: stored.Admin, Client: stored.Client, Previous: stored.Valid(time.Now()),
	}
	return k, k.fromManifests(filepath.Join(h.formationDir(id), "versions"))
}

// keysFile returns where the keys of a formation lie.
func (h *home) keysFile(id string) (string, error) {
	if err := manifest.CheckID(id); err != nil {
		return "", usagef("%q is no id of a formation", id)
	}
	dir := h.formationDir(id)
	// A draft alone has a directory, too, but no versions.
	if _, err := os.Stat(filepath.Join(dir, "versions")); errors.Is(err, fs.ErrNotExist) {
		return "", &client.Error{
			Status: http.StatusNotFound, Name: "FormationNotFound",
			Message: fmt.Sprintf("there is no formation %s in %s", id, h.dir),
		}
	}
	return filepath.Join(dir, "state", secretfile.KeysFile), nil
}

func keysError(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s is open only to the user that the supervisor runs as: run this as that user, or as root", path)
	}
	return err
}

// fromManifests drops the generated keys that every kept version overrides,
// and notes those that some override: a rollback may bring them into force.
func (k *formationKeys) fromManifests(versions string) error {
	dirs, err := versionDirs(versions)
	if err != nil {
		return err
	}
	var admin, own int
	for _, dir := range dirs {
		f, _, err := manifest.Load(dir)
		if err != nil {
			return fmt.Errorf("read the deployed manifest: %w", err)
		}
		if f.Server.AdminKey != "" {
			admin++
		}
		if f.Server.ClientKey != "" {
			own++
		}
	}
	k.note("admin_key", &k.Admin, admin, len(dirs))
	k.note("client_key", &k.Client, own, len(dirs))
	if k.Admin == "" && k.Client == "" && len(k.Manifest) == 0 {
		return errors.New("the formation has no keys yet: they are made at its first start")
	}
	return nil
}

// note takes how many of the versions set a key themselves.
func (k *formationKeys) note(name string, key *string, set, of int) {
	switch {
	case set == 0:
	case set == of || *key == "":
		*key = ""
		k.Manifest = append(k.Manifest, name)
	default:
		k.Mixed = append(k.Mixed, name)
	}
}

// versionDirs returns the directories of the kept versions.
func versionDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for the deployed versions: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			dirs = append(dirs, filepath.Join(dir, e.Name()))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s holds no version", dir)
	}
	return dirs, nil
}

// draftKeys reads the generated keys of the draft that runs. Drafts that were
// made here and runs of a directory remember apart from each other: where both
// have keys, the draft itself is asked whose it takes.
func (t *target) draftKeys(ctx context.Context, id, user string) (*formationKeys, error) {
	if err := manifest.CheckID(id); err != nil {
		return nil, usagef("%q is no id of a formation", id)
	}
	formations := t.home.absolute(t.home.cfg.Formations.Dir)
	var found []*formationKeys
	for _, path := range []string{filepath.Join(formations, ".dev", id, "state"), filepath.Join(formations, id, "draft-state")} {
		path = filepath.Join(path, secretfile.KeysFile)
		stored, err := secretfile.LoadKeys(path)
		if err != nil {
			return nil, keysError(path, err)
		}
		if stored.Client != "" {
			found = append(found, &formationKeys{FormationID: id, Admin: stored.Admin, Client: stored.Client})
		}
	}
	if len(found) == 0 {
		return nil, usagef("no draft of %s has run here with keys of its own: give the one of its manifest as --key", id)
	}
	for _, k := range found[:len(found)-1] {
		f, err := t.formation(id, client.FormationConfig{ClientKey: client.Secret(k.Client), UserID: user, Draft: true})
		if err != nil {
			return nil, err
		}
		_, err = f.Sessions(ctx, 1)
		f.Close()
		if err == nil {
			return k, nil
		}
	}
	return found[len(found)-1], nil
}
