package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestRoutes_PingAndHealthNeedNoKey(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	res, body := d.do(t, call{method: "GET", path: "/ping", sign: unsigned})
	if res.StatusCode != 200 || body != "pong" || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("ping: %d %q %q", res.StatusCode, body, res.Header)
	}
	d.mustDeploy(t, "hello", nil)
	_, body = d.do(t, call{method: "GET", path: "/health", sign: unsigned})
	got := regexp.MustCompile(`"uptime":\d+`).ReplaceAllString(body, `"uptime":0`)
	want := `{"success":true,"status":"ok","version":"9.9.9","formations":1,"uptime":0,` +
		`"data":{"status":"ok","version":"9.9.9","formations":1,"uptime":0,"port_pool":{"allocated":1,"available":9,"total":10}}}` + "\n"
	if got != want {
		t.Errorf("health:\n got %s\nwant %s", got, want)
	}
}

func TestRoutes_PingAndHealthAnswerTheHEADOfLoadBalancers(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for _, path := range []string{"/ping", "/health"} {
		res, body := d.do(t, call{method: "HEAD", path: path, sign: unsigned})
		if res.StatusCode != 200 || body != "" {
			t.Errorf("HEAD %s: %d with a body of %q", path, res.StatusCode, body)
		}
	}
}

func TestRoutes_DeployListGetAndDelete(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	if got := d.data(t, 200, call{method: "GET", path: "/rpc/formations"}); cmp.Diff(map[string]any{"formations": []any{}, "total": 0.0}, got) != "" {
		t.Errorf("empty list: %v", got)
	}
	made := d.mustDeploy(t, "hello", nil)
	pid, _ := made["pid"].(float64)
	want := map[string]any{
		"id": "hello", "formation_id": "hello", "port": float64(d.First), "version": "1.2.3", "status": "running",
		"url": d.url + "/api/hello", "health_url": fmt.Sprintf("http://localhost:%d/v1/health", d.First), "pid": pid,
	}
	if diff := cmp.Diff(want, made); diff != "" || pid == 0 {
		t.Errorf("deploy (-want +got):\n%s", diff)
	}

	list := d.data(t, 200, call{method: "GET", path: "/rpc/formations?status=running"})
	items, _ := list["formations"].([]any)
	if len(items) != 1 || list["total"] != 1.0 {
		t.Fatalf("list: %v", list)
	}
	item, _ := items[0].(map[string]any)
	version, _ := item["version"].(map[string]any)
	sha, _ := version["current"].(string)
	want = map[string]any{
		"id": "hello", "name": "Name of hello", "port": float64(d.First), "status": "running", "pid": pid,
		"uptime": item["uptime"], "restart_count": 0.0, "healthy": true,
		"version": map[string]any{"semantic": "1.2.3", "current": sha, "previous": ""},
	}
	if diff := cmp.Diff(want, item); diff != "" || len(sha) != 64 {
		t.Errorf("item (-want +got):\n%s", diff)
	}
	if list = d.data(t, 200, call{method: "GET", path: "/rpc/formations?status=stopped"}); list["total"] != 0.0 {
		t.Errorf("filtered list: %v", list)
	}

	detail := d.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"})
	for _, name := range []string{"created_at", "deployed_at", "updated_at", "last_health_check"} {
		text, _ := detail[name].(string)
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || time.Since(at) > time.Minute || !strings.HasSuffix(text, "Z") {
			t.Errorf("%s = %q, want a recent time in UTC", name, text)
		}
	}
	if diff := cmp.Diff([]any{"formation.afs:1:1: a warning"}, detail["warnings"]); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}

	if got := d.data(t, 200, call{method: "DELETE", path: "/rpc/formations/hello"}); got["id"] != "hello" || got["message"] == "" {
		t.Errorf("delete: %v", got)
	}
	if left := d.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
	d.refused(t, 404, "FormationNotFound", "No formation with id 'hello'", call{method: "GET", path: "/rpc/formations/hello"})
}

