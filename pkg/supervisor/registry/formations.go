package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ErrNotFound is returned for a formation that has no row.
var ErrNotFound = errors.New("no such formation in the registry")

// ErrExists is returned by Begin when the id or the port is taken.
var ErrExists = errors.New("the formation is in the registry already")

// State says where a formation's row is between its first deploy and its end.
type State string

// The states of a formation's row. A supervisor that finds Deploying or
// Deleting at its start finishes the removal of what is left.
const (
	Deploying State = "deploying" // the first deploy has not been committed
	Deployed  State = "deployed"
	Deleting  State = "deleting" // gone for clients; process and files may be left
)

// Desired is what the operator asked for; the fleet converges to it after a
// restart of the supervisor.
type Desired string

// The desired states.
const (
	Running Desired = "running"
	Stopped Desired = "stopped"
)

// Formation is one row with its current and previous version.
type Formation struct {
	ID           string
	Name         string
	Port         int
	State        State
	Desired      Desired
	Current      *Version // nil until the first deploy is committed
	Previous     *Version // nil when there was none
	RestartCount int
	CreatedAt    time.Time
	UpdatedAt    time.Time // last start
}

// Version is one deployed bundle.
type Version struct {
	Serial     int
	Semantic   string
	SHA256     string // of the bundle, lower-case hex
	Name       string // of the formation, as this version's manifest says
	Dir        string // relative to the formation's directory
	State      VersionState
	InitDone   bool      // the manifest's init command has succeeded, or there is none
	DeployedAt time.Time // when it became current for the first time
}

// NewFormation describes a first deploy.
type NewFormation struct {
	ID       string
	Name     string
	Port     int
	Semantic string
	SHA256   string
	Dir      string
	Serial   int
}

// Begin writes the rows of a first deploy: state deploying, desired running,
// the version staged. It returns ErrExists when the id or the port is taken.
func (r *Registry) Begin(ctx context.Context, n NewFormation) error {
	return r.inTx(ctx, func(tx *sql.Tx) error {
		now := r.millis()
		res, err := tx.ExecContext(ctx,
			`INSERT INTO formations (id, name, port, state, desired, last_serial, created_at, updated_at)
			 VALUES (?, ?, ?, 'deploying', 'running', ?, ?, ?) ON CONFLICT DO NOTHING`, n.ID, n.Name, n.Port, n.Serial, now, now)
		if err := expectRow(res, err, ErrExists); err != nil {
			return fmt.Errorf("insert formation %s: %w", n.ID, err)
		}
		_, err = tx.ExecContext(ctx,
			`INSERT INTO versions (formation_id, serial, semantic, sha256, name, dir, state, deployed_at)
			 VALUES (?, ?, ?, ?, ?, ?, 'staged', ?)`, n.ID, n.Serial, n.Semantic, n.SHA256, n.Name, n.Dir, now)
		if err != nil {
			return fmt.Errorf("insert version of %s: %w", n.ID, err)
		}
		return nil
	})
}

// Commit ends a first deploy: the staged version is current, the formation deployed.
func (r *Registry) Commit(ctx context.Context, id string, serial int) error {
	return r.inTx(ctx, func(tx *sql.Tx) error {
		now := r.millis()
		res, err := tx.ExecContext(ctx,
			`UPDATE versions SET state = 'live', deployed_at = ? WHERE formation_id = ? AND serial = ?`, now, id, serial)
		if err := expectRow(res, err, ErrNotFound); err != nil {
			return fmt.Errorf("commit version %d of %s: %w", serial, id, err)
		}
		res, err = tx.ExecContext(ctx,
			`UPDATE formations SET state = 'deployed', desired = 'running', previous = current, current = ?, updated_at = ?
			 WHERE id = ?`, serial, now, id)
		if err := expectRow(res, err, ErrNotFound); err != nil {
			return fmt.Errorf("commit deploy of %s: %w", id, err)
		}
		return nil
	})
}

// SetDesired records what the operator asked for.
func (r *Registry) SetDesired(ctx context.Context, id string, d Desired) error {
	return r.update(ctx, id, `UPDATE formations SET desired = ? WHERE id = ?`, string(d), id)
}

// SetStarted records a start by the operator: desired running, and the time.
func (r *Registry) SetStarted(ctx context.Context, id string) error {
	return r.update(ctx, id, `UPDATE formations SET desired = 'running', updated_at = ? WHERE id = ?`, r.millis(), id)
}

