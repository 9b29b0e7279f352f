package httpapi_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

const (
	formations = "POST /rpc/formations"
	one        = "/rpc/formations/:id"
)

// The routes with the same handler.
var ( //nolint:gochecknoglobals // constants that Go cannot express
	deploys = []string{formations, "POST " + one + "/deploy"}
	updates = []string{"PUT " + one, "POST " + one + "/update"}
	streams = []string{"POST " + one + "/deploy/stream", "POST " + one + "/update/stream"}
)

// unreachable are documented failures that no call can be made to meet here.
func unreachable() map[string]string {
	return map[string]string{
		"500 StopError": "stopping ends with SIGKILL and fails only when the kernel does not deliver it; " +
			"the reference names it, and deploy gives it that name",
		"500 CleanupError": "removing what is ours fails only with the disk; what is left is swept by the next start",
		"500 CopyError":    "copying a version that is whole fails only with the disk",
		"500 WriteError":   "writing below a draft that can be opened fails only with the disk",
	}
	// Names that the reference lists and no route documents: 507
	// PortAllocationError and 500 SwapError cannot happen, since an update shares
	// the formation's listening socket; a missing runtime program is 400
	// ResolveError, not 404 RuntimeNotFound; a switch that cannot be recorded is 500
	// RegisterError, not SwitchError.
}

// failing is a way to make routes fail.
type failing struct {
	routes []string
	want   string // "<status> <name>"
	rig    func(*deploy.Config)
	// make prepares and returns the call; method and path are set from the route.
	make func(*testing.T, *door) call
	// id takes the place of :id; "hello" when empty.
	id string
}

