package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
)

// ErrCurrent is returned for the attempt to drop the version that is current.
var ErrCurrent = errors.New("the version is the current one")

// VersionState says whether a version has ever been current.
type VersionState string

// The states of a version. A supervisor that finds Staged at its start removes
// what is left of it: its update died.
const (
	Staged VersionState = "staged"
	Live   VersionState = "live"
)

// NewVersion describes a version that is about to be tried.
type NewVersion struct {
	Semantic string
	SHA256   string // of the bundle, lower-case hex
	Name     string // of the formation, as this version's manifest says
}

// VersionDir is where the version with that serial lies, relative to the
// formation's directory.
func VersionDir(serial int) string { return "versions/" + strconv.Itoa(serial) }

const versionColumns = `serial, semantic, sha256, name, dir, state, init_done, deployed_at`

func scanVersion(row interface{ Scan(dest ...any) error }) (Version, error) {
	var v Version
	var deployed int64
	err := row.Scan(&v.Serial, &v.Semantic, &v.SHA256, &v.Name, &v.Dir, &v.State, &v.InitDone, &deployed)
	v.DeployedAt = fromMillis(deployed)
	return v, err
}

// Versions returns the versions of a formation that can be current, the newest
// first; none when there is no such formation.
func (r *Registry) Versions(ctx context.Context, id string) ([]Version, error) {
	rows, err := r.read.QueryContext(ctx,
		`SELECT `+versionColumns+` FROM versions WHERE formation_id = ? AND state = 'live' ORDER BY serial DESC`, id)
	if err != nil {
		return nil, fmt.Errorf("list versions of %s: %w", id, err)
	}
	defer rows.Close()
	all := []Version{}
	for rows.Next() {
		v, err := scanVersion(rows)
		if err != nil {
			return nil, fmt.Errorf("list versions of %s: %w", id, err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list versions of %s: %w", id, err)
	}
	return all, nil
}

// Stage writes the row of a version that is about to be tried, under a serial
// that was never given before. What is current stays so.
func (r *Registry) Stage(ctx context.Context, id string, n NewVersion) (Version, error) {
	v := Version{Semantic: n.Semantic, SHA256: n.SHA256, Name: n.Name, State: Staged}
	err := r.inTx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx,
			`UPDATE formations SET last_serial = last_serial + 1 WHERE id = ? AND state = 'deployed' RETURNING last_serial`, id,
		).Scan(&v.Serial)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		now := r.millis()
		v.Dir, v.DeployedAt = VersionDir(v.Serial), fromMillis(now)
		_, err = tx.ExecContext(ctx,
			`INSERT INTO versions (formation_id, serial, semantic, sha256, name, dir, state, deployed_at)
			 VALUES (?, ?, ?, ?, ?, ?, 'staged', ?)`, id, v.Serial, v.Semantic, v.SHA256, v.Name, v.Dir, now)
		return err
	})
	if err != nil {
		return Version{}, fmt.Errorf("stage version %s of %s: %w", n.Semantic, id, err)
	}
	return v, nil
}

// MarkInit records that the version's init command has succeeded, or that it
// has none.
func (r *Registry) MarkInit(ctx context.Context, id string, serial int) error {
	res, err := r.write.ExecContext(ctx, `UPDATE versions SET init_done = 1 WHERE formation_id = ? AND serial = ?`, id, serial)
	if err := expectRow(res, err, ErrNotFound); err != nil {
		return fmt.Errorf("record the init of version %d of %s: %w", serial, id, err)
	}
	return nil
}

// Promote makes a version current and what was current the previous one; the
// formation is to run and has the version's name. A version that was staged is
// live from now on. Promoting the current version changes neither pointer.
func (r *Registry) Promote(ctx context.Context, id string, serial int) error {
	err := r.inTx(ctx, func(tx *sql.Tx) error {
		now := r.millis()
		res, err := tx.ExecContext(ctx,
			`UPDATE versions SET deployed_at = CASE state WHEN 'staged' THEN ? ELSE deployed_at END, state = 'live'
			 WHERE formation_id = ? AND serial = ?`, now, id, serial)
		if err := expectRow(res, err, ErrNotFound); err != nil {
			return err
		}
		res, err = tx.ExecContext(ctx,
			`UPDATE formations SET desired = 'running', updated_at = ?1, current = ?2,
			        previous = CASE WHEN current = ?2 THEN previous ELSE current END,
			        name = (SELECT v.name FROM versions v WHERE v.formation_id = ?3 AND v.serial = ?2)
			 WHERE id = ?3 AND state = 'deployed'`, now, serial, id)
		return expectRow(res, err, ErrNotFound)
	})
	if err != nil {
		return fmt.Errorf("make version %d of %s current: %w", serial, id, err)
	}
	return nil
}

// DropVersion forgets a version; a missing one is no error. The current one is
// refused with ErrCurrent; when it was the previous one, there is none any more.
func (r *Registry) DropVersion(ctx context.Context, id string, serial int) error {
	err := r.inTx(ctx, func(tx *sql.Tx) error {
		var current sql.NullInt64
		err := tx.QueryRowContext(ctx, `SELECT current FROM formations WHERE id = ?`, id).Scan(&current)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if current.Valid && int(current.Int64) == serial {
			return ErrCurrent
		}
		if _, err := tx.ExecContext(ctx, `UPDATE formations SET previous = NULL WHERE id = ? AND previous = ?`, id, serial); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM versions WHERE formation_id = ? AND serial = ?`, id, serial)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop version %d of %s: %w", serial, id, err)
	}
	return nil
}

// DropStaged forgets all versions of a deployed formation that were tried and
// never became current, and returns how many there were.
func (r *Registry) DropStaged(ctx context.Context, id string) (int, error) {
	res, err := r.write.ExecContext(ctx,
		`DELETE FROM versions WHERE formation_id = ? AND state = 'staged'
		 AND EXISTS (SELECT 1 FROM formations f WHERE f.id = formation_id AND f.state = 'deployed')`, id)
	if err != nil {
		return 0, fmt.Errorf("drop staged versions of %s: %w", id, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("drop staged versions of %s: %w", id, err)
	}
	return int(n), nil
}
