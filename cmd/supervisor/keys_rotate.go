package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/pkg/supervisor"
)

func (a *app) keysRotateCommand() *cobra.Command {
	var overlap string
	var kind kindFlag
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Make new keys; the old ones stay valid for the overlap",
		Long: `Make new keys; the old ones stay valid for the overlap.

ID is a formation, whose two keys are replaced, or a management key, which gets
a new secret and keeps its name. Clients move to the new ones meanwhile;
"keys remove ID --previous" ends the overlap early.`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeKeys,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			span, err := parseAge(overlap)
			if err != nil || span > secretfile.MaxOverlap {
				return usagef("--overlap %q: it must be a duration from 0s to %dd, such as 24h or 7d",
					overlap, secretfile.MaxOverlap/(24*time.Hour))
			}
			h, err := a.openHome()
			if err != nil {
				return err
			}
			if own, err := h.isManagement(kind, args[0]); err != nil {
				return err
			} else if own {
				return a.rotateManagement(cmd.Context(), h, args[0], span)
			}
			return a.rotateFormation(cmd.Context(), h, args[0], span)
		}),
	}
	cmd.Flags().StringVar(&overlap, "overlap", "24h", "how long the old keys stay valid: 0s, 24h, 7d")
	kind.register(cmd)
	return cmd
}

// rotateManagement gives a management key a new secret.
func (a *app) rotateManagement(ctx context.Context, h *home, id string, overlap time.Duration) error {
	var until time.Time
	if overlap > 0 {
		until = time.Now().Add(overlap)
	}
	k, err := supervisor.RotateKey(h.dir, id, until)
	if err != nil {
		return h.keyError(err)
	}
	return a.printTaken(ctx, h, k)
}

// rotateFormation replaces the generated keys of a formation, which sees the
// change of the file, and waits until it did.
func (a *app) rotateFormation(ctx context.Context, h *home, id string, overlap time.Duration) error {
	k, err := h.changeFormation(id, func(k secretfile.FormationKeys) secretfile.FormationKeys {
		return k.Rotate(time.Now(), overlap)
	})
	if err != nil {
		return err
	}
	var note string
	k.Taken, note = a.awaitFormation(ctx, h, k)
	if err := a.printKeys(k); err != nil {
		return err
	}
	a.say("%s", note)
	return nil
}

// formationTaking is how long a formation that runs may take to see new keys.
const formationTaking = 5 * time.Second

// awaitFormation calls a formation with its new keys until it accepts them, and
// puts what came of it in words.
func (a *app) awaitFormation(ctx context.Context, h *home, k *formationKeys) (taken *bool, note string) {
	t, err := a.targetOfHome(h.dir)
	if err != nil {
		return nil, "warning: " + err.Error()
	}
	f, err := t.formation(k.FormationID, client.FormationConfig{AdminKey: client.Secret(k.Admin), ClientKey: client.Secret(k.Client), UserID: a.userName})
	if err != nil {
		return nil, "warning: " + err.Error()
	}
	defer f.Close()
	accepted := false
	err = a.await(ctx, min(a.pause, 200*time.Millisecond), formationTaking, func() (bool, error) {
		if k.Admin != "" {
			_, err = f.Agents(ctx)
		} else {
			_, err = f.Sessions(ctx, 1)
		}
		if client.StatusOf(err) == http.StatusUnauthorized {
			return false, nil
		}
		accepted = err == nil
		return accepted, err
	})
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case accepted:
		return &accepted, k.FormationID + " accepts them"
	case ok && (e.Name == client.NameUnreachable || e.Status == http.StatusServiceUnavailable):
		return nil, k.FormationID + " does not run: they hold from its next start on"
	case errors.Is(err, errTimeout):
		return &accepted, "warning: " + k.FormationID + " does not accept them yet: look into its log"
	}
	return &accepted, "warning: " + err.Error()
}

// changeFormation changes the generated keys of a formation.
func (h *home) changeFormation(id string, change func(secretfile.FormationKeys) secretfile.FormationKeys) (*formationKeys, error) {
	path, err := h.keysFile(id)
	if err != nil {
		return nil, err
	}
	generated := false
	stored, err := secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		if generated = k.Admin != "" || k.Client != ""; !generated {
			return k, false
		}
		return change(k), true
	})
	if err != nil {
		return nil, keysError(path, err)
	}
	k, err := h.keysOf(id, stored)
	if err != nil {
		return nil, err
	}
	if !generated {
		return nil, errors.New("the keys of " + id + " are set in its manifest: change them there, and update the formation")
	}
	return k, nil
}

// endFormation ends the older keys of a formation.
func (a *app) endFormation(h *home, id string) error {
	ended := 0
	k, err := h.changeFormation(id, func(k secretfile.FormationKeys) secretfile.FormationKeys {
		ended = len(k.Valid(time.Now()))
		k.Previous = nil
		return k
	})
	if err != nil {
		return err
	}
	if err := a.printKeys(k); err != nil {
		return err
	}
	if ended == 0 {
		a.say("%s had no older keys", id)
		return nil
	}
	a.say("%s before removed; they are refused within %s", count(ended, "pair"), formationTaking)
	return nil
}

func (a *app) keysRemoveCommand() *cobra.Command {
	var previous bool
	var kind kindFlag
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Remove a management key, or with --previous the older secrets of any key",
		Long: `Remove a management key, or with --previous the older secrets of any key.

A call that is signed with what was removed is refused from then on. The last
management key cannot be removed, and neither can the keys of a formation: they
are rotated.`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeKeys,
		RunE: does(func(_ *cobra.Command, args []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			own, err := h.isManagement(kind, args[0])
			switch {
			case err != nil:
				return err
			case own && previous:
				return a.endManagement(h, args[0])
			case own:
				return a.removeManagement(h, args[0])
			case previous:
				return a.endFormation(h, args[0])
			}
			if _, err := h.keysFile(args[0]); err != nil {
				return err
			}
			return conflict("KeysNeeded", "a formation always has its keys: `supervisor keys rotate %s` makes new ones, "+
				"--previous removes those before", args[0])
		}),
	}
	cmd.Flags().BoolVar(&previous, "previous", false, "keep the key and end what a rotation left valid")
	kind.register(cmd)
	return cmd
}

func (a *app) removeManagement(h *home, id string) error {
	if err := supervisor.RemoveKey(h.dir, id); err != nil {
		return h.keyError(err)
	}
	if a.json() {
		return a.printJSON(map[string]any{"key_id": id, "removed": true})
	}
	return a.result("%s: removed; a supervisor that runs refuses it within %s", id, supervisor.KeyTaking)
}

func (a *app) endManagement(h *home, id string) error {
	ended, err := supervisor.EndOverlap(h.dir, id)
	if err != nil {
		return h.keyError(err)
	}
	if a.json() {
		return a.printJSON(map[string]any{"key_id": id, "removed_previous": ended})
	}
	text := "it has no older secret"
	if ended > 0 {
		text = fmt.Sprintf("%s removed; a supervisor that runs refuses what was removed within %s", count(ended, "older secret"), supervisor.KeyTaking)
	}
	return a.result("%s: %s", id, text)
}
