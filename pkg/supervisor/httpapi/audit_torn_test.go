package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

// fullDisk takes but a part of its second text, as a disk does that is full, and
// nothing of its third.
type fullDisk struct {
	lockedBuffer
	calls atomic.Int32
}

func (d *fullDisk) Write(p []byte) (int, error) {
	defer d.calls.Add(1)
	switch d.calls.Load() + 1 {
	case 2:
		n, _ := d.lockedBuffer.Write(p[:20])
		return n, unix.ENOSPC
	case 3:
		return 0, unix.ENOSPC
	}
	return d.lockedBuffer.Write(p)
}

func TestAudit_ALineThatWasCutOffSpoilsNoOther(t *testing.T) {
	t.Parallel()
	disk := &fullDisk{}
	d := setupWith(t, nil, func(cfg *httpapi.Config) { cfg.AuditLog = disk })
	for i := range int32(5) {
		d.data(t, http.StatusOK, call{method: "GET", path: "/rpc/formations"})
		deploytest.Eventually(t, "the call is in the log", func() bool { return disk.calls.Load() > i })
	}
	var seqs []int64
	for line := range strings.Lines(disk.String()) {
		var rec struct{ Seq int64 }
		if json.Unmarshal([]byte(line), &rec) != nil {
			rec.Seq = -1
		}
		seqs = append(seqs, rec.Seq)
	}
	if diff := cmp.Diff([]int64{1, -1, 4, 5}, seqs); diff != "" {
		t.Errorf("records by line (-1 is no record): %s\n%s", diff, disk.String())
	}
}
