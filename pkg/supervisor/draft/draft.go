// Package draft keeps the files of a formation that somebody is still writing.
//
// It promises that no path of a caller leaves the draft's directory, also
// through symbolic links; that a file is replaced as a whole or not at all;
// that a draft appears and vanishes by one rename; and that it never grows
// beyond what could be deployed. Its own files have names that begin with
// ".draft-" and are never shown, read, written or packed.
//
// deploy imports it, and decides who may work on which draft when.
package draft

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// The bounds of one call, beside Limits.
const (
	MaxWrite = 1 << 20 // bytes of a written file: a request's body has no more
	MaxRead  = 8 << 20 // bytes of a file that is read

	maxPath  = 1024 // bytes; those of a bundle
	maxDepth = 32
	maxName  = 255

	reserved = ".draft-"
	metaName = reserved + "meta.json"
	tmpName  = reserved + "write-"
	maxMeta  = 64 << 10
)

// Limits bound a whole draft. They are those of a bundle's content, so that
// what is written can be deployed.
type Limits struct {
	MaxEntries int   // files and directories
	MaxBytes   int64 // of all files together
}

// Meta is what is remembered about a draft.
type Meta struct {
	// BaseVersion is the semantic version that the draft was cloned from.
	BaseVersion string    `json:"base_version,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	// LiveSHA256 is the checksum of the bundle that was live when the draft
	// began, "" when none was: a deploy compares it, because two bundles may
	// carry the same version.
	LiveSHA256 string `json:"live_sha256,omitempty"`
}

// Draft is one draft's directory, open. It is not safe for concurrent use: its
// owner lets one call after the other touch a draft.
type Draft struct {
	root *os.Root
	lim  Limits
}

// Open opens the draft in dir: 404 DraftNotFound when there is none.
func Open(dir string, lim Limits) (*Draft, error) {
	// The directory itself is ours; what lies in it may come from strangers.
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !info.IsDir()) {
		return nil, fault.New(fault.NotFound, "DraftNotFound", "there is no draft; begin one with the action init")
	}
	if err != nil {
		return nil, fmt.Errorf("open draft: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open draft: %w", err)
	}
	return &Draft{root: root, lim: lim}, nil
}

// Close frees the directory.
func (d *Draft) Close() { _ = d.root.Close() }

// Meta returns what is remembered. A draft without it (a directory that somebody
// laid there by hand) has the directory's time.
func (d *Draft) Meta() (Meta, error) {
	text, err := d.read(metaName, maxMeta)
	if errors.Is(err, fs.ErrNotExist) {
		info, err := d.root.Stat(".")
		if err != nil {
			return Meta{}, fmt.Errorf("read draft: %w", err)
		}
		return Meta{CreatedAt: info.ModTime().UTC()}, nil
	}
	if err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", metaName, err)
	}
	var m Meta
	if err := json.Unmarshal(text, &m); err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", metaName, err)
	}
	return m, nil
}

// Own tells whether a path, relative to a draft, is one of the files that
// belong to the draft itself and not to the formation.
func Own(rel string) bool {
	return strings.HasPrefix(rel, reserved)
}

// Exists tells whether dir is a draft.
func Exists(dir string) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir()
}

// Remove ends the draft in dir. It vanishes by one rename to trash, a path on
// the same file system, and is then removed: 404 DraftNotFound when there is none.
func Remove(dir, trash string) error {
	err := os.Rename(dir, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "DraftNotFound", "there is no draft")
	}
	if err != nil {
		return fmt.Errorf("remove draft: %w", err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("remove draft: %w", err)
	}
	return nil
}

// suffix makes a name that nobody else uses.
func suffix() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
