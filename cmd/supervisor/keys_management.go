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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor"
)

// The kinds of keys.
const (
	kindManagement = "management"
	kindFormation  = "formation"
)

// kindFlag says whose keys are meant where an id could be either's.
type kindFlag string

func (k *kindFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(k), "kind", "", "management or formation, where both have that id")
}

// managementKey is one key of the management API.
type managementKey struct {
	ID     string `json:"key_id"`
	Secret string `json:"secret_key"`
	// Previous tells until when older secrets of it are accepted.
	Previous []time.Time `json:"previous_valid_until,omitempty"`
	// Ends is when the key itself ends; nil for never.
	Ends *time.Time `json:"valid_until,omitempty"`
	// Taken says that the supervisor that runs accepts it; nil when none was asked.
	Taken *bool `json:"in_effect,omitempty"`
}

// isManagement decides whose keys an id means.
func (h *home) isManagement(kind kindFlag, id string) (bool, error) {
	own := slices.ContainsFunc(h.cfg.Auth.Keys, func(k supervisor.Key) bool { return k.ID == id })
	deployed := false
	if manifest.CheckID(id) == nil {
		_, err := os.Stat(h.formationDir(id))
		deployed = err == nil
	}
	switch {
	case kind != "" && kind != kindManagement && kind != kindFormation:
		return false, usagef("--kind %q: it must be management or formation", string(kind))
	case kind == kindManagement && !own:
		return false, notFound("KeyNotFound", "there is no management key %s in %s", id, h.configPath())
	case kind == "" && !own && !deployed && !strings.ContainsAny(id, "/ "):
		return false, notFound("KeyNotFound", "there is neither a formation nor a management key %s in %s", id, h.dir)
	case kind == "" && own && deployed:
		return false, usagef("%s is a management key and a formation: say which with --kind", id)
	}
	return own && kind != kindFormation, nil
}

// managementKey collects what the settings say of a key.
func (h *home) managementKey(id string) *managementKey {
	now, found := time.Now(), &managementKey{ID: id}
	for _, k := range h.cfg.Auth.Keys {
		switch {
		case k.ID != id || !k.Valid(now):
		case k.Until.IsZero():
			found.Secret = string(k.Secret)
		default:
			found.Previous = append(found.Previous, k.Until)
		}
	}
	if found.Secret == "" { // one that somebody gave an end
		for _, k := range h.cfg.Auth.Keys {
			if k.ID == id {
				found.Secret, found.Ends, found.Previous = string(k.Secret), &k.Until, nil
			}
		}
	}
	slices.SortFunc(found.Previous, time.Time.Compare)
	return found
}

// keyError gives a refusal of the settings its exit code.
func (h *home) keyError(err error) error {
	switch kind := fault.KindOf(err); {
	case kind == fault.Invalid && fault.NameOf(err) == "":
		return usagef("%v", err)
	case kind == fault.NotFound:
		return notFound("KeyNotFound", "%v in %s", err, h.configPath())
	case errors.Is(err, fs.ErrPermission):
		return &hint{err, "run this as the user that the supervisor runs as, or as root"}
	}
	return err
}

// notFound is an answer that this program gives itself.
func notFound(name, format string, args ...any) error {
	return &client.Error{Status: http.StatusNotFound, Name: name, Message: fmt.Sprintf(format, args...)}
}

