package httpapi_test

import (
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func operationScenes() map[string]scene {
	return map[string]scene{
		"operations":          {play: playOperations},
		"what does not start": {play: playNoStart},
		"registry":            {play: playRegistry},
		"forwarded":           {play: playForwarded},
		"ending":              {play: playEnding},
	}
}

// operations are the routes of the verbs.
func operations(verbs ...string) []string {
	all := make([]string, len(verbs))
	for i, v := range verbs {
		all[i] = "POST " + one + "/" + v
	}
	return all
}

func playOperations(a *actor) {
	unknown := call{path: ":nobody"}
	a.refused("404 FormationNotFound", "'nobody'", unknown, operations("start", "restart", "rollback", "stop", "cancel-update")...)
	a.refused("404 FormationNotFound", "'nobody'", unknown, "GET "+one, "DELETE "+one, "GET "+one+"/logs", "GET "+one+"/logs/stream", "GET "+one+"/download")
	for _, text := range []string{"null", "[]", "1", "{", `"x"`} {
		a.refused("400 ValidationError", "empty or a JSON object", call{body: []byte(text)},
			operations("start", "restart", "rollback", "start/stream", "restart/stream", "rollback/stream", "stop", "cancel-update")...)
	}
	a.refused("400 ValidationError", "version must be a string", call{body: []byte(`{"version": 7}`)}, operations("rollback", "rollback/stream")...)
	a.mustDeploy(a.T, "hello", nil)
	a.refused("409 AlreadyRunning", "already running", call{}, operations("start")...)
	a.refused("400 NoPreviousVersion", "no previous version", call{}, operations("rollback")...)
	a.refused("404 VersionNotFound", "7.7.7", call{body: []byte(`{"version": "7.7.7"}`)}, operations("rollback")...)
	a.refused("409 NoChange", "1.2.3", call{body: []byte(`{"version": "1.2.3"}`)}, operations("rollback")...)
	a.refused("400 NoUpdateInProgress", "no update in progress", call{}, operations("cancel-update")...)
	a.post(a.T, "hello/stop", "")
	a.refused("409 AlreadyStopped", "already stopped", call{}, operations("stop")...)
}

// playNoStart meets versions that were right once and do not come up again.
func playNoStart(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.MustUpdate(a.T, "hello", map[string]string{"second": "x"})
	for _, bad := range []struct{ mode, want, text string }{
		{"secrets", "500 ParseError", "API_KEY"},
		{"crash", "500 HealthCheckFailed", "the disk is on fire"},
	} {
		a.behaves(a.T, "hello", bad.mode)
		a.refused(bad.want, bad.text, call{}, operations("rollback")...)
		a.refused(bad.want, bad.text, call{}, operations("restart", "start")...) // it is crashed after the first
		a.behaves(a.T, "hello", "")
		a.post(a.T, "hello/start", "")
	}
	// The supervisor's own view of the files.
	a.post(a.T, "hello/stop", "")
	manifest := filepath.Join(a.Home, "formations/hello/versions/2/formation.afs")
	text, err := os.ReadFile(manifest)
	if err == nil {
		err = os.WriteFile(manifest, []byte("schema: [1"), 0o600)
	}
	if err != nil {
		a.Fatal(err)
	}
	a.refused("500 ParseError", "formation.afs", call{}, operations("start", "restart")...)
	if err := os.WriteFile(manifest, text, 0o600); err != nil {
		a.Fatal(err)
	}
	a.post(a.T, "hello/start", "")
}

// playRegistry meets a registry that cannot be written.
func playRegistry(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.MustUpdate(a.T, "hello", map[string]string{"second": "x"})
	a.drafted(a.T, "drafted", nil)
	a.refuse(a.T, "INSERT ON formations")
	a.refuse(a.T, "INSERT ON versions")
	other := a.bundled(a.T, "", "", "other", nil)
	other.path = ":other"
	const what = "cannot be recorded"
	a.refused("500 RegisterError", what, other, deployRoutes()[:2]...)
	a.refused("500 RegisterError", what, a.bundle(map[string]string{"third": "x"}), updateRoutes()[:2]...)
	a.refused("500 RegisterError", what, call{path: ":drafted", body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	allow := a.refuse(a.T, "UPDATE ON formations")
	a.refused("500 RegisterError", what, call{}, operations("rollback", "restart", "stop")...)
	a.refused("500 RegisterError", what, call{}, "DELETE "+one)
	allow()
	a.post(a.T, "hello/stop", "")
	a.refuse(a.T, "UPDATE ON formations")
	a.refused("500 RegisterError", what, call{}, operations("start")...)
}

// playForwarded meets the errors of the paths that lead to formations.
func playForwarded(a *actor) {
	var all []string
	for route := range a.api.Documented() {
		if isProxied(route) {
			all = append(all, route)
		}
	}
	if len(all) < 30 {
		a.Errorf("%d forwarded routes are documented", len(all))
	}
	a.refused("404 FormationNotFound", "'nobody'", call{path: ":nobody", sign: unsigned}, all...)

	pid := a.mustDeploy(a.T, "hello", nil)["pid"]
	const gone, down = "502 BadGateway", "503 FormationUnavailable"
	// The process dies with the request, which it may have carried out.
	a.refused(gone, "did not respond", call{path: ":hello/exit", sign: unsigned}, "POST /api/:id")
	deploytest.Eventually(a.T, "another process serves", func() bool {
		v, err := a.Service.Get(a.Context(), "hello")
		return err == nil && v.Process.PID != 0 && float64(v.Process.PID) != pid
	})
	a.post(a.T, "hello/stop", "")
	a.refused(down, "is stopped", call{sign: unsigned}, "POST /api/:id", "GET /api/:id/*", "POST /mcp/:id")

	if got := a.exchange(a.request(a.T, a.Context(), devRun(a.T, "tried", nil))); got.status != 200 {
		a.Fatalf("dev run: %s", got.body)
	}
	a.refused(gone, "did not respond", call{path: ":tried/exit", sign: unsigned}, "POST /draft/:id")
	deploytest.Eventually(a.T, "the end of the draft's process is noticed", func() bool {
		_, err := a.Service.DraftTarget(a.Context(), "tried")
		return err != nil
	})
	a.refused(down, "is crashed", call{path: ":tried", sign: unsigned}, "POST /draft/:id", "GET /draft/:id/*")
}

// playEnding meets a supervisor that is about to end: what is in progress ends,
// and nothing else begins.
func playEnding(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.drafted(a.T, "drafted", nil)
	// Both new processes stay in Load, with progress, so for ever.
	wait := map[string]string{"behave": "wait"}
	deploy := a.begin(a.T, a.bundled(a.T, "POST", "/rpc/formations", "fresh", wait))
	update := a.begin(a.T, aimed(a.bundle(wait), "PUT "+one))
	deploytest.Eventually(a.T, "both operations are in progress", func() bool { return a.busy(a.T, "fresh") && a.busy(a.T, "hello") })
	if err := a.Service.Shutdown(a.Context()); err != nil {
		a.Fatal(err)
	}
	const want, text = "503 FormationUnavailable", "shutting down"
	a.await(want, text, "POST /rpc/formations", deploy)
	a.await(want, text, "PUT "+one, update)
	other := a.bundled(a.T, "", "", "other", nil)
	other.path = ":other"
	a.refused(want, text, other, deployRoutes()[:2]...)
	a.refused(want, text, a.bundle(wait), updateRoutes()[:2]...)
	a.refused(want, text, call{}, operations("start", "restart", "rollback", "stop")...)
	a.refused(want, text, call{}, "DELETE "+one)
	a.refused(want, text, call{path: ":drafted", body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	a.refused(want, text, devRun(a.T, "tried", nil).bodyOnly(), "POST /rpc/dev/run")
	a.data(a.T, 200, call{method: "GET", path: "/rpc/formations/hello"}) // questions are answered to the end
}
