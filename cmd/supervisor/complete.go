package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds how long a shell waits for the names of formations.
const completeTimeout = 2 * time.Second

// completeIDs offers the formations that are not on the command line yet.
func (a *app) completeIDs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	_, s, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer s.Close()
	items, err := s.List(ctx, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, f := range items {
		if !slices.Contains(args, f.ID) {
			ids = append(ids, f.ID)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeID is completeIDs for commands that take one formation.
func (a *app) completeID(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeIDs(cmd, args, prefix)
}

// completeIDsOrAll is completeIDs for commands that take "all" too.
func (a *app) completeIDsOrAll(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ids, directive := a.completeIDs(cmd, args, prefix)
	if len(args) == 0 && len(ids) > 0 {
		ids = append(ids, allFormations)
	}
	return ids, directive
}

// completeDir leaves the shell to complete a directory.
func (a *app) completeDir(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completeProfiles offers the names of the saved supervisors.
func (a *app) completeProfiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	p, err := readProfiles(a.profilesPath())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(p.Profiles)), cobra.ShellCompDirectiveNoFileComp
}
