package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestAuth_KeyTable tries each key on each route (reference runtime.md 2).
func TestAuth_KeyTable(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	const (
		none  = "none"
		admin = "admin"
		both  = "both"
	)
	keys := map[string]struct {
		header []string
		opens  []string
	}{
		"no key":             {nil, []string{none}},
		"empty keys":         {[]string{"X-SVC-Client-Key", "", "X-SVC-Admin-Key", ""}, []string{none}},
		"client":             {[]string{"X-SVC-Client-Key", clientKey}, []string{none, both}},
		"client, lower case": {[]string{"x-svc-client-key", clientKey}, []string{none, both}},
		"admin":              {[]string{"X-SVC-Admin-Key", adminKey}, []string{none, both, admin}},
		"admin, older one":   {[]string{"X-SVC-Admin-Key", "fma_old"}, []string{none, both, admin}},
		"wrong client":       {[]string{"X-SVC-Client-Key", "fmc_tesT"}, []string{none}},
		"wrong admin":        {[]string{"X-SVC-Admin-Key", "fma_test2"}, []string{none}},
		"swapped client":     {[]string{"X-SVC-Admin-Key", clientKey}, []string{none}},
		"swapped admin":      {[]string{"X-SVC-Client-Key", adminKey}, []string{none}},
		"one of two right":   {[]string{"X-SVC-Admin-Key", "wrong", "X-SVC-Client-Key", clientKey}, []string{none, both}},
		"other prefix":       {[]string{"X-ACME-Client-Key", clientKey}, []string{none}},
		"in the query":       {nil, []string{none}},
	}
	routes := []struct{ method, path, need string }{
		{"GET", "/", none},
		{"GET", "/v1", none},
		{"GET", "/v1/health", none},
		{"GET", "/v1/openapi.json", none},
		{"POST", "/v1/chat", both},
		{"POST", "/v1/route", both},
		{"GET", "/v1/requests", both},
		{"GET", "/v1/requests/r", both},
		{"DELETE", "/v1/requests/r", both},
		{"GET", "/v1/requests/r/trace", both},
		{"GET", "/v1/events", both},
		{"GET", "/v1/events/s", both},
		{"GET", "/v1/logs", both},
		{"GET", "/v1/sessions", both},
		{"GET", "/v1/sessions/s", both},
		{"GET", "/v1/sessions/s/messages", both},
		{"GET", "/v1/events/s/r", both},
		{"GET", "/v1/status", admin},
		{"GET", "/metrics", admin},
		{"GET", "/v1/agents", admin},
		{"GET", "/v1/agents/writer", admin},
	}
	for name, key := range keys {
		for _, r := range routes {
			path := r.path
			if name == "in the query" {
				path += "?client_key=" + clientKey
			}
			res := d.send(t, r.method, path, "{}", append([]string{"X-SVC-User-Id", "ann"}, key.header...)...)
			open := false
			for _, need := range key.opens {
				open = open || need == r.need
			}
			if refused := res.StatusCode == http.StatusUnauthorized; refused == open {
				t.Errorf("%s on %s %s: got %d", name, r.method, r.path, res.StatusCode)
			}
			challenge := res.Header.Get("WWW-Authenticate")
			if (challenge != "") == open || (!open && !strings.HasPrefix(challenge, "ApiKey")) {
				t.Errorf("%s on %s %s: challenge %q", name, r.method, r.path, challenge)
			}
		}
	}
}

func TestAuth_HeadersFollowThePrefix(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{prefix: "ACME"})
	res := d.send(t, "POST", "/v1/chat", `{"message":"hi"}`, "X-ACME-Client-Key", clientKey, "X-ACME-User-Id", "ann", "X-ACME-Idempotency-Key", "k")
	var got struct {
		Request struct {
			Key string `json:"idempotency_key"`
		}
		Data struct {
			UserID string `json:"user_id"`
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Data.UserID != "ann" || got.Request.Key != "k" {
		t.Errorf("got %+v, %v", got, err)
	}
	res = d.send(t, "GET", "/v1/agents", "", "X-SVC-Admin-Key", adminKey)
	if want := `ApiKey realm="admin", header="X-ACME-Admin-Key"`; res.Header.Get("WWW-Authenticate") != want {
		t.Errorf("got %d, challenge %q", res.StatusCode, res.Header.Get("WWW-Authenticate"))
	}
}

func TestAuth_UserIDsAreBounded(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for name, path := range map[string]string{
		"long": "/v1/sessions?user_id=" + strings.Repeat("x", 257), "control": "/v1/sessions?user_id=a%0Ab",
	} {
		res := d.send(t, "GET", path, "", "X-SVC-Client-Key", clientKey)
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "INVALID_REQUEST") {
			t.Errorf("%s: got %d %s", name, res.StatusCode, body)
		}
	}
}