func (f failing) run(t *testing.T, route string) {
	d := setup(t, f.rig)
	c := f.make(t, d)
	id := f.id
	if id == "" {
		id = "hello"
	}
	method, path, _ := strings.Cut(route, " ")
	c.method, c.path = method, strings.ReplaceAll(path, ":id", id)+c.path
	res, body := d.do(t, c)
	var env struct {
		Success bool
		Error   string
		Message string
		Code    int
	}
	if err := json.Unmarshal([]byte(body), &env); err != nil {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	if got := fmt.Sprintf("%d %s", res.StatusCode, env.Error); got != f.want || env.Success || env.Code != res.StatusCode || env.Message == "" {
		t.Errorf("%d %s, want %s", res.StatusCode, body, f.want)
	}
}

func TestErrors_EveryDocumentedOneIsProducedOrSaidToBeUnreachable(t *testing.T) {
	t.Parallel()
	covered := make(map[string]bool)
	cases := slices.Concat(deployFailures(), updateFailures(), operationFailures(), draftFailures(), otherFailures())
	for _, f := range cases {
		for _, route := range f.routes {
			covered[route+" "+f.want] = true
			t.Run(route+" "+f.want, func(t *testing.T) {
				t.Parallel()
				f.run(t, route)
			})
		}
	}
	// Those below have tests of their own, over all routes.
	general := []string{"401 Unauthorized", "413 PayloadTooLarge", "429 RateLimited", "503 FormationUnavailable"}
	hidden := unreachable()
	for route, names := range setup(t, nil).api.Documented() {
		for _, name := range names {
			if !covered[route+" "+name] && !slices.Contains(general, name) && hidden[name] == "" && !isProxied(route) {
				t.Errorf("%s: nobody has seen %s", route, name)
			}
			delete(covered, route+" "+name)
		}
	}
	for name := range covered {
		t.Errorf("%s is not documented", name)
	}
}

// isProxied: those have their tests in package proxy and in routes_test.go.
func isProxied(route string) bool {
	_, path, _ := strings.Cut(route, " ")
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/draft/") || strings.HasPrefix(path, "/mcp/")
}

// bundled is a call with the files of a formation.
func bundled(t *testing.T, id string, files map[string]string) call {
	return call{
		body:   deploytest.Bundle(t, id, deploytest.Files(id, files)),
		header: map[string]string{"Content-Type": "application/gzip", "X-Formation-ID": id},
	}
}

func sending(files map[string]string) func(*testing.T, *door) call {
	return func(t *testing.T, _ *door) call { return bundled(t, "hello", files) }
}

// manifestWith is Files' manifest with further lines.
func manifestWith(id, more string) map[string]string {
	return map[string]string{"formation.afs": deploytest.Files(id, nil)["formation.afs"] + more}
}

// exec changes the registry behind everybody's back.
func (d *door) exec(t *testing.T, query string) {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(d.Home, "registry.db")+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// unwritable makes the registry refuse changes of a kind, for example "UPDATE ON
// formations".
func (d *door) unwritable(t *testing.T, what string) {
	t.Helper()
	d.exec(t, "CREATE TRIGGER "+strings.ReplaceAll(what, " ", "_")+" BEFORE "+what+" BEGIN SELECT RAISE(ABORT, 'refused'); END")
}

// sqlite makes a database in the home.
func (d *door) sqlite(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(d.Home, path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (a)"); err != nil {
		t.Fatal(err)
	}
}

// file puts a file in the home, in the place of whatever is there.
func (d *door) file(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(d.Home, path)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// background sends a call whose answer comes when the test is over, or cut by
// another call.
func (d *door) background(t *testing.T, c call) {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		req, err := http.NewRequestWithContext(ctx, c.method, d.url+c.path, strings.NewReader(string(c.body)))
		if err != nil {
			t.Error(err)
			return
		}
		authorize(req, c.body)
		for k, v := range c.header {
			req.Header.Set(k, v)
		}
		if res, err := d.client.Do(req); err == nil {
			res.Body.Close()
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// updating has an update of hello in progress, which waits.
func (d *door) updating(t *testing.T) {
	t.Helper()
	d.mustDeploy(t, "hello", nil)
	d.update(t)
}

func (d *door) update(t *testing.T) {
	t.Helper()
	c := bundled(t, "hello", map[string]string{"behave": "wait"})
	c.method, c.path = "PUT", "/rpc/formations/hello"
	d.background(t, c)
	deploytest.Eventually(t, "the update is in progress", func() bool { return d.Service.CheckUpdate("hello") != nil })
	t.Cleanup(func() {
		if d.Service != nil {
			_, _, _ = d.Service.CancelUpdate(context.WithoutCancel(t.Context()), "hello")
		}
	})
}

func deployFailures() []failing {
	with := func(change func(*call)) func(*testing.T, *door) call {
		return func(t *testing.T, _ *door) call {
			c := bundled(t, "hello", nil)
			change(&c)
			return c
		}
	}
	early := append(slices.Clone(deploys), streams[0])
	return []failing{
		{routes: early, want: "400 InvalidContentType", make: with(func(c *call) { c.header["Content-Type"] = "text/plain" })},
		{routes: early[1:], want: "400 ValidationError", make: with(func(c *call) { c.header["Content-Type"], c.body = "application/json", []byte("{}") })},
		{routes: deploys[:1], want: "400 MissingHeader", make: with(func(c *call) { delete(c.header, "X-Formation-ID") })},
		{routes: early, want: "400 InvalidFormationID", id: "No", make: with(func(c *call) { c.header["X-Formation-ID"] = "No" })},
		{routes: early[1:], want: "400 IDMismatch", id: "other", make: sending(nil)},
		{routes: deploys[:1], want: "400 IDMismatch", make: func(t *testing.T, _ *door) call {
			c := bundled(t, "hello", nil)
			c.header["X-Formation-ID"] = "other"
			return c
		}},
		{routes: early, want: "409 ValidationError", make: func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			return bundled(t, "hello", nil)
		}},
		{routes: deploys, want: "409 DeployConflict", make: func(t *testing.T, d *door) call {
			d.deleteWhenDeploying(t)
			return bundled(t, "hello", map[string]string{"behave": "wait"})
		}},
		{routes: deploys, want: "500 PortAllocationError", rig: func(c *deploy.Config) { c.MaxFormations = 1 }, make: func(t *testing.T, d *door) call {
			d.mustDeploy(t, "other", nil)
			return bundled(t, "hello", nil)
		}},
		{routes: deploys, want: "500 MoveError", make: func(t *testing.T, d *door) call {
			d.file(t, "formations/hello", "a file in the way")
			return bundled(t, "hello", nil)
		}},
		{routes: deploys, want: "500 RegisterError", make: func(t *testing.T, d *door) call {
			d.unwritable(t, "INSERT ON formations")
			return bundled(t, "hello", nil)
		}},
		{routes: deploys, want: "500 CleanupError", make: func(t *testing.T, d *door) call {
			d.exec(t, `INSERT INTO formations (id, name, port, state, desired, created_at, updated_at)
				VALUES ('hello', 'x', 1, 'deleting', 'stopped', 0, 0)`)
			return bundled(t, "hello", nil)
		}},
	}
}

// deleteWhenDeploying deletes hello as soon as its deploy is in progress.
func (d *door) deleteWhenDeploying(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		deploytest.Eventually(t, "the deploy is in progress", func() bool {
			v, err := d.Service.Get(t.Context(), "hello")
			return err == nil && v.Process.PID != 0
		})
		if err := d.Service.Delete(t.Context(), "hello"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(wg.Wait)
}

// bothFailures are those that a bundle meets as a deploy and as an update.
func bothFailures() map[string]failing {
	return map[string]failing{
		"400 ParseError":        {make: sending(map[string]string{"formation.afs": "schema: [1"})},
		"400 SecretsError":      {make: sending(map[string]string{"behave": "secrets"})},
		"400 HealthCheckFailed": {make: sending(map[string]string{"behave": "crash"})},
		"400 InvalidRuntime":    {make: sending(manifestWith("hello", "svc_runtime: [1]\n"))},
		"500 SpawnError":        {make: sending(manifestWith("hello", "init: exit 3\n"))},
		"400 VersionMismatch": {make: func(t *testing.T, _ *door) call {
			c := bundled(t, "hello", nil)
			c.header["X-Formation-Version"] = "9.9.9"
			return c
		}},
		"400 ExtractError": {make: func(*testing.T, *door) call {
			return call{body: []byte("no archive"), header: map[string]string{"Content-Type": "application/gzip", "X-Formation-ID": "hello"}}
		}},
		"500 DirectoryError": {make: func(t *testing.T, d *door) call {
			d.file(t, "tmp", "a file in the way")
			return bundled(t, "hello", nil)
		}},
		"400 ResolveError": {make: func(t *testing.T, d *door) call {
			if err := os.Remove(d.Config.Child.Binary); err != nil {
				t.Fatal(err)
			}
			return bundled(t, "hello", map[string]string{"new.txt": "x"})
		}},
	}
}

// ownBinary gives the rig a program that a test can remove.
func ownBinary(c *deploy.Config) {
	link := filepath.Join(c.Dirs.Cache, "runtime")
	if err := os.MkdirAll(c.Dirs.Cache, 0o700); err != nil {
		panic(err)
	}
	if err := os.Link(c.Child.Binary, link); err != nil {
		text, err := os.ReadFile(c.Child.Binary)
		if err == nil {
			err = os.WriteFile(link, text, 0o700)
		}
		if err != nil {
			panic(err)
		}
	}
	c.Child.Binary = link
}

func updateFailures() []failing {
	var all []failing
	for want, f := range bothFailures() {
		make := f.make
		f.routes, f.want, f.rig = deploys, want, ownBinary
		if want == "500 DirectoryError" {
			f.routes = append(slices.Clone(deploys), streams[0])
		}
		all = append(all, f)
		f.routes = updates
		if want == "500 DirectoryError" {
			f.routes = append(slices.Clone(updates), streams[1])
		}
		f.make = func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			return make(t, d)
		}
		all = append(all, f)
	}
	deployed := func(make func(*testing.T, *door) call) func(*testing.T, *door) call {
		return func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			return make(t, d)
		}
	}
	changed := sending(map[string]string{"new.txt": "x"})
	early := append(slices.Clone(updates), streams[1])
	return append(
		all,
		failing{routes: early, want: "400 InvalidContentType", make: deployed(func(t *testing.T, d *door) call {
			c := changed(t, d)
			c.header["Content-Type"] = "text/plain"
			return c
		})},
		failing{routes: early[1:], want: "400 ValidationError", make: deployed(func(*testing.T, *door) call {
			return call{header: map[string]string{"Content-Type": "application/json"}, body: []byte("{}")}
		})},
		failing{routes: early, want: "404 FormationNotFound", make: changed},
		failing{routes: early, want: "409 NoChange", make: deployed(sending(nil))},
		failing{routes: early, want: "409 UpdateInProgress", make: func(t *testing.T, d *door) call {
			d.updating(t)
			return changed(t, d)
		}},
		failing{routes: updates, want: "400 IDMismatch", make: deployed(func(t *testing.T, _ *door) call { return bundled(t, "other", nil) })},
		failing{routes: updates, want: "409 DeployConflict", make: deployed(func(t *testing.T, d *door) call {
			d.cancelWhenUpdating(t)
			return bundled(t, "hello", map[string]string{"behave": "wait"})
		})},
		failing{routes: updates, want: "500 MoveError", make: deployed(func(t *testing.T, d *door) call {
			d.file(t, "formations/hello/versions/2/in-the-way", "x")
			return changed(t, d)
		})},
		failing{routes: updates, want: "500 RegisterError", make: deployed(func(t *testing.T, d *door) call {
			d.unwritable(t, "INSERT ON versions")
			return changed(t, d)
		})},
	)
}

// cancelWhenUpdating cancels the update of hello as soon as its process is there.
func (d *door) cancelWhenUpdating(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		deploytest.Eventually(t, "the update is cancelled", func() bool {
			_, _, err := d.Service.CancelUpdate(t.Context(), "hello")
			return err == nil
		})
	})
	t.Cleanup(wg.Wait)
}

func operationFailures() []failing {
	op := func(names ...string) []string {
		var all []string
		for _, n := range names {
			all = append(all, "POST "+one+"/"+n)
		}
		return all
	}
	stopped := func(more func(*testing.T, *door)) func(*testing.T, *door) call {
		return func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			d.data(t, 200, call{method: "POST", path: "/rpc/formations/hello/stop"})
			if more != nil {
				more(t, d)
			}
			return call{}
		}
	}
	running := func(more func(*testing.T, *door)) func(*testing.T, *door) call {
		return func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			if more != nil {
				more(t, d)
			}
			return call{}
		}
	}
	twice := func(more func(*testing.T, *door)) func(*testing.T, *door) call {
		return running(func(t *testing.T, d *door) {
			d.MustUpdate(t, "hello", map[string]string{"new.txt": "x"})
			if more != nil {
				more(t, d)
			}
		})
	}
	nothing := func(*testing.T, *door) call { return call{} }
	body := func(text string, make func(*testing.T, *door) call) func(*testing.T, *door) call {
		return func(t *testing.T, d *door) call {
			c := make(t, d)
			c.body = []byte(text)
			return c
		}
	}
	bad := op("start", "restart", "rollback", "start/stream", "restart/stream", "rollback/stream", "stop", "cancel-update")
	behave := func(mode string) func(*testing.T, *door) {
		return func(t *testing.T, d *door) { d.file(t, "formations/hello/state/behave", mode) }
	}
	noBinary := func(t *testing.T, d *door) {
		if err := os.Remove(d.Config.Child.Binary); err != nil {
			t.Error(err)
		}
	}
	updating := func(t *testing.T, d *door) call { d.updating(t); return call{} }
	unrecorded := func(t *testing.T, d *door) { d.unwritable(t, "UPDATE ON formations") }
	return []failing{
		{routes: bad, want: "400 ValidationError", make: body("[]", nothing)},
		{routes: op("start", "restart", "rollback", "stop", "cancel-update"), want: "404 FormationNotFound", make: nothing},
		{routes: op("start"), want: "409 AlreadyRunning", make: running(nil)},
		{routes: op("start", "restart", "rollback"), want: "409 UpdateInProgress", make: updating},
		{routes: op("start"), want: "500 ParseError", make: stopped(behave("secrets"))},
		{routes: op("restart"), want: "500 ParseError", make: running(behave("secrets"))},
		{routes: op("rollback"), want: "500 ParseError", make: twice(behave("secrets"))},
		{routes: op("start"), want: "500 HealthCheckFailed", make: stopped(behave("crash"))},
		{routes: op("restart"), want: "500 HealthCheckFailed", make: running(behave("crash"))},
		{routes: op("rollback"), want: "500 HealthCheckFailed", make: twice(behave("crash"))},
		{routes: op("start"), want: "500 SpawnError", make: stopped(func(t *testing.T, d *door) { d.steal(t) })},
		{routes: op("restart"), want: "500 SpawnError", rig: ownBinary, make: running(noBinary)},
		{routes: op("rollback"), want: "500 SpawnError", rig: ownBinary, make: twice(noBinary)},
		{routes: op("start"), want: "500 RegisterError", make: stopped(unrecorded)},
		{routes: op("restart", "stop"), want: "500 RegisterError", make: running(unrecorded)},
		{routes: op("rollback"), want: "500 RegisterError", make: twice(unrecorded)},
		{routes: op("rollback"), want: "400 NoPreviousVersion", make: running(nil)},
		{routes: op("rollback"), want: "404 VersionNotFound", make: body(`{"version": "7.7.7"}`, twice(nil))},
		{routes: op("rollback"), want: "409 NoChange", make: body(`{"version": "1.2.3"}`, running(nil))},
		{routes: op("rollback"), want: "409 DeployConflict", make: twice(func(t *testing.T, d *door) {
			behave("wait")(t, d)
			d.cancelWhenUpdating(t)
		})},
		{routes: op("stop"), want: "409 AlreadyStopped", make: stopped(nil)},
		{routes: op("cancel-update"), want: "400 NoUpdateInProgress", make: running(nil)},
	}
}

