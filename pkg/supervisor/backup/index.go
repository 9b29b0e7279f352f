package backup

import (
	"encoding/json"
	"io"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// format is raised when a reader of the present one would misunderstand a
// backup.
const format = 1

// The first and the last entry of a backup.
const (
	headName  = "backup.json"
	indexName = "index.json"
)

// kindRecord marks the databases among the entries: its value is kindSQLite. It
// is the one record that tar programs pass over without a word.
const (
	kindRecord = "comment"
	kindSQLite = "sqlite"
)

// The bounds of reading a backup.
const (
	maxHead    = 64 << 10
	maxIndex   = 512 << 20
	maxEntries = 4_000_000
	maxPath    = 4096 // bytes
	maxPadding = 64 << 10
)

// head is the first entry: it says at once whether the rest can be read.
type head struct {
	Format    int       `json:"format"`
	CreatedAt time.Time `json:"created_at"`
	Version   string    `json:"version"`
}

// index is the last entry. A backup without it was cut off.
type index struct {
	Report
	Entries []entry `json:"entries"`
	// Drop are directories that were in the home when the backup began but not any
	// more when the registry was copied: Restore removes them.
	Drop []string `json:"drop"`
}

// entry is a file of the backup.
type entry struct {
	Path   string `json:"path"` // slash path relative to the home
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // lower-case hex
}

// readHead refuses a backup of another format with a text that says what to do.
func readHead(r io.Reader) (head, error) {
	var h head
	if err := readJSON(r, maxHead, &h); err != nil {
		return h, damaged("this is no backup of a supervisor: %s cannot be read: %w", headName, err)
	}
	switch {
	case h.Format > format:
		return h, fault.Errorf(fault.Invalid, nameFormat,
			"the backup has format %d, written by version %s; this build reads format %d: use that version or a newer one", h.Format, h.Version, format)
	case h.Format != format:
		return h, fault.Errorf(fault.Invalid, nameFormat, "the backup has the unknown format %d; this build reads format %d", h.Format, format)
	}
	return h, nil
}

func readJSON(r io.Reader, limit int64, into any) error {
	text, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