// SetRestartCount records how often the formation has been restarted, by the
// operator or by the restart policy.
func (r *Registry) SetRestartCount(ctx context.Context, id string, n int) error {
	return r.update(ctx, id, `UPDATE formations SET restart_count = ? WHERE id = ?`, n, id)
}

// SetDeleting records that the formation is gone for clients. Its id and port
// stay taken until Delete.
func (r *Registry) SetDeleting(ctx context.Context, id string) error {
	return r.update(ctx, id, `UPDATE formations SET state = 'deleting', desired = 'stopped' WHERE id = ?`, id)
}

// Delete removes the formation and its versions; a missing one is no error.
func (r *Registry) Delete(ctx context.Context, id string) error {
	return r.inTx(ctx, func(tx *sql.Tx) error {
		// The references to versions would forbid the cascade.
		if _, err := tx.ExecContext(ctx, `UPDATE formations SET current = NULL, previous = NULL WHERE id = ?`, id); err != nil {
			return fmt.Errorf("delete formation %s: %w", id, err)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM formations WHERE id = ?`, id); err != nil {
			return fmt.Errorf("delete formation %s: %w", id, err)
		}
		return nil
	})
}

func (r *Registry) update(ctx context.Context, id, query string, args ...any) error {
	res, err := r.write.ExecContext(ctx, query, args...)
	if err := expectRow(res, err, ErrNotFound); err != nil {
		return fmt.Errorf("update formation %s: %w", id, err)
	}
	return nil
}

// expectRow turns "no row was touched" into the given error.
func expectRow(res sql.Result, err, none error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		return none
	}
	return nil
}

const selectFormations = `
SELECT f.id, f.name, f.port, f.state, f.desired, f.restart_count, f.created_at, f.updated_at,
       c.serial, c.semantic, c.sha256, c.name, c.dir, c.state, c.init_done, c.deployed_at,
       p.serial, p.semantic, p.sha256, p.name, p.dir, p.state, p.init_done, p.deployed_at
FROM formations f
LEFT JOIN versions c ON c.formation_id = f.id AND c.serial = f.current
LEFT JOIN versions p ON p.formation_id = f.id AND p.serial = f.previous`

// Get returns one formation, ErrNotFound when there is none.
func (r *Registry) Get(ctx context.Context, id string) (Formation, error) {
	f, err := scanFormation(r.read.QueryRowContext(ctx, selectFormations+` WHERE f.id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Formation{}, ErrNotFound
	}
	if err != nil {
		return Formation{}, fmt.Errorf("read formation %s: %w", id, err)
	}
	return f, nil
}

// List returns all formations by id.
func (r *Registry) List(ctx context.Context) ([]Formation, error) {
	rows, err := r.read.QueryContext(ctx, selectFormations+` ORDER BY f.id`)
	if err != nil {
		return nil, fmt.Errorf("list formations: %w", err)
	}
	defer rows.Close()
	all := []Formation{}
	for rows.Next() {
		f, err := scanFormation(rows)
		if err != nil {
			return nil, fmt.Errorf("list formations: %w", err)
		}
		all = append(all, f)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list formations: %w", err)
	}
	return all, nil
}

// nullVersion is a version of a left join.
type nullVersion struct {
	serial, deployedAt                 sql.NullInt64
	semantic, sha256, name, dir, state sql.NullString
	initDone                           sql.NullBool
}

func (n *nullVersion) dest() []any {
	return []any{&n.serial, &n.semantic, &n.sha256, &n.name, &n.dir, &n.state, &n.initDone, &n.deployedAt}
}

func (n *nullVersion) version() *Version {
	if !n.serial.Valid {
		return nil
	}
	return &Version{
		Serial: int(n.serial.Int64), Semantic: n.semantic.String, SHA256: n.sha256.String, Name: n.name.String,
		Dir: n.dir.String, State: VersionState(n.state.String), InitDone: n.initDone.Bool,
		DeployedAt: fromMillis(n.deployedAt.Int64),
	}
}

func scanFormation(row interface{ Scan(dest ...any) error }) (Formation, error) {
	var f Formation
	var c, p nullVersion
	var created, updated int64
	dest := []any{&f.ID, &f.Name, &f.Port, &f.State, &f.Desired, &f.RestartCount, &created, &updated}
	dest = append(append(dest, c.dest()...), p.dest()...)
	if err := row.Scan(dest...); err != nil {
		return Formation{}, err
	}
	f.CreatedAt, f.UpdatedAt = fromMillis(created), fromMillis(updated)
	f.Current, f.Previous = c.version(), p.version()
	return f, nil
}
