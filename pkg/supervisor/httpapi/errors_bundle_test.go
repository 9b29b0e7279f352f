package httpapi_test

import (
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/test/testprogram"
)

const one = "/rpc/formations/:id"

// deployRoutes and updateRoutes are those with the same handler; of the last one
// the answer is a stream, so that only early failures have their status.
func deployRoutes() []string {
	return []string{"POST /rpc/formations", "POST " + one + "/deploy", "POST " + one + "/deploy/stream"}
}

func updateRoutes() []string {
	return []string{"PUT " + one, "POST " + one + "/update", "POST " + one + "/update/stream"}
}

func bundleScenes() map[string]scene {
	return map[string]scene{
		"deploy":           {play: playDeploy},
		"update":           {play: playUpdate},
		"in progress":      {play: playInProgress},
		"broken upload":    {play: playBrokenUpload},
		"no runtime":       {rig: ownBinary, play: playNoRuntime},
		"no port":          {play: playNoPort},
		"too many at once": {rig: func(c *deploy.Config) { c.MaxFormations = 1 }, play: playTooMany},
	}
}

// bundle is a call that sends a formation hello with further files; its method
// and path come from the route.
func (a *actor) bundle(files map[string]string) call { return a.bundled(a.T, "", "", "hello", files) }

func playDeploy(a *actor) {
	routes, good := deployRoutes(), a.bundle(nil)
	a.refused("400 InvalidContentType", "application/gzip", good.with(map[string]string{"Content-Type": "text/plain"}), routes...)
	a.refused("400 ValidationError", "a bundle is needed", good.with(map[string]string{"Content-Type": "application/json"}), routes[1:]...)
	a.refused("400 MissingHeader", "X-Formation-ID", good.with(map[string]string{"X-Formation-ID": ""}), routes[0])
	bad := good.with(map[string]string{"X-Formation-ID": "No"})
	bad.path = ":No"
	a.refused("400 InvalidFormationID", "3 to 50", bad, routes...)
	other := good
	other.path = ":other"
	a.refused("400 IDMismatch", `the path says "other"`, other, routes[1:]...)
	a.refused("400 IDMismatch", `"hello"`, good.with(map[string]string{"X-Formation-ID": "other"}), routes[0])
	a.badBundles(routes)
	if left := a.Left(a.T); len(left) != 0 {
		a.Errorf("left on disk: %q", left)
	}
	a.mustDeploy(a.T, "hello", nil)
	a.refused("409 ValidationError", "already exists", good, routes...)
}

func playUpdate(a *actor) {
	routes, changed := updateRoutes(), a.bundle(map[string]string{"new.txt": "x"})
	unknown := changed
	unknown.path = ":nobody"
	a.refused("404 FormationNotFound", "'nobody'", unknown, routes...)
	pid := a.mustDeploy(a.T, "hello", nil)["pid"]
	a.refused("400 InvalidContentType", "application/gzip", changed.with(map[string]string{"Content-Type": "text/plain"}), routes...)
	a.refused("400 ValidationError", "a bundle is needed", changed.with(map[string]string{"Content-Type": "application/json"}), routes[1:]...)
	a.refused("409 NoChange", "this very bundle", a.bundle(nil), routes...)
	a.refused("400 IDMismatch", `"other"`, a.bundled(a.T, "", "", "other", nil), routes[:2]...)
	a.badBundles(routes)
	if now := a.data(a.T, 200, call{method: "GET", path: "/rpc/formations/hello"})["pid"]; now != pid {
		a.Errorf("process %v was followed by %v", pid, now)
	}
}

// badBundles are refused by a deploy and an update.
func (a *actor) badBundles(routes []string) {
	a.Helper()
	routes = routes[:2]
	for _, bad := range []struct {
		want, text string
		files      map[string]string
	}{
		{"400 ParseError", "formation.afs", map[string]string{"formation.afs": "schema: [1"}},
		{"400 InvalidRuntime", "svc_runtime", manifestWith("hello", "svc_runtime: [1]\n")},
		{"400 SecretsError", "API_KEY", map[string]string{"behave": "secrets"}},
		{"400 HealthCheckFailed", "the disk is on fire", map[string]string{"behave": "crash"}},
		{"500 SpawnError", "exit 3", manifestWith("hello", "init: exit 3\n")},
	} {
		a.refused(bad.want, bad.text, a.bundle(bad.files), routes...)
	}
	changed := a.bundle(map[string]string{"new.txt": "x"})
	a.refused("400 VersionMismatch", "9.9.9", changed.with(map[string]string{"X-Formation-Version": "9.9.9"}), routes...)
	changed.body = []byte("no archive")
	a.refused("400 ExtractError", "not a gzip stream", changed, routes...)
}

