// Package backup writes a supervisor's home directory into one file while the
// supervisor and its children work, and brings it back.
//
// It promises that what was acknowledged before Write began is in the backup;
// that each database in it is one that existed at some moment, or is named as
// one that SQLite cannot read; that a backup
// with any byte changed or missing is refused; and that Restore changes nothing
// before all of it is checked, and then everything by one rename. What a backup
// does not cover it names.
//
// A backup is a gzipped tar file, followed by a seal (see seal.go) that ordinary
// tools read as nothing. The commands import this package; it needs no running
// supervisor, and no lock of one.
package backup

import (
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// Config says what to back up.
type Config struct {
	Home string // has registry.db, keys/ and tmp/
	// Settings is the settings file; "" is Home/config.yaml. Restore puts it there.
	Settings string
	// Formations is the directory of the formations; "" is Home/formations.
	// Restore puts them there.
	Formations string
	// Extra are further files, relative to Home, such as its TLS pair.
	Extra []string
	// Version of the supervisor, for the record.
	Version string
	Now     func() time.Time // nil is time.Now
}

// Options are those of Restore.
type Options struct {
	// Force replaces a home that is not empty: the old one is moved to
	// <home>.before-restore-<time>.
	Force bool
	Now   func() time.Time // nil is time.Now
}

// Report tells what a backup holds. It stands in the backup itself too.
type Report struct {
	CreatedAt  time.Time    `json:"created_at"`
	Version    string       `json:"version"` // of the supervisor that wrote it
	Formations []string     `json:"formations"`
	Files      int          `json:"files"`
	Databases  int          `json:"databases"`
	Bytes      int64        `json:"bytes"` // of all files, unpacked
	NotCovered []NotCovered `json:"not_covered"`
	// Damaged are databases that were damaged when they were backed up, or that
	// another process kept to itself. They are in the backup as their files were.
	Damaged []Damage `json:"damaged"`
	// Skipped are the first hundred entries that are no regular files.
	Skipped []string `json:"skipped"`
	Notes   []string `json:"notes"`
	// MovedTo is where Restore has laid the home that was there; "" when none was.
	MovedTo string `json:"moved_to,omitempty"`
}

// NotCovered is a store that lies elsewhere.
type NotCovered struct {
	Formation string `json:"formation"`
	Store     string `json:"store"`   // without user, password and options
	Command   string `json:"command"` // that backs it up
}

// Damage is a database that is not sound.
type Damage struct {
	Path    string `json:"path"`
	Problem string `json:"problem"`
}

const maxSkipped = 100

// The names of what is wrong with a backup, or with the place for it.
const (
	nameDamaged = "BackupDamaged"
	nameFormat  = "BackupFormat"
	nameHome    = "HomeNotEmpty"
	nameRunning = "AlreadyRunning"
	nameNoHome  = "NoHome"
)

func damaged(format string, args ...any) error {
	return fault.Errorf(fault.Invalid, nameDamaged, format, args...)
}
