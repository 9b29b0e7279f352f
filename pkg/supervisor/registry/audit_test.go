package registry_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// appendAudit adds n records; record i (from 1) is of second i.
func appendAudit(t *testing.T, r *registry.Registry, n int) {
	t.Helper()
	for i := range n {
		_, err := r.AppendAudit(t.Context(), registry.AuditRecord{
			Action: []string{"formations.deploy", "formations.stop"}[i%2], Actor: fmt.Sprintf("key-%d", i%3),
			ID: fmt.Sprintf("f-%d", i%5), Result: "success", Status: 200, RequestID: fmt.Sprintf("req_%d", i+1), RemoteAddr: "10.0.0.1",
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAudit_FindsByTimeActorActionAndFormationNewestFirst(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	appendAudit(t, r, 30)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // of open's clock, before record 1
	at := func(seq int) time.Time { return start.Add(time.Duration(seq) * time.Second) }
	for name, tc := range map[string]struct {
		filter registry.AuditFilter
		want   []int64
	}{
		"the newest":             {registry.AuditFilter{Limit: 3}, []int64{30, 29, 28}},
		"both ends count":        {registry.AuditFilter{Since: at(4), Until: at(6)}, []int64{6, 5, 4}},
		"since":                  {registry.AuditFilter{Since: at(29)}, []int64{30, 29}},
		"until":                  {registry.AuditFilter{Until: at(2)}, []int64{2, 1}},
		"another zone":           {registry.AuditFilter{Since: at(29).In(time.FixedZone("x", 7200))}, []int64{30, 29}},
		"actor":                  {registry.AuditFilter{Actor: "key-1", Limit: 2}, []int64{29, 26}},
		"action":                 {registry.AuditFilter{Action: "formations.stop", Limit: 2}, []int64{30, 28}},
		"formation":              {registry.AuditFilter{ID: "f-0"}, []int64{26, 21, 16, 11, 6, 1}},
		"all together":           {registry.AuditFilter{ID: "f-0", Actor: "key-0", Action: "formations.deploy", Since: at(1), Until: at(20)}, []int64{1}},
		"text is data":           {registry.AuditFilter{Actor: "' OR 1=1 --"}, nil},
		"nothing of that action": {registry.AuditFilter{Action: "formations.fly"}, nil},
	} {
		entries, err := r.Audit(t.Context(), tc.filter)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []int64
		for _, e := range entries {
			got = append(got, e.Seq)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	two, err := r.Audit(t.Context(), registry.AuditFilter{Limit: 2})
	if err != nil || len(two[0].Hash) != 64 || two[0].PrevHash != two[1].Hash || two[0].RequestID != "req_30" || two[0].Time != "2026-01-02T03:04:35.000Z" {
		t.Errorf("the newest two: %+v, %v", two, err)
	}
}

func TestVerifyAudit_AWholeChainIsValid(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	if got, err := r.VerifyAudit(t.Context()); err != nil || got != (registry.AuditCheck{Valid: true}) {
		t.Errorf("an empty chain: %+v, %v", got, err)
	}
	appendAudit(t, r, 1201) // several batches
	got, err := r.VerifyAudit(t.Context())
	if err != nil || got != (registry.AuditCheck{Valid: true, Count: 1201, FirstSeq: 1, LastSeq: 1201}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestVerifyAudit_AHostileTextDoesNotBreakTheChain(t *testing.T) {
	t.Parallel()
	r := open(t, filepath.Join(t.TempDir(), "r.db"))
	for _, text := range []string{"\xff\xfe", "a\x00b", "<&>\u2028", strings.Repeat("é", 5000), `","seq":7,"x":"`} {
		rec := registry.AuditRecord{Action: text, Actor: text, ID: text, Result: text, RequestID: text, RemoteAddr: text}
		rec, err := r.AppendAudit(t.Context(), rec)
		if err != nil || len(rec.Actor) > 2100 {
			t.Fatalf("%.20q: %d bytes, %v", text, len(rec.Actor), err)
		}
	}
	if got, err := r.VerifyAudit(t.Context()); err != nil || !got.Valid {
		t.Errorf("%+v, %v", got, err)
	}
	got, err := r.Audit(t.Context(), registry.AuditFilter{Actor: "a\x00b"})
	if err != nil || len(got) != 1 || got[0].ID != "a\x00b" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestVerifyAudit_TellsWhereItWasTamperedWith(t *testing.T) {
	t.Parallel()
	const n = 620 // the second batch is short
	for name, tc := range map[string]struct {
		change string // after the triggers were dropped
		broken int64
		count  int64
	}{
		"an actor's column":            {"UPDATE audit SET actor = 'nobody' WHERE seq = 7", 7, n},
		"an action's column":           {"UPDATE audit SET action = 'x' WHERE seq = 7", 7, n},
		"a formation's column":         {"UPDATE audit SET id = 'x' WHERE seq = 7", 7, n},
		"a status":                     {"UPDATE audit SET status = 500 WHERE seq = 7", 7, n},
		"a time":                       {"UPDATE audit SET time = time + 1 WHERE seq = 7", 7, n},
		"the text":                     {`UPDATE audit SET record = replace(record, 'key-0', 'key-9') WHERE seq = 7`, 7, n},
		"text and column":              {`UPDATE audit SET record = replace(record, 'key-0', 'key-9'), actor = 'key-9' WHERE seq = 7`, 7, n},
		"the text is none":             {"UPDATE audit SET record = '' WHERE seq = 7", 7, n},
		"a hash":                       {"UPDATE audit SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 7", 7, n},
		"a previous hash":              {"UPDATE audit SET prev_hash = hash WHERE seq = 7", 7, n},
		"a record of the second batch": {"UPDATE audit SET actor = 'x' WHERE seq = 601", 601, n},
		"a hole":                       {"DELETE FROM audit WHERE seq = 7", 7, n - 1},
		"the beginning":                {"DELETE FROM audit WHERE seq <= 3", 1, n - 3},
		"the end":                      {"DELETE FROM audit WHERE seq >= 618", 618, n - 3},
		"all":                          {"DELETE FROM audit", 1, 0},
		"two records changed places":   {"UPDATE audit SET seq = -seq WHERE seq IN (7, 8); UPDATE audit SET seq = 15 + seq WHERE seq < 0", 7, n},
		"one number moved":             {"UPDATE audit SET seq = 1000 WHERE seq = 620", 620, n},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "r.db")
			r := open(t, path)
			appendAudit(t, r, n)
			exec(t, path, "DROP TRIGGER audit_is_never_changed; DROP TRIGGER audit_is_never_deleted; "+tc.change)
			got, err := r.VerifyAudit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got.Valid || got.BrokenAt == nil || *got.BrokenAt != tc.broken || got.Count != tc.count {
				t.Errorf("%+v, broken at %v; want %d of %d", got, deref(got.BrokenAt), tc.broken, tc.count)
			}
		})
	}
}

func TestVerifyAudit_AForgedChainBehindAChangeIsFoundAtTheChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r.db")
	r := open(t, path)
	appendAudit(t, r, 5)
	other := open(t, filepath.Join(t.TempDir(), "other.db"))
	appendAudit(t, other, 9)
	entries, err := other.Audit(t.Context(), registry.AuditFilter{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	// A record of another chain, right in itself, does not follow here.
	exec(t, path, fmt.Sprintf(`DROP TRIGGER audit_is_never_changed;
		UPDATE audit SET prev_hash = '%s', hash = '%s' WHERE seq = 4`, entries[0].PrevHash, entries[0].Hash))
	if got, err := r.VerifyAudit(t.Context()); err != nil || got.BrokenAt == nil || *got.BrokenAt != 4 {
		t.Errorf("%+v, %v; want broken at 4", got, err)
	}
}

func deref(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}
