package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) downloadCommand() *cobra.Command {
	var file string
	var withDB, force bool
	cmd := &cobra.Command{
		Use:   "download ID",
		Short: "Fetch the files of a formation's current version as a zip file",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			if file == "" {
				file = args[0] + ".zip"
			}
			fetch := func(w io.Writer) (int64, error) { return a.fetch(cmd.Context(), s, args[0], withDB, w) }
			if file == "-" {
				_, err = fetch(a.out)
				return t.advise(err)
			}
			n, err := toFile(file, force, fetch)
			if err != nil {
				return t.advise(err)
			}
			if a.json() {
				return a.printJSON(map[string]any{"formation_id": args[0], "file": file, "bytes": n})
			}
			return a.result("%s: %s written to %s", args[0], bytesText(n), file)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "where to write it, - for stdout (default: ID.zip)")
	cmd.Flags().BoolVar(&withDB, "include-db", false, "with the SQLite databases of the formation's state")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file")
	return cmd
}

// fetch downloads a formation and shows a person how much has come.
func (a *app) fetch(ctx context.Context, s *client.Server, id string, withDB bool, w io.Writer) (int64, error) {
	if !a.errTTY {
		return s.Download(ctx, id, withDB, w)
	}
	bar := a.newBar(-1, progressbar.OptionShowBytes(true), progressbar.OptionSetDescription(printable(id)))
	defer func() { _ = bar.Clear() }() // a terminal that is gone must not fail the download
	return s.Download(ctx, id, withDB, io.MultiWriter(w, bar))
}

// toFile lets write fill a new file (0600) that appears under path when it is
// whole. One that is there already is left alone, unless it is forced.
func toFile(path string, force bool, write func(io.Writer) (int64, error)) (n int64, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return 0, conflict("FileExists", "%s exists already: choose another name, or give --force", path)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // the name of the temporary file means nothing to a person
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	n, err = write(temp)
	if err == nil {
		err = temp.Sync()
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return n, err
	}
	if err = os.Rename(temp.Name(), path); err != nil {
		return n, fmt.Errorf("write %s: %w", path, err)
	}
	return n, nil
}
