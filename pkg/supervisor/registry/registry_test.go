package registry_test

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) *registry.Registry {
	t.Helper()
	clock := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var mu sync.Mutex
	r, err := registry.Open(t.Context(), registry.Config{Path: path, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		clock = clock.Add(time.Second)
		return clock
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func begin(t *testing.T, r *registry.Registry, id string, port int) {
	t.Helper()
	err := r.Begin(t.Context(), registry.NewFormation{
		ID: id, Name: "Name of " + id, Port: port, Serial: 1, Semantic: "1.2.3", SHA256: "abc", Dir: "versions/1",
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRegistry_ACommittedDeployIsThereAfterReopening(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "odd ?#%name.db")
	r := open(t, path)
	begin(t, r, "alpha", 8000)
	begin(t, r, "beta", 8001)
	if err := r.Commit(t.Context(), "alpha", 1); err != nil {
		t.Fatal(err)
	}
	if err := r.SetRestartCount(t.Context(), "alpha", 7); err != nil {
		t.Fatal(err)
	}
	if err := r.SetDesired(t.Context(), "alpha", registry.Stopped); err != nil {
		t.Fatal(err)
	}
	want, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A second connection to the file sees what a restarted supervisor would.
	got, err := open(t, path).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after reopening (-want +got):\n%s", diff)
	}
	a, b := got[0], got[1]
	if a.ID != "alpha" || a.State != registry.Deployed || a.Desired != registry.Stopped || a.RestartCount != 7 || a.Port != 8000 {
		t.Errorf("alpha = %+v", a)
	}
	if a.Current == nil || a.Current.Semantic != "1.2.3" || a.Current.SHA256 != "abc" || a.Current.Dir != "versions/1" || a.Previous != nil {
		t.Errorf("versions of alpha = %+v, %+v", a.Current, a.Previous)
	}
	if b.State != registry.Deploying || b.Current != nil {
		t.Errorf("beta = %+v, want an uncommitted deploy", b)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the registry = %v, %v; want 0600", st, err)
	}
}

func TestBegin_RefusesATakenIDOrPort(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	begin(t, r, "alpha", 8000)
	for _, n := range []registry.NewFormation{{ID: "alpha", Port: 8005, Serial: 1}, {ID: "beta", Port: 8000, Serial: 1}} {
		if err := r.Begin(t.Context(), n); !errors.Is(err, registry.ErrExists) {
			t.Errorf("begin %+v: %v, want ErrExists", n, err)
		}
	}
	if all, _ := r.List(t.Context()); len(all) != 1 {
		t.Errorf("rows after refusals: %+v", all)
	}
}

func TestDelete_RemovesTheFormationAndFreesItsID(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	begin(t, r, "alpha", 8000)
	if err := r.Commit(t.Context(), "alpha", 1); err != nil {
		t.Fatal(err)
	}
	if err := r.SetDeleting(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	if f, err := r.Get(t.Context(), "alpha"); err != nil || f.State != registry.Deleting || f.Desired != registry.Stopped {
		t.Errorf("while it is deleted: %+v, %v", f, err)
	}
	for range 2 { // the second finds nothing, and that is fine
		if err := r.Delete(t.Context(), "alpha"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Get(t.Context(), "alpha"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("get after delete: %v, want ErrNotFound", err)
	}
	begin(t, r, "alpha", 8000)
}

func TestUpdates_OfAMissingFormationAreErrors(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	for name, err := range map[string]error{
		"commit":        r.Commit(t.Context(), "none", 1),
		"desired":       r.SetDesired(t.Context(), "none", registry.Stopped),
		"started":       r.SetStarted(t.Context(), "none"),
		"restart count": r.SetRestartCount(t.Context(), "none", 1),
	} {
		if !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
}

func TestOpen_RefusesARegistryOfANewerBuild(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.db")
	open(t, path)
	exec(t, path, "PRAGMA user_version = 1000")
	_, err := registry.Open(t.Context(), registry.Config{Path: path})
	if err == nil || !strings.Contains(err.Error(), "schema version 1000") {
		t.Errorf("open = %v, want a refusal that names the version", err)
	}
}

func exec(t *testing.T, path, query string) {
	t.Helper()
	if err := tryExec(t, path, query); err != nil {
		t.Fatal(err)
	}
}

func tryExec(t *testing.T, path, query string) error {
	t.Helper()
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), query)
	return err
}

func TestAppendAudit_ChainsConcurrentRecordsAndForbidsChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.db")
	r := open(t, path)
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := r.AppendAudit(t.Context(), registry.AuditRecord{
				Action: "formations.deploy", Actor: "svc_pk_<&>", ID: fmt.Sprintf("f-%d", i), Result: "success", Status: 201,
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), `SELECT seq, record, prev_hash, hash FROM audit ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	prev, count := strings.Repeat("0", 64), int64(0)
	for rows.Next() {
		var seq int64
		var record, prevHash, hash string
		if err := rows.Scan(&seq, &record, &prevHash, &hash); err != nil {
			t.Fatal(err)
		}
		count++
		sum := sha256.Sum256([]byte(prev + "\n" + record))
		if seq != count || prevHash != prev || hash != hex.EncodeToString(sum[:]) {
			t.Fatalf("record %d does not fit the chain: seq %d, prev %s, hash %s", count, seq, prevHash, hash)
		}
		if !isCanonical(t, record) {
			t.Errorf("record is not compact JSON with sorted keys: %s", record)
		}
		prev = hash
	}
	if err := rows.Err(); err != nil || count != n {
		t.Fatalf("%d records, %v; want %d", count, err, n)
	}
	for _, q := range []string{"UPDATE audit SET actor = 'x' WHERE seq = 3", "DELETE FROM audit WHERE seq = 3"} {
		if err := tryExec(t, path, q); err == nil || !strings.Contains(err.Error(), "never") {
			t.Errorf("%s: %v, want a refusal", q, err)
		}
	}
}

// isCanonical repeats the encoding with the generic map, whose keys Go sorts.
func isCanonical(t *testing.T, record string) bool {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(record), &m); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(buf.String()) == record
}
