package deploy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

// Dirs is where things lie; all absolute.
type Dirs struct {
	Formations string // <id>/versions/<n>, <id>/state, <id>/draft
	Logs       string // <id>-out.log, <id>-err.log
	Run        string // <8 hex>/: control sockets and run records (0700)
	Tmp        string // uploads
	Cache      string // models, shared by all children
	Keys       string // <id>.key: secrets keys kept by the supervisor (0600)
}

// Ids never begin with a dot, so these two are no formation's.
func (d Dirs) staging() string { return filepath.Join(d.Formations, ".staging") }
func (d Dirs) trash() string   { return filepath.Join(d.Formations, ".trash") }

func (d Dirs) formation(id string) string { return filepath.Join(d.Formations, id) }
func (d Dirs) state(id string) string     { return filepath.Join(d.Formations, id, "state") }
func (d Dirs) outLog(id string) string    { return filepath.Join(d.Logs, id+"-out.log") }
func (d Dirs) errLog(id string) string    { return filepath.Join(d.Logs, id+"-err.log") }

// run is short and the same for an id at every start, so that a later
// supervisor finds the run records.
func (d Dirs) run(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(d.Run, hex.EncodeToString(sum[:4]))
}

// A formation's first version: its serial, and where it lies relative to the
// formation's directory.
const (
	firstVersion = 1
	firstDir     = "versions/1"
	versionsDir  = "versions"
)

// fresh returns a path in dir that nobody else uses.
func fresh(dir, id string) string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return filepath.Join(dir, id+"-"+hex.EncodeToString(b))
}

// discard removes a formation's files. Its directory vanishes by one rename
// first, so that half of it is never seen.
func (d Dirs) discard(id string) error {
	trash := fresh(d.trash(), id)
	err := os.Rename(d.formation(id), trash)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(trash), d.discardOwn(id))
}

// discardOwn removes what a formation has outside its directory.
func (d Dirs) discardOwn(id string) error {
	return errors.Join(os.RemoveAll(d.run(id)), logs.Remove(d.outLog(id)), logs.Remove(d.errLog(id)))
}

// sweep removes what an earlier supervisor left when it was killed: bundles
// half received or half unpacked, and formations half deleted.
func (d Dirs) sweep() error {
	var errs []error
	for _, dir := range []string{d.staging(), d.trash(), d.Tmp} {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// settle waits until all files of dir's file system are on disk: a row must
// not outlive the version that it names.
func settle(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write files to disk: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