func TestRoutes_StopStartRestart(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	port := float64(d.First)
	post := func(verb, body string) call {
		return call{method: "POST", path: "/rpc/formations/hello/" + verb, body: []byte(body), header: map[string]string{"Content-Type": "application/json"}}
	}
	for _, tc := range []struct {
		verb, body string
		want       map[string]any
	}{
		{"stop", "", map[string]any{"id": "hello", "status": "stopped", "message": "Formation 'hello' stopped"}},
		{"start", "{}", map[string]any{"id": "hello", "status": "running", "message": "Formation 'hello' started", "port": port}},
		{"restart", ` {"a": 1}`, map[string]any{
			"id": "hello", "status": "running", "message": "Formation 'hello' restarted", "restart_count": 1.0, "port": port,
		}},
	} {
		if diff := cmp.Diff(tc.want, d.data(t, 200, post(tc.verb, tc.body))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.verb, diff)
		}
	}
	d.refused(t, 409, "AlreadyRunning", "already running", post("start", ""))
	d.data(t, 200, post("stop", "{}"))
	d.refused(t, 409, "AlreadyStopped", "already stopped", post("stop", ""))
	if v := d.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"}); v["healthy"] != nil || v["pid"] != 0.0 || v["uptime"] != 0.0 {
		t.Errorf("a stopped formation: %v", v)
	}
	for _, body := range []string{"null", "[]", "1", "{", "x"} {
		for _, verb := range []string{"start", "stop", "restart"} {
			d.refused(t, 400, "ValidationError", "empty or a JSON object", post(verb, body))
		}
	}
	big := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	d.refused(t, 413, "PayloadTooLarge", "1048576 bytes", post("start", big))
}

func TestRoutes_ACrashShowsItsLastWords(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	d.data(t, 200, call{method: "POST", path: "/rpc/formations/hello/stop"})
	if err := os.WriteFile(filepath.Join(d.Home, "formations/hello/state/behave"), []byte("crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.refused(t, 500, "HealthCheckFailed", "the disk is on fire", call{method: "POST", path: "/rpc/formations/hello/start"})
	detail := d.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"})
	exit, _ := detail["last_exit"].(map[string]any)
	if detail["status"] != "crashed" || exit["exit_code"] != 7.0 || cmp.Diff([]any{"the disk is on fire"}, exit["stderr"]) != "" || exit["at"] == nil {
		t.Errorf("detail: %v", detail)
	}
	res := d.refused(t, 503, "FormationUnavailable", "is crashed", call{method: "GET", path: "/api/hello/v1/health", sign: unsigned})
	if res.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
}

func TestRoutes_UnknownFormationIsNotFoundEverywhere(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for _, c := range []call{
		{method: "GET", path: "/rpc/formations/nobody"},
		{method: "DELETE", path: "/rpc/formations/nobody"},
		{method: "POST", path: "/rpc/formations/nobody/start"},
		{method: "POST", path: "/rpc/formations/nobody/stop"},
		{method: "POST", path: "/rpc/formations/nobody/restart"},
		{method: "GET", path: "/rpc/formations/nobody/logs"},
		{method: "GET", path: "/rpc/formations/nobody/logs?follow=true"},
		{method: "POST", path: "/api/nobody/v1/chat", sign: unsigned},
	} {
		d.refused(t, 404, "FormationNotFound", "No formation with id 'nobody'", c)
	}
}

func TestRoutes_UnknownRoutesAreNotFound(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for _, c := range []call{
		{method: "GET", path: "/", sign: unsigned},
		{method: "GET", path: "/nothing", sign: unsigned},
		{method: "POST", path: "/ping", sign: unsigned},
		{method: "GET", path: "/rpc"},
		{method: "GET", path: "/rpc/nothing"},
		{method: "PATCH", path: "/rpc/formations"},
		{method: "GET", path: "/rpc/formations/hello/start"},
		{method: "GET", path: "/rpc/formations/hello/nothing"},
	} {
		d.refused(t, 404, "NotFound", "Endpoint not found", c)
	}
}

func TestRoutes_EveryRPCPathNeedsASignature(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for _, path := range []string{
		"/rpc", "/rpc/nothing", "/rpc/formations", "/rpc/formations/hello", "/rpc/server/status", "/rpc/formations/hello/logs?follow=1", "//rpc/formations",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			res, body := d.do(t, call{method: method, path: path, sign: unsigned})
			if path == "//rpc/formations" {
				if res.StatusCode != 404 {
					t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
				}
				continue
			}
			if res.StatusCode != 401 || !strings.Contains(body, `"message":"Missing authorization header"`) {
				t.Errorf("%s %s: %d %s, want 401", method, path, res.StatusCode, body)
			}
		}
	}
}

func TestRoutes_CORS(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	res, _ := d.do(t, call{method: "OPTIONS", path: "/rpc/formations", sign: unsigned, header: map[string]string{
		"Origin": "https://console.example", "Access-Control-Request-Method": "POST",
	}})
	h := res.Header
	if res.StatusCode != 200 || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("preflight: %d %v", res.StatusCode, h)
	}
	for _, name := range []string{"X-SVC-Key-ID", "X-SVC-Timestamp", "X-SVC-Signature", "X-Formation-ID", "X-Formation-Version", "Authorization"} {
		if !strings.Contains(strings.ToLower(h.Get("Access-Control-Allow-Headers")), strings.ToLower(name)) {
			t.Errorf("%s is not allowed: %s", name, h.Get("Access-Control-Allow-Headers"))
		}
	}
}

