package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// rotated is what a rotation did, for programs.
type rotated struct {
	KeyFrom string `json:"key_from"`
	Key     string `json:"key,omitempty"` // its file
	Secrets int    `json:"secrets"`
	Older   int    `json:"older_keys"` // kept, because deployed versions need them
}

func (a *app) secretsRotateCommand(flags *vaultFlags) *cobra.Command {
	var toStore bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Encrypt the secrets with a new key",
		Long: `Encrypt the secrets with a new key.

The new key takes the place of the old one. In the key store of a supervisor,
older keys stay as long as a version that is deployed needs them. --to-store moves
the key there from .key, which then need not be deployed. A key in
SVC_SECRETS_KEY is yours to change: put the new one before the old one, with a
comma between, and rotate; afterwards, drop the old one.

A rotation helps against a key that others have seen. What they may have opened
with it has to be replaced where it came from.`,
		Args: cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			var done rotated
			_, err := a.changeVault(flags, func(v *vault) error { return a.rotate(v, flags, toStore, &done) })
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(done)
			}
			text := fmt.Sprintf("encrypted with a new key from %s: %s", orEnv(done.Key), count(done.Secrets, "secret"))
			if done.Older > 0 {
				text += fmt.Sprintf("; kept there for what is deployed: %s", count(done.Older, "older key"))
			}
			return a.result("%s", text)
		}),
	}
	cmd.Flags().BoolVar(&toStore, "to-store", false, "keep the key in the supervisor's key store from now on")
	return cmd
}

func orEnv(path string) string {
	if path == "" {
		return envSecretsKey
	}
	return path
}

// rotate encrypts the secrets with a new key. Until they are, old and new key
// are there: whenever it is cut, the secrets open.
func (a *app) rotate(v *vault, flags *vaultFlags, toStore bool, done *rotated) error {
	if len(v.keys) == 0 {
		return fmt.Errorf("%s does not exist: there is nothing to encrypt anew", v.enc)
	}
	oldPath := v.keyPath
	if toStore {
		if err := a.moveToStore(v, flags); err != nil {
			return err
		}
	}
	*done = rotated{KeyFrom: v.from, Key: v.keyPath, Secrets: len(v.values)}
	if v.from == keyEnv {
		if len(v.keys) < 2 {
			return usagef("the key is in %s, which this command cannot change: put the new key before the old one there, as NEW,OLD, and try again", envSecretsKey)
		}
		return nil // the first one seals
	}
	next, all := secretfile.GenerateKey(), v.keys
	if err := secretfile.SaveKeys(v.keyPath, all.Before(next)); err != nil {
		return err
	}
	if err := secretfile.Save(v.enc, next, v.values); err != nil {
		return err
	}
	if err := v.saveKeys(secretfile.Keys{next}); err != nil {
		return err
	}
	done.Older = len(v.keys) - 1
	if toStore && oldPath != v.keyPath && oldPath != "" {
		if err := os.Remove(oldPath); err != nil {
			return fmt.Errorf("remove the old key: %w", err)
		}
	}
	return nil
}

// moveToStore makes the store the place of the key. Whatever key it has stays
// for what is deployed.
func (a *app) moveToStore(v *vault, flags *vaultFlags) error {
	if v.from == keyStore {
		return nil
	}
	if v.from == keyEnv {
		return usagef("%s would win over the key store: unset it, and put its key into %s first", envSecretsKey, filepath.Join(v.dir, keyName))
	}
	if flags.from == keyFile {
		file, err := manifest.Find(v.dir)
		if err != nil {
			return err
		}
		if err := a.findStore(v, file, true); err != nil {
			return err
		}
	}
	if v.home == nil {
		return usagef("which supervisor's key store? Give its home with --home")
	}
	v.from, v.keyPath = keyStore, v.storePath()
	kept, err := secretfile.ReadKeys(v.keyPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.keys = append(v.keys, kept...)
	if err := os.MkdirAll(filepath.Dir(v.keyPath), 0o700); err != nil {
		return fmt.Errorf("make the key store: %w", err)
	}
	return nil
}
