package httpapi_test

import (
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func draftScenes() map[string]scene {
	return map[string]scene{
		"draft files":  {play: playDraftFiles},
		"draft deploy": {play: playDraftDeploy},
		"dev run":      {play: playDevRun},
	}
}

func playDraftFiles(a *actor) {
	const files = "POST " + one + "/draft/files"
	do := func(want, text, body string) {
		a.Helper()
		a.refused(want, text, call{body: []byte(body)}, files)
	}
	do("400 InvalidJSON", "JSON object", `{`)
	do("400 InvalidJSON", "JSON object", `{"action": 7}`)
	do("400 InvalidAction", `"burn"`, `{"action": "burn"}`)
	a.refused("400 InvalidFormationID", "3 to 50", call{path: ":No", body: []byte(`{"action": "list"}`)}, files)
	for _, action := range []string{"list", "read", "write", "delete", "deploy", "discard"} {
		do("404 DraftNotFound", "no draft", `{"action": "`+action+`", "path": "x"}`)
	}
	do("400 InvalidMode", `"old"`, `{"action": "init", "mode": "old"}`)
	do("404 LiveNotFound", "nothing to clone", `{"action": "init", "mode": "clone"}`)
	a.drafted(a.T, "hello", nil)
	do("409 DraftAlreadyExists", "already", `{"action": "init", "mode": "new"}`)
	for _, action := range []string{"list", "read", "write", "delete"} {
		do("400 InvalidPath", "..", `{"action": "`+action+`", "path": "../x"}`)
	}
	for _, action := range []string{"list", "read", "delete"} {
		do("404 FileNotFound", "nothing", `{"action": "`+action+`", "path": "nothing"}`)
	}
	do("400 DecodeError", "base64", `{"action": "write", "path": "x", "content": "%", "encoding": "base64"}`)
	do("400 DecodeError", "utf-9", `{"action": "write", "path": "x", "content": "y", "encoding": "utf-9"}`)
}

func playDraftDeploy(a *actor) {
	deployed := func(want, text, id string) {
		a.Helper()
		a.refused(want, text, call{path: ":" + id, body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	}
	a.drafted(a.T, "hello", nil)
	usual := deploytest.Files("hello", nil)["formation.afs"]
	for _, bad := range []struct{ want, text, name, content string }{
		{"400 ParseError", "formation.afs", "formation.afs", "schema: [1"},
		{"400 IDMismatch", "other", "formation.afs", deploytest.Files("other", nil)["formation.afs"]},
		{"400 InvalidRuntime", "svc_runtime", "formation.afs", usual + "svc_runtime: [1]\n"},
		{"500 SpawnError", "exit 3", "formation.afs", usual + "init: exit 3\n"},
		{"400 SecretsError", "API_KEY", "behave", "secrets"},
		{"400 HealthCheckFailed", "the disk is on fire", "behave", "crash"},
	} {
		a.writeDraft(a.T, "hello", bad.name, bad.content)
		deployed(bad.want, bad.text, "hello")
		a.writeDraft(a.T, "hello", "formation.afs", usual)
	}
	a.mustDeploy(a.T, "live", nil)
	a.post(a.T, "live/draft/files", `{"action": "init", "mode": "clone"}`)
	deployed("409 NoChange", "this very bundle", "live")
	a.MustUpdate(a.T, "live", map[string]string{"new.txt": "x"})
	deployed("409 DeployConflict", "since the draft began", "live")
}

func playDevRun(a *actor) {
	const run, stop = "POST /rpc/dev/run", "POST /rpc/dev/stop"
	for _, bad := range []struct{ want, text, body string }{
		{"400 ValidationError", "absolute directory", `[]`},
		{"400 ValidationError", "is relative", `{"path": "relative"}`},
		{"400 ValidationError", "no directory", `{"path": "/nothing/there"}`},
		{"400 ValidationError", "missing", `{}`},
		{"400 InvalidFormationID", "3 to 50", `{"formation_id": "No"}`},
		{"404 DraftNotFound", "has no draft", `{"formation_id": "hello"}`},
	} {
		a.refused(bad.want, bad.text, call{body: []byte(bad.body)}, run)
	}
	a.refused("400 ValidationError", "formation_id", call{body: []byte(`{}`)}, stop)
	a.refused("404 DraftNotFound", "No draft", call{body: []byte(`{"formation_id": "hello"}`)}, stop)
	for _, bad := range []struct {
		want, text string
		files      map[string]string
	}{
		{"400 ParseError", "formation.afs", map[string]string{"formation.afs": "schema: [1"}},
		{"500 SecretsError", "API_KEY", map[string]string{"behave": "secrets"}},
		{"500 HealthCheckFailed", "the disk is on fire", map[string]string{"behave": "crash"}},
		{"500 SpawnError", "exit 3", manifestWith("hello", "init: exit 3\n")},
	} {
		a.refused(bad.want, bad.text, devRun(a.T, "hello", bad.files).bodyOnly(), run)
	}
	good := devRun(a.T, "hello", nil)
	mixed := asMap(a.T, string(good.body))
	mixed["formation_id"] = "other"
	a.refused("400 IDMismatch", `"other"`, call{body: []byte(asJSON(a.T, mixed))}, run)
	if got := a.exchange(a.request(a.T, a.Context(), good)); got.status != 200 {
		a.Fatalf("dev run: %s", got.body)
	}
	a.refused("409 DraftRunning", "running already", good.bodyOnly(), run)
}

func otherScenes() map[string]scene {
	return map[string]scene{"questions": {play: playQuestions}}
}

func playQuestions(a *actor) {
	a.refused("404 NotFound", "Endpoint not found", call{}, "GET /rpc/nothing", "PATCH /rpc/formations", "GET /nothing")
	a.mustDeploy(a.T, "hello", nil)
	for _, bad := range []struct{ text, query string }{
		{"from 1 to 10000", "?lines=0"},
		{"from 1 to 10000", "?limit=many"},
		{"stdout, stderr or all", "?stream=both"},
	} {
		a.refused("400 ValidationError", bad.text, call{path: bad.query}, "GET "+one+"/logs")
	}
	a.refused("400 ValidationError", "stdout, stderr or all", call{path: "?stream=both"}, "GET "+one+"/logs/stream")
	a.refused("400 ValidationError", "from 1 to 10000", call{path: "?lines=many"}, "GET /rpc/server/logs")
	for _, bad := range []struct{ text, query string }{
		{"RFC 3339", "?since=yesterday"},
		{"RFC 3339", "?until=1"},
		{"before since", "?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z"},
		{"from 1 to 1000", "?limit=-1"},
	} {
		a.refused("400 ValidationError", bad.text, call{path: bad.query}, "GET /rpc/audit")
	}
	a.block(a.T, "logs/audit.log/in-the-way") // the log is a directory now
	a.refused("500 InternalError", "internal error", call{}, "GET /rpc/server/logs")
}