// playInProgress meets a deploy, an update and a rollback that go on until they
// are ended.
func playInProgress(a *actor) {
	wait := map[string]string{"behave": "wait"}
	fresh := a.begin(a.T, a.bundled(a.T, "POST", "/rpc/formations", "fresh", wait))
	deploytest.Eventually(a.T, "the deploy is in progress", func() bool { return a.busy(a.T, "fresh") })
	a.data(a.T, 200, call{method: "DELETE", path: "/rpc/formations/fresh"})
	a.await("409 DeployConflict", "deleted", "POST /rpc/formations", fresh)

	a.mustDeploy(a.T, "hello", nil)
	a.MustUpdate(a.T, "hello", map[string]string{"second": "x"})
	a.post(a.T, "hello/draft/files", `{"action": "init", "mode": "clone"}`)
	update := a.begin(a.T, aimed(a.bundle(wait), "PUT "+one))
	deploytest.Eventually(a.T, "the update is in progress", func() bool { return a.busy(a.T, "hello") })
	changed := a.bundle(map[string]string{"new.txt": "x"})
	a.refused("409 UpdateInProgress", "an update in progress", changed, updateRoutes()...)
	a.refused("409 UpdateInProgress", "an update in progress", call{}, "POST "+one+"/start", "POST "+one+"/restart", "POST "+one+"/rollback")
	a.refused("409 UpdateInProgress", "an update in progress", call{body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	a.post(a.T, "hello/cancel-update", "")
	a.await("409 DeployConflict", "cancelled", "PUT "+one, update)

	a.behaves(a.T, "hello", "wait")
	rollback := a.begin(a.T, aimed(call{}, "POST "+one+"/rollback"))
	deploytest.Eventually(a.T, "the rollback is in progress", func() bool { return a.busy(a.T, "hello") })
	a.refused("409 UpdateInProgress", "a rollback in progress", call{}, "POST "+one+"/start")
	a.post(a.T, "hello/cancel-update", "")
	a.await("409 DeployConflict", "cancelled", "POST "+one+"/rollback", rollback)
}

// playBrokenUpload sends a chunk that is none: the body cannot be read to its end.
func playBrokenUpload(a *actor) {
	for _, route := range deployRoutes() {
		a.await("400 ExtractError", "broke off", route, func() answer { return a.malformed(a.T, aimed(a.bundle(nil), route)) })
	}
	a.mustDeploy(a.T, "hello", nil)
	for _, route := range updateRoutes() {
		a.await("400 ExtractError", "broke off", route, func() answer { return a.malformed(a.T, aimed(a.bundle(nil), route)) })
	}
}

// ownBinary gives the rig a program that a test can remove.
func ownBinary(c *deploy.Config) {
	link := filepath.Join(c.Dirs.Cache, "runtime")
	err := os.MkdirAll(c.Dirs.Cache, 0o700)
	if err == nil && os.Link(c.Child.Binary, link) != nil {
		err = testprogram.Copy(c.Child.Binary, link)
	}
	if err != nil {
		panic(err)
	}
	c.Child.Binary = link
}

func playNoRuntime(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.MustUpdate(a.T, "hello", map[string]string{"second": "x"})
	a.drafted(a.T, "fresh", nil)
	if err := os.Remove(a.Config.Child.Binary); err != nil {
		a.Fatal(err)
	}
	changed := a.bundle(map[string]string{"new.txt": "x"})
	a.refused("400 ResolveError", "no formation-runtime", changed, updateRoutes()[:2]...)
	a.refused("500 SpawnError", "no formation-runtime", call{}, "POST "+one+"/restart", "POST "+one+"/rollback")
	a.post(a.T, "hello/stop", "")
	a.refused("500 SpawnError", "no formation-runtime", call{}, "POST "+one+"/start")
	other := a.bundled(a.T, "", "", "other", nil)
	other.path = ":other"
	a.refused("400 ResolveError", "no formation-runtime", other, deployRoutes()[:2]...)
	a.refused("400 ResolveError", "no formation-runtime", call{path: ":fresh", body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	a.refused("500 SpawnError", "no formation-runtime", devRun(a.T, "tried", nil).bodyOnly(), "POST /rpc/dev/run")
}

func playNoPort(a *actor) {
	a.drafted(a.T, "hello", nil)
	a.takePorts(a.T)
	a.refused("500 PortAllocationError", "port", a.bundle(nil), deployRoutes()[:2]...)
	a.refused("500 PortAllocationError", "port", call{body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	a.refused("500 PortAllocationError", "port", devRun(a.T, "tried", nil).bodyOnly(), "POST /rpc/dev/run")
}

func playTooMany(a *actor) {
	a.mustDeploy(a.T, "other", nil)
	a.refused("500 PortAllocationError", "at most 1", a.bundle(nil), deployRoutes()[0])
	first := a.exchange(a.request(a.T, a.Context(), devRun(a.T, "tried", nil)))
	if first.status != 200 {
		a.Fatalf("dev run: %s", first.body)
	}
	a.refused("500 PortAllocationError", "at most 1", devRun(a.T, "again", nil).bodyOnly(), "POST /rpc/dev/run")
}

// bodyOnly is c for a route that says the rest.
func (c call) bodyOnly() call { return call{body: c.body} }
