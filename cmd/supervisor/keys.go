package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/manifest"
)

// maxKeysFile is the largest file of generated keys that is read, in bytes.
const maxKeysFile = 4 << 10

// formationKeys are the keys of one formation's API.
type formationKeys struct {
	FormationID string `json:"formation_id"`
	Admin       string `json:"admin_key,omitempty"`
	Client      string `json:"client_key,omitempty"`
	// Manifest names the keys that the manifest sets, which are not shown.
	Manifest []string `json:"set_in_manifest,omitempty"`
}

func (a *app) keysCommand() *cobra.Command {
	keys := &cobra.Command{
		Use:   "keys",
		Short: "Work with the keys of a formation's API",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	keys.AddCommand(&cobra.Command{
		Use:   "show ID",
		Short: "Print the generated keys of a formation of the local home",
		Args:  cobra.ExactArgs(1),
		RunE: does(func(_ *cobra.Command, args []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			k, err := h.keys(args[0])
			if err != nil {
				return err
			}
			return a.printKeys(k)
		}),
	})
	return keys
}

func (a *app) printKeys(k *formationKeys) error {
	if a.json() {
		return a.printJSON(k)
	}
	for _, row := range []struct{ name, value string }{{"admin_key", k.Admin}, {"client_key", k.Client}} {
		if row.value == "" {
			row.value = "(set in the manifest: server.api_keys." + row.name + ")"
		}
		fmt.Fprintf(a.out, "%-11s %s\n", row.name+":", row.value)
	}
	return nil
}

// keys reads the generated keys of a formation and asks its manifest for those
// that were never generated.
func (h *home) keys(id string) (*formationKeys, error) {
	if err := manifest.CheckID(id); err != nil {
		return nil, usagef("%q is no id of a formation", id)
	}
	dir := h.formationDir(id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, &client.Error{
			Status: http.StatusNotFound, Name: "FormationNotFound",
			Message: fmt.Sprintf("there is no formation %s in %s", id, h.dir),
		}
	}
	k := &formationKeys{FormationID: id}
	path := filepath.Join(dir, "state", "keys")
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s may be read only by the user that the supervisor runs as", path)
	case errors.Is(err, fs.ErrNotExist):
		return k, k.fromManifest(dir)
	case err != nil:
		return nil, fmt.Errorf("open keys: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxKeysFile+1))
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if len(raw) > maxKeysFile || json.Unmarshal(raw, k) != nil {
		return nil, fmt.Errorf("%s is damaged", path) // a text of the decoder could show a key
	}
	k.FormationID = id
	return k, k.fromManifest(dir)
}

// fromManifest drops the generated keys that the manifest overrides.
func (k *formationKeys) fromManifest(dir string) error {
	version, err := newestVersion(filepath.Join(dir, "versions"))
	if err != nil {
		return err
	}
	f, _, err := manifest.Load(version)
	if err != nil {
		return fmt.Errorf("read the deployed manifest: %w", err)
	}
	if f.Server.AdminKey != "" {
		k.Admin, k.Manifest = "", append(k.Manifest, "admin_key")
	}
	if f.Server.ClientKey != "" {
		k.Client, k.Manifest = "", append(k.Manifest, "client_key")
	}
	if k.Admin == "" && k.Client == "" && len(k.Manifest) == 0 {
		return errors.New("the formation has no keys yet: they are made at its first start")
	}
	return nil
}

// newestVersion returns the directory with the highest number.
func newestVersion(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("look for the deployed version: %w", err)
	}
	newest := -1
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			newest = max(newest, n)
		}
	}
	if newest < 0 {
		return "", fmt.Errorf("%s holds no version", dir)
	}
	return filepath.Join(dir, strconv.Itoa(newest)), nil
}
