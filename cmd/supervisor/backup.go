package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/backup"
	"github.com/agentformation/service/pkg/version"
)

func (a *app) backupCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a home with all its formations into one file, while they run",
		Long: `Write a home with all its formations into one file, while they run.

Every SQLite database is copied as of one moment, and the file is read again and
checked before it appears under its name. It holds keys and secrets: it is
readable by its owner alone, and belongs in a safe place. Databases elsewhere
(PostgreSQL) are named with the command that backs them up. The caches of
programs that formations start (.npm and .cache of their states) are left out.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			var report backup.Report
			_, err = toFile(args[0], force, func(w io.Writer) (int64, error) {
				report, err = h.backup(cmd.Context(), w)
				return 0, err
			})
			if err != nil {
				return err
			}
			return a.printBackup("backed up "+h.cfg.Home+" to "+args[0], &report)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file")
	return cmd
}

// backup writes the home to w, a file, and checks what it has written.
func (h *home) backup(ctx context.Context, w io.Writer) (backup.Report, error) {
	cfg := backup.Config{
		Home: h.cfg.Home, Settings: h.configPath(), Formations: h.absolute(h.cfg.Formations.Dir), Version: version.String(),
	}
	for _, file := range []string{h.cfg.Server.TLS.Cert, h.cfg.Server.TLS.Key} {
		if rel, err := filepath.Rel(h.cfg.Home, h.absolute(file)); file != "" && err == nil && filepath.IsLocal(rel) {
			cfg.Extra = append(cfg.Extra, rel)
		}
	}
	report, err := backup.Write(ctx, cfg, w)
	if err != nil {
		return report, err
	}
	f, ok := w.(*os.File)
	if !ok {
		return report, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return report, fmt.Errorf("read the backup again: %w", err)
	}
	if _, err := backup.Verify(ctx, f); err != nil {
		return report, fmt.Errorf("read the backup again: %w", err)
	}
	return report, nil
}

func (a *app) restoreCommand() *cobra.Command {
	var opts backup.Options
	var check bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a home of a backup; --check only reads it",
		Long: `Make a home of a backup; --check only reads it.

The home of --home must be empty, or --force sets it aside. No supervisor may run
on it. After the restore, "supervisor serve" starts every formation that ran.
Restored by root, the files belong to whom the home belonged to before.`,
		Args: cobra.ExactArgs(1),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("open the backup: %w", err)
			}
			defer f.Close()
			if check {
				report, err := backup.Verify(cmd.Context(), f)
				if err != nil {
					return err
				}
				return a.printBackup(args[0]+" is whole", &report)
			}
			owner := ownerOf(a.homeDir())
			report, err := backup.Restore(cmd.Context(), f, a.homeDir(), opts)
			if err != nil {
				return err
			}
			if err := a.giveTo(owner, a.homeDir()); err != nil {
				return err
			}
			return a.printBackup("restored "+a.homeDir()+" from "+args[0], &report)
		}),
	}
	cmd.Flags().BoolVar(&opts.Force, "force", false, "set a home that is not empty aside")
	cmd.Flags().BoolVar(&check, "check", false, "only read the backup and check that it is whole")
	return cmd
}

// ownerOf returns the user and group of a home, nil when it is not there.
func ownerOf(dir string) *unix.Stat_t {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return nil
	}
	return &st
}

// giveTo gives what root restored to the user that the supervisor runs as. The
// files of formations with users of their own go to them at their next launch.
func (a *app) giveTo(owner *unix.Stat_t, home string) error {
	switch {
	case os.Geteuid() != 0 || owner != nil && owner.Uid == 0:
		return nil
	case owner == nil:
		a.say("the files belong to root: if the supervisor is to run as another user, chown -R them to it")
		return nil
	}
	root, err := os.OpenRoot(home) // what is given away already must not lead out of it
	if err != nil {
		return fmt.Errorf("give the restored home to user %d: %w", owner.Uid, err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
	if err != nil {
		return fmt.Errorf("give the restored home to user %d: %w", owner.Uid, err)
	}
	return nil
}

// printBackup prints what a backup holds, and what it does not.
func (a *app) printBackup(did string, r *backup.Report) error {
	if a.json() {
		return a.printJSON(r)
	}
	text := []string{
		did,
		fmt.Sprintf("written %s by supervisor %s", r.CreatedAt.Local().Format(time.DateTime), r.Version),
		fmt.Sprintf("%s, %s, %s, %s", count(len(r.Formations), "formation"), count(r.Files, "file"), count(r.Databases, "database"), bytesText(r.Bytes)),
	}
	if r.MovedTo != "" {
		text = append(text, "the home before is kept as "+r.MovedTo)
	}
	for _, n := range r.NotCovered {
		text = append(text, fmt.Sprintf("not covered: %s of %s; back it up with: %s", n.Store, n.Formation, n.Command))
	}
	for _, d := range r.Damaged {
		text = append(text, fmt.Sprintf("was damaged when it was backed up: %s: %s", d.Path, d.Problem))
	}
	text = append(text, r.Notes...)
	for _, s := range r.Skipped {
		text = append(text, "left out, since it is no file: "+s)
	}
	return a.result("%s", strings.Join(text, "\n"))
}