// steal binds the port of the stopped formation hello.
func (d *door) steal(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(d.First)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func draftFailures() []failing {
	files := []string{"POST " + one + "/draft/files"}
	act := func(text string, prepare ...func(*testing.T, *door)) func(*testing.T, *door) call {
		return func(t *testing.T, d *door) call {
			for _, p := range prepare {
				p(t, d)
			}
			return call{body: []byte(text)}
		}
	}
	draft := func(t *testing.T, d *door) {
		d.draft(t, `{"action": "init", "mode": "new"}`)
		for name, text := range deploytest.Files("hello", nil) {
			d.write(t, name, text)
		}
	}
	write := func(name, text string) func(*testing.T, *door) {
		return func(t *testing.T, d *door) { d.write(t, name, text) }
	}
	live := func(t *testing.T, d *door) { d.mustDeploy(t, "hello", nil) }
	clone := func(t *testing.T, d *door) { d.draft(t, `{"action": "init", "mode": "clone"}`) }
	const deployIt = `{"action": "deploy"}`
	noBinary := func(t *testing.T, d *door) {
		if err := os.Remove(d.Config.Child.Binary); err != nil {
			t.Error(err)
		}
	}
	return []failing{
		{routes: files, want: "400 InvalidJSON", make: act("{")},
		{routes: files, want: "400 InvalidAction", make: act(`{"action": "burn"}`)},
		{routes: files, want: "400 InvalidMode", make: act(`{"action": "init", "mode": "old"}`)},
		{routes: files, want: "400 InvalidFormationID", id: "No", make: act(`{"action": "list"}`)},
		{routes: files, want: "400 InvalidPath", make: act(`{"action": "read", "path": "../x"}`, draft)},
		{routes: files, want: "400 DecodeError", make: act(`{"action": "write", "path": "x", "content": "%", "encoding": "base64"}`, draft)},
		{routes: files, want: "404 DraftNotFound", make: act(`{"action": "list"}`)},
		{routes: files, want: "404 LiveNotFound", make: act(`{"action": "init", "mode": "clone"}`)},
		{routes: files, want: "404 FileNotFound", make: act(`{"action": "read", "path": "nothing"}`, draft)},
		{routes: files, want: "409 DraftAlreadyExists", make: act(`{"action": "init", "mode": "new"}`, draft)},
		{routes: files, want: "409 DeployConflict", make: act(deployIt, live, clone, func(t *testing.T, d *door) {
			d.MustUpdate(t, "hello", map[string]string{"new.txt": "x"})
		})},
		{routes: files, want: "409 UpdateInProgress", make: act(deployIt, live, clone, func(t *testing.T, d *door) { d.update(t) })},
		{routes: files, want: "500 CreateError", make: act(`{"action": "init", "mode": "new"}`, func(t *testing.T, d *door) {
			d.file(t, "formations/hello", "a file in the way")
		})},
		{routes: files, want: "400 ParseError", make: act(deployIt, draft, write("formation.afs", "schema: [1"))},
		{routes: files, want: "400 SecretsError", make: act(deployIt, draft, write("behave", "secrets"))},
		{routes: files, want: "400 IDMismatch", make: act(deployIt, draft, write("formation.afs", deploytest.Files("other", nil)["formation.afs"]))},
		{routes: files, want: "400 InvalidRuntime", make: act(deployIt, draft, write("formation.afs", manifestWith("hello", "svc_runtime: [1]\n")["formation.afs"]))},
		{routes: files, want: "400 ResolveError", rig: ownBinary, make: act(deployIt, draft, noBinary)},
		{routes: files, want: "400 HealthCheckFailed", make: act(deployIt, draft, write("behave", "crash"))},
		{routes: files, want: "500 SpawnError", make: act(deployIt, draft, write("formation.afs", manifestWith("hello", "init: exit 3\n")["formation.afs"]))},
		{routes: files, want: "500 RegisterError", make: act(deployIt, draft, func(t *testing.T, d *door) { d.unwritable(t, "INSERT ON formations") })},
		{routes: files, want: "500 DirectoryError", make: act(deployIt, draft, func(t *testing.T, d *door) { d.file(t, "tmp", "a file in the way") })},
		{routes: files, want: "500 PortAllocationError", rig: func(c *deploy.Config) { c.MaxFormations = 1 }, make: act(deployIt, draft, func(t *testing.T, d *door) {
			d.mustDeploy(t, "other", nil)
		})},
	}
}

// draft does one action on the draft of hello, which must succeed.
func (d *door) draft(t *testing.T, body string) map[string]any {
	t.Helper()
	res, text := d.do(t, call{method: "POST", path: "/rpc/formations/hello/draft/files", body: []byte(body)})
	var reply map[string]any
	if err := json.Unmarshal([]byte(text), &reply); err != nil || res.StatusCode != 200 || reply["success"] != true {
		t.Fatalf("draft %s: %d %s", body, res.StatusCode, text)
	}
	return reply
}

func (d *door) write(t *testing.T, path, text string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"action": "write", "path": path, "content": text})
	if err != nil {
		t.Fatal(err)
	}
	d.draft(t, string(body))
}

