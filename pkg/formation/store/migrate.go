package store

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"sort"
	"strconv"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// Migrations are numbered files, one directory per dialect; each runs once, in
// order, inside one transaction.
//
//go:embed migrations/sqlite/*.sql
var migrations embed.FS

const sqliteMigrations = "migrations/sqlite"

type migration struct {
	number int
	name   string
	sql    string
}

// migrate brings the schema up to this build's. The version is SQLite's
// user_version, so a store at rest says which build it needs; a store from a
// newer build is refused rather than half understood. Within a release a
// migration only adds, since an older process may work on beside it.
func (db *DB) migrate(ctx context.Context, all []migration) error {
	latest := all[len(all)-1].number
	have, err := schemaVersion(db.write.QueryRowContext(ctx, "PRAGMA user_version"))
	if err != nil {
		return err
	}
	if have > latest {
		return db.tooNew(have, latest)
	}
	if have == latest {
		return nil
	}
	if have > 0 {
		if err := db.snapshot(ctx, latest); err != nil {
			return fmt.Errorf("copy the store before its migration: %w", err)
		}
	}
	// BeginTx takes the write lock, so two processes never migrate at once.
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin migration: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	if have, err = schemaVersion(tx.QueryRowContext(ctx, "PRAGMA user_version")); err != nil {
		return err
	}
	if have > latest {
		return db.tooNew(have, latest) // a newer process was faster
	}
	for _, m := range all {
		if m.number <= have {
			continue
		}
		if _, err := tx.ExecContext(ctx, m.sql); err != nil {
			return fmt.Errorf("migration %s: %w", m.name, err)
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", latest)); err != nil {
		return fmt.Errorf("write schema version: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit migration: %w", err)
	}
	return nil
}

func (db *DB) tooNew(have, known int) error {
	way := ""
	if name := db.usableSnapshot(known); name != "" {
		way = ", or restore the snapshot " + name
	}
	return fault.Errorf(fault.Failed, "HealthCheckFailed",
		"the store has schema %d, this runtime knows %d: roll forward%s", have, known, way)
}

func loadMigrations() ([]migration, error) {
	entries, err := fs.ReadDir(migrations, sqliteMigrations)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	all := make([]migration, 0, len(entries))
	for _, e := range entries {
		prefix, _, _ := strings.Cut(e.Name(), "_")
		number, err := strconv.Atoi(prefix)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", e.Name(), err)
		}
		text, err := fs.ReadFile(migrations, sqliteMigrations+"/"+e.Name())
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", e.Name(), err)
		}
		all = append(all, migration{number: number, name: e.Name(), sql: string(text)})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].number < all[j].number })
	return all, nil
}