func (a *app) keysAddCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "add [NAME]",
		Short: "Add a management key",
		Long: `Add a management key.

NAME is its id, by which the audit log names who signs with it: a person, a
machine, a program. Without one it is random. Every key may do everything.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			k, err := supervisor.AddKey(h.dir, append(args, "")[0])
			if err != nil {
				return h.keyError(err)
			}
			return a.printTaken(cmd.Context(), h, k)
		}),
	}
}

// printTaken prints a new pair once the running supervisor accepts it.
func (a *app) printTaken(ctx context.Context, h *home, k supervisor.Key) error {
	again, err := a.openHome()
	if err != nil {
		return err
	}
	shown := again.managementKey(k.ID)
	taken, note := a.awaitKey(ctx, h, k)
	shown.Taken = taken
	if err := a.printManagementKey(shown); err != nil {
		return err
	}
	if note != "" {
		a.say("%s", note)
	}
	return nil
}

// awaitKey asks the supervisor of the home with a new key until it accepts it,
// and puts what came of it in words.
func (a *app) awaitKey(ctx context.Context, h *home, k supervisor.Key) (taken *bool, note string) {
	running, err := findRunning(h.cfg.Home)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Name == client.NameUnreachable {
		return nil, "no supervisor runs on " + h.dir + ": it holds from the next start on"
	}
	if err == nil {
		_ = running.close() // only looked for
	}
	if !h.cfg.Auth.Enabled {
		return nil, "warning: auth.enabled is false: the supervisor accepts every call, signed or not"
	}
	t, err := a.targetOfHome(h.dir)
	if err != nil {
		return nil, "warning: " + err.Error()
	}
	t.keyID, t.secret = k.ID, client.Secret(k.Secret)
	err = a.await(ctx, a.pause, supervisor.KeyTaking+2*a.pause, func() (bool, error) {
		s, err := t.client()
		if err != nil {
			return false, err
		}
		defer s.Close()
		_, err = s.List(ctx, "")
		if client.StatusOf(err) == http.StatusUnauthorized {
			return false, nil
		}
		return err == nil, err
	})
	accepted := err == nil
	switch {
	case accepted:
		return &accepted, "the supervisor at " + t.url + " accepts it"
	case errors.Is(err, errTimeout):
		return &accepted, "warning: the supervisor at " + t.url + " does not accept it yet: look into its log"
	}
	return &accepted, "warning: " + err.Error()
}

func (a *app) printManagementKey(k *managementKey) error {
	if a.json() {
		return a.printJSON(k)
	}
	fmt.Fprintf(a.out, "key_id:     %s\nsecret_key: %s\n", printable(k.ID), printable(k.Secret))
	for _, until := range k.Previous {
		fmt.Fprintf(a.out, "the secret before is valid until %s\n", until.Local().Format(time.DateTime))
	}
	if k.Ends != nil {
		fmt.Fprintf(a.out, "ends %s\n", k.Ends.Local().Format(time.DateTime))
	}
	return nil
}

// listedKey is one line of "keys list": whose keys, and nothing of them.
type listedKey struct {
	ID       string      `json:"id"`
	Keys     []string    `json:"keys,omitempty"`
	Manifest []string    `json:"set_in_manifest,omitempty"`
	Previous []time.Time `json:"previous_valid_until,omitempty"`
	Ends     *time.Time  `json:"valid_until,omitempty"`
	Error    string      `json:"error,omitempty"`
}

func (a *app) keysListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List management keys and whose formation keys there are, without the secrets",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			own, formations := h.listManagement(), []listedKey{}
			ids, err := h.formationIDs()
			if err != nil {
				return err
			}
			for _, id := range ids {
				formations = append(formations, h.listFormation(id))
			}
			if a.json() {
				return a.printJSON(map[string]any{"management": own, "formations": formations})
			}
			t := table{heading: []string{"KIND", "ID", "KEYS", "OLDER VALID UNTIL"}}
			for _, k := range own {
				t.add(kindManagement, k.ID, k.text(), until(k.Previous))
			}
			for _, k := range formations {
				t.add(kindFormation, k.ID, k.text(), until(k.Previous))
			}
			return a.printTable(a.out, t)
		}),
	}
}

// listManagement lists each key once, in the order of the settings.
func (h *home) listManagement() []listedKey {
	all := []listedKey{}
	for _, k := range h.cfg.Auth.Keys {
		if slices.ContainsFunc(all, func(l listedKey) bool { return l.ID == k.ID }) {
			continue
		}
		found := h.managementKey(k.ID)
		all = append(all, listedKey{ID: k.ID, Keys: []string{"secret_key"}, Previous: found.Previous, Ends: found.Ends})
	}
	return all
}

func (h *home) listFormation(id string) listedKey {
	l := listedKey{ID: id}
	k, err := h.keys(id)
	if err != nil {
		l.Error = err.Error()
		return l
	}
	for _, row := range []struct{ name, value string }{{"admin_key", k.Admin}, {"client_key", k.Client}} {
		if row.value != "" {
			l.Keys = append(l.Keys, row.name)
		}
	}
	l.Manifest = k.Manifest
	for _, p := range k.Previous {
		l.Previous = append(l.Previous, p.ValidUntil)
	}
	return l
}

// formationIDs are the formations that lie in the home, by name.
func (h *home) formationIDs() ([]string, error) {
	entries, err := os.ReadDir(h.absolute(h.cfg.Formations.Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for formations: %w", err)
	}
	var ids []string
	for _, e := range entries {
		versions := filepath.Join(h.formationDir(e.Name()), "versions")
		if _, err := os.Stat(versions); manifest.CheckID(e.Name()) == nil && err == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// text says which keys there are.
func (l listedKey) text() string {
	if l.Error != "" {
		return l.Error
	}
	parts := slices.Clone(l.Keys)
	for _, name := range l.Manifest {
		parts = append(parts, name+" in the manifest")
	}
	if l.Ends != nil {
		parts = append(parts, "ends "+l.Ends.Local().Format(time.DateTime))
	}
	return strings.Join(parts, ", ")
}

// until tells when the older secrets end.
func until(ends []time.Time) string {
	texts := make([]string, len(ends))
	for i, at := range ends {
		texts[i] = at.Local().Format(time.DateTime)
	}
	return orDash(strings.Join(texts, ", "))
}

// completeKeys offers the ids of all keys of the home.
func (a *app) completeKeys(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	h, err := a.openHome()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids, _ := h.formationIDs() // what cannot be read cannot be offered
	for _, k := range h.listManagement() {
		ids = append(ids, k.ID)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
