package main

import (
	"strings"
	"testing"
)

const usageReply = `{"data":{"from":"2026-01-02T00:00:00Z","to":"2026-01-03T00:00:00Z","group_by":"model",
"groups":[{"key":"openai/a","requests":2,"model_calls":3,"tokens":{"input":40,"output":5,"cached":10},"cost":{"amount":0.0123,"currency":"USD"}},
{"key":"b","requests":1,"model_calls":1,"tokens":{"input":1,"output":2,"cached":0},"cost":null}],
"totals":{"requests":3,"model_calls":4,"tokens":{"input":41,"output":7,"cached":10},"cost":null},
"budgets":[{"scope":"formation","id":"hello","period_start":"2026-01-02T00:00:00Z","tokens":{"used":48,"limit":60},"amount":{"used":0.5,"limit":null},"state":"warning"},
{"scope":"user","id":"ada","period_start":"2026-01-02T00:00:00Z","tokens":{"used":0,"limit":null},"amount":{"used":0.5,"limit":2},"state":"ok"}]}}`

func TestUsage_ShowsWhatWasUsedAndWhatIsLeft(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("GET /api/hello/v1/usage?from=2026-01-02T00%3A00%3A00Z&group_by=model&user_id=ada", reply{status: 200, body: usageReply})
	s := newSession(t, f)
	if code := s.run(t.Context(), "usage", "hello", "--by", "model", "--since", "2026-01-02T00:00:00Z", "--user", "ada", "--key", "k"); code != exitOK {
		t.Fatalf("exit code %d: %s", code, s.er.String())
	}
	want := `MODEL     REQUESTS  CALLS  TOKENS IN  CACHED  TOKENS OUT  COST
openai/a  2         3      40         10      5           0.0123 USD
b         1         1      1          0       2           unknown
total     3         4      41         10      7           unknown

BUDGET     OF     TOKENS    AMOUNT            STATE
formation  hello  48 of 60  0.5000            warning
user       ada    0         0.5000 of 2.0000  ok
`
	if s.out.String() != want {
		t.Errorf("printed\n%s", s.out.String())
	}
}

func TestUsage_RefusesAnUnknownGroup(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := newSession(t, f)
	if code := s.run(t.Context(), "usage", "hello", "--by", "week", "--key", "k"); code != exitUsage || strings.Contains(f.said(), "usage") {
		t.Errorf("exit code %d, asked %q", code, f.said())
	}
}

func TestCancel_EndsARequestOrNamesWhereToLook(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("DELETE /api/hello/v1/requests/req_1", reply{status: 200, body: `{"data":{"request_id":"req_1","status":"cancelled","cancellation":"immediate","message":"m"}}`})
	f.on("DELETE /api/hello/v1/requests/req_2", reply{status: 404, body: `{"error":{"code":"REQUEST_NOT_FOUND","message":"No request with id 'req_2'"}}`})
	s := newSession(t, f)
	if code := s.run(t.Context(), "cancel", "hello", "req_1", "--key", "k"); code != exitOK || s.out.String() != "hello: request req_1 is cancelled\n" {
		t.Errorf("exit code %d: %q, %q", code, s.out.String(), s.er.String())
	}
	s = newSession(t, f)
	if code := s.run(t.Context(), "cancel", "hello", "req_2", "--key", "k"); code != exitNotFound {
		t.Errorf("exit code %d: %q", code, s.er.String())
	}
	if want := "REQUEST_NOT_FOUND: No request with id 'req_2': `supervisor trace hello` lists those that there are\n"; s.er.String() != want {
		t.Errorf("said %q", s.er.String())
	}
}