func TestRoutes_ServerStatus(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "one", nil)
	d.mustDeploy(t, "two", nil)
	d.data(t, 200, call{method: "POST", path: "/rpc/formations/two/stop"})
	got := d.data(t, 200, call{method: "GET", path: "/rpc/server/status"})
	server, _ := got["server"].(map[string]any)
	rt, _ := got["runtime"].(map[string]any)
	want := map[string]any{
		"server":     map[string]any{"id": "server-test", "server_id": "server-test", "version": "9.9.9", "uptime": server["uptime"], "port": 7890.0},
		"formations": map[string]any{"total": 2.0, "running": 1.0, "stopped": 1.0, "crashed": 0.0, "healthy": 1.0},
		"port_pool":  map[string]any{"total": 10.0, "available": 8.0, "allocated": 2.0},
		"ports":      map[string]any{"allocated": 2.0, "available": 8.0, "range": fmt.Sprintf("%d-%d", d.First, d.First+9)},
		"runtime": map[string]any{
			"type": "native", "platform": runtime.GOOS + "/" + runtime.GOARCH, "versions": []any{"9.9.9"},
			"goroutines": rt["goroutines"], "go_version": runtime.Version(),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestRoutes_Proxy(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	made := d.mustDeploy(t, "hello", nil)
	res, body := d.do(t, call{method: "GET", path: "/api/hello/", sign: unsigned})
	if want := fmt.Sprint(made["pid"]); res.StatusCode != 200 || body != want {
		t.Errorf("through the proxy: %d %q, want %s", res.StatusCode, body, want)
	}
	if got := res.Header["Access-Control-Allow-Origin"]; len(got) != 1 {
		t.Errorf("allowed origins: %v", got)
	}
	d.data(t, 200, call{method: "POST", path: "/rpc/formations/hello/stop"})
	res = d.refused(t, 503, "FormationUnavailable", "is stopped", call{method: "GET", path: "/api/hello/", sign: unsigned})
	if res.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
}

func TestLogs_LinesOfBothStreams(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	for i := range 3 {
		deploytest.Ask(t, d.First, fmt.Sprintf("/log?%d", i))
	}
	get := func(query string) map[string]any {
		return d.data(t, 200, call{method: "GET", path: "/rpc/formations/hello/logs" + query})
	}
	lines := func(prefix string, from int) []any {
		var l []any
		for i := from; i < 3; i++ {
			l = append(l, fmt.Sprintf("%s %d", prefix, i))
		}
		return l
	}
	total := map[string]any{"stdout": 3.0, "stderr": 3.0}
	for query, want := range map[string]map[string]any{
		"":                        {"stream": "all", "logs": map[string]any{"stdout": lines("out", 0), "stderr": lines("err", 0)}, "total_lines": total},
		"?lines=2":                {"stream": "all", "logs": map[string]any{"stdout": lines("out", 1), "stderr": lines("err", 1)}, "total_lines": total},
		"?limit=1&stream=all":     {"stream": "all", "logs": map[string]any{"stdout": lines("out", 2), "stderr": lines("err", 2)}, "total_lines": total},
		"?stream=stdout":          {"stream": "stdout", "logs": map[string]any{"stdout": lines("out", 0), "stderr": []any{}}, "total_lines": map[string]any{"stdout": 3.0, "stderr": 0.0}},
		"?stream=stderr&lines=99": {"stream": "stderr", "logs": map[string]any{"stdout": []any{}, "stderr": lines("err", 0)}, "total_lines": map[string]any{"stdout": 0.0, "stderr": 3.0}},
	} {
		want["formation_id"] = "hello"
		if diff := cmp.Diff(want, get(query)); diff != "" {
			t.Errorf("logs%s (-want +got):\n%s", query, diff)
		}
	}
	for _, query := range []string{"?lines=0", "?lines=-1", "?lines=x", "?limit=1.5", "?lines=99999999999999999999"} {
		d.refused(t, 400, "ValidationError", "from 1 to 10000", call{method: "GET", path: "/rpc/formations/hello/logs" + query})
	}
	d.refused(t, 400, "ValidationError", "stdout, stderr or all", call{method: "GET", path: "/rpc/formations/hello/logs?stream=both"})
}

func TestLogs_Follow(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	deploytest.Ask(t, d.First, "/log?old")
	res := d.send(t, t.Context(), call{method: "GET", path: "/rpc/formations/hello/logs?follow=true"})
	defer res.Body.Close()
	if ct := res.Header.Get("Content-Type"); ct != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers: %v", res.Header)
	}
	seen := map[string]bool{}
	got := events(t, res.Body, func(e event) bool {
		if e.name == "connected" {
			deploytest.Ask(t, d.First, "/log?new")
		}
		if e.name == "log" {
			seen[fmt.Sprint(e.data["stream"], " ", e.data["line"])] = true
		}
		return len(seen) == 2
	})
	if got[0].name != "connected" || cmp.Diff(map[string]any{"formation_id": "hello"}, got[0].data) != "" {
		t.Errorf("first event: %+v", got[0])
	}
	if !seen["stdout out new"] || !seen["stderr err new"] {
		t.Errorf("lines: %v", seen)
	}
	if at, err := time.Parse(time.RFC3339, got[1].data["time"].(string)); err != nil || time.Since(at) > time.Minute || got[1].data["formation_id"] != "hello" {
		t.Errorf("log event: %+v", got[1])
	}
}

func TestAudit_RecordsEveryCallOnceRefusedOnesTogether(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	d.data(t, 200, call{method: "GET", path: "/rpc/formations", sign: threeHeaders})
	d.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"})
	d.refused(t, 409, "ValidationError", "already exists", d.deployCall("hello", []byte("x")))
	d.refused(t, 404, "NotFound", "", call{method: "GET", path: "/rpc/nothing"})
	for range 5 {
		d.refused(t, 401, "Unauthorized", "Missing", call{method: "DELETE", path: "/rpc/formations/hello", sign: unsigned})
	}
	sse := d.deployCall("broken", deploytest.Bundle(t, "broken", deploytest.Files("broken", map[string]string{"behave": "secrets"})))
	sse.header["Accept"] = "text/event-stream"
	d.do(t, sse)
	d.do(t, call{method: "GET", path: "/health", sign: unsigned}) // not of /rpc
	d.stop()
	want := []string{
		keyID + " formations.deploy hello 201 success",
		keyID + " formations.list  200 success",
		keyID + " formations.get hello 200 success",
		keyID + " formations.deploy hello 409 failure",
		keyID + " unknown  404 failure",
		"formations.delete hello 401 refused",
		keyID + " formations.deploy broken 400 failure",
		"unknown  401 refused, 4 more",
	}
	if diff := cmp.Diff(want, d.auditRows(t)); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	var files []map[string]any
	for line := range strings.Lines(d.audit.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("audit log line %q: %v", line, err)
		}
		files = append(files, r)
	}
	if len(files) != len(want) {
		t.Fatalf("%d lines in the audit log, want %d", len(files), len(want))
	}
	first := files[0]
	if first["method"] != "POST" || first["path"] != "/rpc/formations" || first["duration_ms"] == nil || first["seq"] != 1.0 ||
		first["prev_hash"] != strings.Repeat("0", 64) || files[1]["prev_hash"] != first["hash"] {
		t.Errorf("first line: %v", first)
	}
}

func TestUnauthorized_CarriesAChallenge(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	res := d.refused(t, 401, "Unauthorized", "Invalid key", call{method: "GET", path: "/rpc/formations", sign: func(r *http.Request, _ []byte) {
		r.Header.Set("Authorization", fmt.Sprintf("SVC-HMAC key=x, timestamp=%d, signature=eA==", time.Now().Unix()))
	}})
	if res.Header.Get("WWW-Authenticate") != "SVC-HMAC" {
		t.Errorf("headers: %v", res.Header)
	}
}
