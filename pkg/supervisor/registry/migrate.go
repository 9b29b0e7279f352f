package registry

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/agentformation/service/pkg/fault"
)

// Migrations are numbered SQL files without gaps, so that the n-th file brings
// the schema to version n. SQLite's user_version says which ones have run.
//
//go:embed migrations/*.sql
var migrations embed.FS

func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	// The transaction takes the write lock first, so two processes never
	// migrate at once.
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("open registry: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // a no-op after Commit
	var have int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have > len(files) {
		return fault.Errorf(fault.Failed, "SchemaTooNew",
			"the registry has schema version %d and this build knows %d: run the newer supervisor", have, len(files))
	}
	if have == len(files) {
		return nil
	}
	for _, name := range files[have:] {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return fmt.Errorf("read migration: %w", err)
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("run %s: %w", name, err)
		}
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(files))); err != nil {
		return fmt.Errorf("write schema version: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit migrations: %w", err)
	}
	return nil
}
