package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/manifest"
)

func (a *app) upCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "up [DIR]",
		Short: "Run a directory as a draft and leave it running (dev also watches it)",
		Args:  cobra.MaximumNArgs(1),

		ValidArgsFunction: a.completeDir,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			dir, _, err := a.formationAt(append(args, ".")[0])
			if err != nil {
				return err
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			dev, err := s.DevRunDir(cmd.Context(), dir)
			if err != nil {
				return t.advise(err)
			}
			return a.printDev(t, dev)
		}),
	}
}

func (a *app) downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down [ID|DIR]",
		Short: "Stop a draft that runs",
		Args:  cobra.MaximumNArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			id := append(args, ".")[0]
			if manifest.CheckID(id) != nil { // then it is a directory
				var err error
				if _, id, err = a.formationAt(id); err != nil {
					return err
				}
			}
			return a.stopDev(cmd, id)
		}),
	}
}

// formationAt checks the formation in a directory and returns the directory's
// absolute path and the formation's id.
func (a *app) formationAt(dir string) (path, id string, err error) {
	if path, err = filepath.Abs(dir); err != nil {
		return "", "", fmt.Errorf("find the directory: %w", err)
	}
	f, warnings, err := manifest.Load(path)
	for _, w := range warnings {
		a.say("warning: %s", w)
	}
	if err != nil {
		return path, "", fmt.Errorf("%s cannot run:\n%w", dir, err)
	}
	return path, f.ID, nil
}

func (a *app) stopDev(cmd *cobra.Command, id string) error {
	t, s, err := a.connect()
	if err != nil {
		return err
	}
	defer s.Close()
	dev, err := s.DevStop(cmd.Context(), id)
	if err != nil {
		return t.advise(err)
	}
	if a.json() {
		return a.printJSON(dev)
	}
	return a.result("%s: the draft is %s", id, orDash(dev.Status))
}

func (a *app) printDev(t *target, dev *client.Dev) error {
	if a.json() {
		return a.printJSON(dev)
	}
	return a.result("%s: the draft is %s on port %d, %s/draft/%s", dev.FormationID, dev.Status, dev.Port, t.url, dev.FormationID)
}
