package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/store"
)

// helpFull is a process that may write files of one megabyte at most, which
// fails like a full disk, until it is told that there is room.
func helpFull(ctx context.Context, db *store.DB) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: before.Max}); err != nil {
		return err
	}
	blob := make([]byte, 64<<10)
	write := func(step string) error {
		return db.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO journal (request_id, step, payload) VALUES ('full', ?, ?)`, step, blob)
			return err
		})
	}
	stored := 0
	for ; stored < 100; stored++ {
		if err := write(fmt.Sprint(stored)); err != nil {
			fmt.Println(stored, fault.KindOf(err), fault.NameOf(err), fault.From(err).Message)
			break
		}
	}
	if err := write("again"); err == nil {
		return errors.New("a write went through while there was no room")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	if err := write("after"); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	var check string
	if err := db.QueryRow(ctx, `PRAGMA integrity_check`, nil, &check); err != nil {
		return err
	}
	fmt.Println(check)
	return nil
}

func TestWrite_OnAFullDiskSaysSoAndGoesOnOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.db")
	o := helper(t, "full", path, "launch-2")
	var stored int
	var kind, name string
	line := o.line(t)
	if _, err := fmt.Sscan(line, &stored, &kind, &name); err != nil {
		t.Fatal(err)
	}
	if stored == 0 || stored > 20 || kind != "unavailable" || name != "SERVICE_UNAVAILABLE" || !strings.Contains(line, "disk is full") {
		t.Errorf("after %d writes: %s", stored, line)
	}
	if check := o.line(t); check != "ok" {
		t.Errorf("integrity: %s", check)
	}
	if err := o.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := countJournal(t, open(t, path, nil)); n != stored+1 {
		t.Errorf("%d rows, want %d and the one after", n, stored)
	}
}