func otherFailures() []failing {
	nothing := func(*testing.T, *door) call { return call{} }
	query := func(q string) func(*testing.T, *door) call {
		return func(*testing.T, *door) call { return call{path: q} }
	}
	text := func(body string) func(*testing.T, *door) call {
		return func(*testing.T, *door) call { return call{body: []byte(body)} }
	}
	run, end := []string{"POST /rpc/dev/run"}, []string{"POST /rpc/dev/stop"}
	return []failing{
		{
			routes: []string{"GET " + one, "DELETE " + one, "GET " + one + "/logs", "GET " + one + "/logs/stream", "GET " + one + "/download"},
			want:   "404 FormationNotFound", make: nothing,
		},
		{routes: []string{"DELETE " + one}, want: "500 RegisterError", make: func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			d.unwritable(t, "UPDATE ON formations")
			return call{}
		}},
		{routes: []string{"GET " + one + "/logs", "GET " + one + "/logs/stream"}, want: "400 ValidationError", make: query("?stream=both")},
		{routes: []string{"GET " + one + "/download"}, want: "500 DirectoryError", make: func(t *testing.T, d *door) call {
			d.mustDeploy(t, "hello", nil)
			d.file(t, "tmp", "a file in the way")
			d.sqlite(t, "formations/hello/state/memory.db")
			return call{path: "?db=true"}
		}},
		{routes: []string{"GET /rpc/server/logs"}, want: "400 ValidationError", make: query("?lines=many")},
		{routes: []string{"GET /rpc/audit"}, want: "400 ValidationError", make: query("?since=yesterday")},
		{routes: run, want: "400 ValidationError", make: text(`{"path": "relative"}`)},
		{routes: run, want: "400 InvalidFormationID", make: text(`{"formation_id": "No"}`)},
		{routes: run, want: "404 DraftNotFound", make: text(`{"formation_id": "hello"}`)},
		{routes: run, want: "400 ParseError", make: devDir(map[string]string{"formation.afs": "schema: [1"})},
		{routes: run, want: "400 IDMismatch", make: func(t *testing.T, d *door) call {
			c := devDir(nil)(t, d)
			c.body = []byte(strings.TrimSuffix(string(c.body), "}") + `, "formation_id": "other"}`)
			return c
		}},
		{routes: run, want: "500 ParseError", make: devDir(map[string]string{"behave": "secrets"})},
		{routes: run, want: "500 HealthCheckFailed", make: devDir(map[string]string{"behave": "crash"})},
		{routes: run, want: "500 SpawnError", rig: ownBinary, make: func(t *testing.T, d *door) call {
			if err := os.Remove(d.Config.Child.Binary); err != nil {
				t.Error(err)
			}
			return devDir(nil)(t, d)
		}},
		{routes: run, want: "500 DirectoryError", make: func(t *testing.T, d *door) call {
			c := devDir(nil)(t, d)
			d.file(t, "formations/hello", "a file in the way")
			d.file(t, "run", "a file in the way")
			return c
		}},
		{routes: run, want: "500 PortAllocationError", rig: func(c *deploy.Config) { c.MaxFormations = 1 }, make: func(t *testing.T, d *door) call {
			dir := devFiles(t, "other", nil)
			if res, text := d.do(t, call{method: "POST", path: "/rpc/dev/run", body: []byte(`{"path": "` + dir + `"}`)}); res.StatusCode != 200 {
				t.Fatal(text)
			}
			return devDir(nil)(t, d)
		}},
		{routes: run, want: "409 DraftRunning", make: func(t *testing.T, d *door) call {
			c := devDir(nil)(t, d)
			first := c
			first.method, first.path = "POST", "/rpc/dev/run"
			if res, text := d.do(t, first); res.StatusCode != 200 {
				t.Fatal(text)
			}
			return c
		}},
		{routes: end, want: "400 ValidationError", make: text("{}")},
		{routes: end, want: "404 DraftNotFound", make: text(`{"formation_id": "hello"}`)},
		{routes: []string{"GET /rpc/server/logs"}, want: "500 InternalError", make: func(t *testing.T, d *door) call {
			d.file(t, "logs/audit.log/in-the-way", "x")
			return call{}
		}},
	}
}

func devFiles(t *testing.T, id string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range deploytest.Files(id, files) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func devDir(files map[string]string) func(*testing.T, *door) call {
	return func(t *testing.T, _ *door) call {
		return call{body: []byte(`{"path": "` + devFiles(t, "hello", files) + `"}`)}
	}
}
