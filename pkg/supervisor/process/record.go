package process

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/control"
)

// A record is what a later supervisor needs to find and prove a child. There is
// one file for each launch in the run directory. It goes away when the child
// ended well, or when a successor has fenced its launch id; so the files of dead
// children are the fence list.
type record struct {
	FormationID string `json:"formation_id"`
	LaunchID    string `json:"launch_id"`
	Token       string `json:"token"`
	PID         int    `json:"pid"`
	StartTime   uint64 `json:"start_time"` // clock ticks since boot, from /proc/<pid>/stat
	BootID      string `json:"boot_id"`
	Socket      string `json:"socket"` // empty until the child has made it
	// Dir is the manifest directory that the child runs in; empty in the records
	// of supervisors that knew no updates.
	Dir string `json:"dir,omitempty"`
	// Init says that it is no child but the init command before one.
	Init       bool      `json:"init,omitempty"`
	LaunchedAt time.Time `json:"launched_at"`
	// ErrFrom is where the launch's part of the error log begins, in bytes.
	ErrFrom int64 `json:"err_from"`
}

const (
	recordPrefix = "launch-"
	recordSuffix = ".json"
	recordTemp   = "record-*"
	maxRecord    = 64 << 10 // bytes
	maxRecords   = 1000
)

func recordPath(runDir, launchID string) string {
	return filepath.Join(runDir, recordPrefix+launchID+recordSuffix)
}

// save writes the record (0600) so that a reader sees all of it or nothing.
func (r record) save(runDir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write run record: %w", err)
	}
	// Under a name that nobody knows before: the child's user may own the
	// directory, and what it plants there must not be written through.
	f, err := os.CreateTemp(runDir, recordTemp) // 0600
	if err != nil {
		return fmt.Errorf("write run record: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), recordPath(runDir, r.LaunchID))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write run record: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// forget removes the record and the child's sockets, which a killed child
// leaves behind.
func (r record) forget(runDir string) error {
	errs := []error{
		ignoreMissing(os.Remove(recordPath(runDir, r.LaunchID))),
		ignoreMissing(os.Remove(control.HandoverPath(runDir, r.LaunchID))),
	}
	if r.Socket != "" && filepath.Dir(r.Socket) == runDir {
		errs = append(errs, ignoreMissing(os.Remove(r.Socket)))
	}
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// readRecords returns the records in runDir, the latest first. A file that is
// no record is removed: a launch whose record is not whole never got further.
// One that goes away meanwhile is that of a child which has just ended.
func readRecords(runDir string) ([]record, error) {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read run records: %w", err)
	}
	var records []record
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, recordPrefix) || len(records) == maxRecords {
			continue
		}
		path := filepath.Join(runDir, name)
		r, err := readRecord(path)
		switch {
		case ourTrouble(err):
			return nil, fmt.Errorf("read run records: %w", err)
		case err != nil || name != recordPrefix+r.LaunchID+recordSuffix:
			if err := ignoreMissing(os.Remove(path)); err != nil {
				return nil, fmt.Errorf("remove a broken run record: %w", err)
			}
		default:
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(b.LaunchedAt.Compare(a.LaunchedAt), cmp.Compare(a.LaunchID, b.LaunchID))
	})
	return records, nil
}

// ourTrouble tells errors that say nothing about the file: if its record went
// away for them, a living child would be lost.
func ourTrouble(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO},
		func(e error) bool { return errors.Is(err, e) })
}

func readRecord(path string) (record, error) {
	// Neither through a link nor waiting at a pipe: see save.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return record{}, err
	}
	return parseRecord(text)
}

// parseRecord reads a record and refuses one that could not prove a process.
func parseRecord(text []byte) (record, error) {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("parse run record: %w", err)
	}
	if r.PID <= 1 || r.StartTime == 0 || r.Token == "" || r.LaunchID == "" || r.BootID == "" {
		return record{}, errors.New("parse run record: pid, start_time, boot_id, token or launch_id is missing")
	}
	if strings.ContainsAny(r.LaunchID, "/\x00") {
		return record{}, errors.New("parse run record: launch_id is no file name")
	}
	return r, nil
}
