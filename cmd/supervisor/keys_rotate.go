package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/secretfile"
)

func (a *app) keysRotateCommand() *cobra.Command {
	var overlap string
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Make new keys; the old ones stay valid for the overlap",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(_ *cobra.Command, args []string) error {
			span, err := parseAge(overlap)
			if err != nil || span > secretfile.MaxOverlap {
				return usagef("--overlap %q: it must be a duration from 0s to %dd, such as 24h or 7d",
					overlap, secretfile.MaxOverlap/(24*time.Hour))
			}
			h, err := a.openHome()
			if err != nil {
				return err
			}
			return a.rotateFormation(h, args[0], span)
		}),
	}
	cmd.Flags().StringVar(&overlap, "overlap", "24h", "how long the old keys stay valid: 0s, 24h, 7d")
	return cmd
}

// rotateFormation replaces the generated keys of a formation. The formation
// sees the change of the file.
func (a *app) rotateFormation(h *home, id string, overlap time.Duration) error {
	path, err := h.keysFile(id)
	if err != nil {
		return err
	}
	rotated := false
	stored, err := secretfile.UpdateKeys(path, func(k secretfile.FormationKeys) (secretfile.FormationKeys, bool) {
		if rotated = k.Admin != "" || k.Client != ""; !rotated {
			return k, false
		}
		return k.Rotate(time.Now(), overlap), true
	})
	if err != nil {
		return keysError(path, err)
	}
	k, err := h.keysOf(id, stored)
	if err != nil {
		return err
	}
	if !rotated {
		return errors.New("the keys of " + id + " are set in its manifest: change them there, and update the formation")
	}
	return a.printKeys(k)
}
