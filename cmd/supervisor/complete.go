package main

import (
	"context"
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
