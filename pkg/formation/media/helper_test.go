package media_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/formation/media"
)

// patience is how long a test waits for what must happen; it costs time only
// where a test fails.
const patience = 2 * time.Minute

// await asks until yes, with patience.
func await(t *testing.T, yes func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !yes() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal("it did not come about")
		}
	}
}

// awaitChild returns the worker of a process, once it is past its stage.
func awaitChild(t *testing.T, parent int) (pid int) {
	t.Helper()
	await(t, func() bool {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
			_, rest, _ := strings.Cut(string(stat), ") ")
			var state string
			var ppid int
			if n, _ := fmt.Sscan(rest, &state, &ppid); n != 2 || ppid != parent {
				continue
			}
			args, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			_, second, _ := strings.Cut(string(args), "\x00")
			if _, scan := fmt.Sscan(e.Name(), &pid); scan == nil && err == nil && strings.HasPrefix(second, media.Command) {
				return true
			}
		}
		return false
	})
	return pid
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "Z")
}
