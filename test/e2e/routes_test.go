package e2e

import (
	"archive/zip"
	"bytes"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// tour calls the routes of one supervisor and remembers which.
type tour struct {
	*testing.T
	s      *harness.Supervisor
	files  harness.Files
	served map[string]bool // "GET /rpc/formations/{id}" by the words of the API's document
}

// call sends a signed request and expects a status and values.
func (w *tour) call(route, id string, body any, status int, pairs ...string) harness.Reply {
	w.Helper()
	method, path, _ := strings.Cut(route, " ")
	w.served[route] = true
	path = strings.ReplaceAll(path, "{id}", id)
	var reply harness.Reply
	switch b := body.(type) {
	case nil:
		reply = w.s.RPCQuery(method, path)
	case []byte: // a bundle
		r := harness.Request{Method: method, URL: w.s.URL + path, Header: w.s.Signing(method, path, b).ThreeHeaders(), Body: b}
		r.Header["Content-Type"] = "application/gzip"
		if id != "" {
			r.Header["X-Formation-ID"] = id
		}
		reply = w.s.HTTP.Must(r)
	default:
		reply = w.s.Call(method, path, b)
	}
	if reply.Status != status {
		w.Errorf("%s (%s): status %d, want %d: %s", route, id, reply.Status, status, reply.Body)
		return reply
	}
	return reply.Want(w, status, pairs...)
}

// open sends a request without a signature.
func (w *tour) open(route string, status int) harness.Reply {
	w.Helper()
	method, path, _ := strings.Cut(route, " ")
	w.served[route] = true
	return w.s.HTTP.Must(harness.Request{Method: method, URL: w.s.URL + path}).Want(w, status)
}

// events reads a signed call's event stream to its terminal event.
func (w *tour) events(method, path string, terminal string, pairs ...string) []harness.Frame {
	w.Helper()
	r := harness.Request{Method: method, URL: w.s.URL + path, Header: w.s.Signing(method, path, nil).ThreeHeaders()}
	r.Header["Accept"] = "text/event-stream"
	frames := w.s.HTTP.MustStream(r).MustRest(w)
	if len(frames) == 0 || frames[len(frames)-1].Event != terminal {
		w.Errorf("%s %s: the stream %v does not end with %s", method, path, frames, terminal)
		return frames
	}
	last := harness.Reply{Status: http.StatusOK, Body: []byte(frames[len(frames)-1].Data)}
	last.Want(w, http.StatusOK, pairs...)
	return frames
}

func newTour(t *testing.T, o harness.Options) *tour {
	t.Helper()
	model := fakellm.Start(t, fakellm.Options{})
	s := suite.Start(t, o)
	return &tour{T: t, s: s, files: suite.Pair(t, "one", model.URL()), served: map[string]bool{}}
}

// named is the formation under another id.
func (w *tour) named(id string) harness.Files {
	files := w.files.With("")
	files["formation.afs"] = strings.Replace(files["formation.afs"], "id: one\n", "id: "+id+"\n", 1)
	return files
}

func (w *tour) bundle(id, version string) []byte {
	w.Helper()
	return w.named(id).Version(version).Bundle(w, id)
}

func TestRoutes_EachOfTheManagementAPISucceedsOnce(t *testing.T) {
	t.Parallel()
	w := newTour(t, harness.Options{Formations: quickUpdates})
	w.open("GET /ping", http.StatusOK)
	w.open("GET /health", http.StatusOK).Want(t, http.StatusOK, "data.status", "ok", "success", "true")
	if text := w.open("GET /metrics", http.StatusOK); !bytes.Contains(text.Body, []byte("# TYPE")) {
		t.Errorf("/metrics says %.200s", text.Body)
	}
	w.open("GET /docs", http.StatusOK)
	document := w.open("GET /docs/openapi.json", http.StatusOK)
	w.call("POST /rpc/formations", "one", w.bundle("one", "1.0.0"), http.StatusCreated, "data.version", "1.0.0", "data.status", "running")
	w.call("GET /rpc/formations", "", nil, http.StatusOK, "data.total", "1")
	w.call("GET /rpc/formations/{id}", "one", nil, http.StatusOK, "data.id", "one", "data.version.semantic", "1.0.0")
	w.call("PUT /rpc/formations/{id}", "one", w.bundle("one", "1.1.0"), http.StatusOK, "data.version", "1.1.0", "data.previous_version", "1.0.0")
	w.call("POST /rpc/formations/{id}/rollback", "one", nil, http.StatusOK, "data.current_version", "1.0.0", "data.previous_version", "1.1.0")
	w.call("POST /rpc/formations/{id}/stop", "one", nil, http.StatusOK, "data.status", "stopped")
	w.call("POST /rpc/formations/{id}/start", "one", nil, http.StatusOK, "data.status", "running")
	w.call("POST /rpc/formations/{id}/restart", "one", map[string]any{}, http.StatusOK, "data.restart_count", "1")
	w.call("GET /rpc/formations/{id}/logs", "one", nil, http.StatusOK, "data.formation_id", "one")
	w.events(http.MethodPost, "/rpc/formations/one/restart", "complete", "formation_id", "one", "restart_count", "2", "status", "running")
	w.events(http.MethodPost, "/rpc/formations/one/rollback", "complete", "new_version", "1.1.0", "previous_version", "1.0.0")
	w.cancelled()
	w.downloads()
	w.drafts()
	w.server()
	w.aliases()
	w.call("DELETE /rpc/formations/{id}", "one", nil, http.StatusOK, "data.id", "one")
	w.compare(document)
}

// cancelled cancels an update that takes long.
func (w *tour) cancelled() {
	w.Helper()
	pid := w.s.RPC(http.MethodGet, "/rpc/formations/one").Int("data.pid")
	updated := w.s.BeginUpdate("one", w.files.Version("9.0.0").With("init: exec sleep 600\n"))
	harness.Until(w, "the update can be cancelled", func() bool {
		return w.s.RPC(http.MethodPost, "/rpc/formations/one/cancel-update").Status == http.StatusOK
	})
	w.served["POST /rpc/formations/{id}/cancel-update"] = true
	if reply := <-updated; reply.Status < 400 || !strings.Contains(reply.Text("message"), "cancel") {
		w.Errorf("the cancelled update was answered %d %s", reply.Status, reply.Body)
	}
	w.call("GET /rpc/formations/{id}", "one", nil, http.StatusOK, "data.status", "running", "data.version.semantic", "1.1.0")
	if now := w.s.RPC(http.MethodGet, "/rpc/formations/one").Int("data.pid"); now != pid {
		w.Errorf("process %d was followed by %d", pid, now)
	}
}

func (w *tour) downloads() {
	w.Helper()
	w.served["GET /rpc/formations/{id}/download"] = true
	for query, want := range map[string]string{"": "formation.afs", "?db=true": "memory.db"} {
		reply := w.s.RPCQuery(http.MethodGet, "/rpc/formations/one/download"+query).Want(w, http.StatusOK)
		z, err := zip.NewReader(bytes.NewReader(reply.Body), int64(len(reply.Body)))
		if err != nil {
			w.Fatal(err)
		}
		if !slices.ContainsFunc(z.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, want) }) {
			w.Errorf("the download %q has no %s", query, want)
		}
	}
}

func (w *tour) drafts() {
	w.Helper()
	const route = "POST /rpc/formations/{id}/draft/files"
	do := func(body map[string]any, pairs ...string) {
		w.Helper()
		w.call(route, "one", body, http.StatusOK, pairs...)
	}
	do(map[string]any{"action": "init", "mode": "clone"}, "success", "true", "draft.exists", "true")
	do(map[string]any{"action": "list", "path": ""}, "success", "true")
	do(map[string]any{"action": "write", "path": "notes/a.md", "content": "hello"}, "data.written", "true")
	do(map[string]any{"action": "read", "path": "notes/a.md"}, "data.content", "hello")
	do(map[string]any{"action": "delete", "path": "notes"}, "data.deleted", "true")
	w.call("POST /rpc/dev/run", "", map[string]any{"formation_id": "one"}, http.StatusOK, "success", "true", "formation_id", "one", "status", "running")
	w.s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: w.s.URL + "/draft/one/v1/health"}).Want(w, http.StatusOK)
	w.call("POST /rpc/dev/stop", "", map[string]any{"formation_id": "one"}, http.StatusOK, "success", "true", "status", "stopped")
	text := w.call(route, "one", map[string]any{"action": "read", "path": "formation.afs"}, http.StatusOK).Text("data.content")
	text = strings.Replace(text, `version: "1.1.0"`, `version: "1.2.0"`, 1)
	do(map[string]any{"action": "write", "path": "formation.afs", "content": text}, "data.written", "true")
	do(map[string]any{"action": "deploy"}, "success", "true", "live.version", "1.2.0")
	do(map[string]any{"action": "init", "mode": "clone"}, "success", "true")
	do(map[string]any{"action": "discard"}, "data.discarded", "true")
}

func (w *tour) server() {
	w.Helper()
	w.call("GET /rpc/server/status", "", nil, http.StatusOK, "data.formations.total", "1", "data.formations.running", "1")
	if reply := w.call("GET /rpc/server/logs", "", nil, http.StatusOK); !bytes.Contains(reply.Body, []byte("formations.deploy")) {
		w.Errorf("the server's log says %.300s", reply.Body)
	}
	audit := w.call("GET /rpc/audit", "", nil, http.StatusOK)
	if audit.Text("data.entries.0.hash") == "" || audit.Int("data.count") < 10 {
		w.Errorf("the audit says %.300s", audit.Body)
	}
	w.s.RPCQuery(http.MethodGet, "/rpc/audit?action=formations.update&id=one&limit=1").
		Want(w, http.StatusOK, "data.count", "1", "data.entries.0.action", "formations.update", "data.entries.0.actor", w.s.KeyID)
	w.call("GET /rpc/audit/verify", "", nil, http.StatusOK, "data.valid", "true", "data.broken_at", "null")
}

// aliases calls the paths that older clients know.
func (w *tour) aliases() {
	w.Helper()
	for _, verb := range []string{"restart", "rollback"} {
		path := "/rpc/formations/one/" + verb + "/stream"
		r := harness.Request{Method: http.MethodPost, URL: w.s.URL + path, Header: w.s.Signing(http.MethodPost, path, nil).ThreeHeaders()}
		frames := w.s.HTTP.MustStream(r).MustRest(w)
		if frames[len(frames)-1].Event != "complete" {
			w.Errorf("%s ends with %v", path, frames[len(frames)-1])
		}
	}
	w.s.Call(http.MethodPost, "/rpc/formations/one/update", map[string]any{"version": "2"}).
		Want(w, http.StatusBadRequest, "error", "ValidationError")
	if n := w.s.RPCQuery(http.MethodGet, "/rpc/formations/one/logs?limit=1").Want(w, http.StatusOK).Get("data.logs.stdout.1"); n != nil {
		w.Errorf("limit=1 returned more lines: %v", n)
	}
}

// laterRoutes are documented by the reference and wait for rooms of their own.
var laterRoutes = map[string]string{
	"GET /console": "the web console is a room of its own",
}

// compare expects that every route of the document was called here.
func (w *tour) compare(document harness.Reply) {
	w.Helper()
	paths, _ := document.Get("paths").(map[string]any)
	if len(paths) < 20 {
		w.Errorf("the document has %d paths: %.300s", len(paths), document.Body)
	}
	aliases := []string{"/stream", "/deploy", "/update"}
	for path, item := range paths {
		methods, _ := item.(map[string]any)
		for method := range maps.Keys(methods) {
			route := strings.ToUpper(method) + " " + path
			alias := slices.ContainsFunc(aliases, func(end string) bool { return strings.HasSuffix(path, end) })
			forwarded := strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/draft/") || strings.HasPrefix(path, "/mcp/")
			if !w.served[route] && !alias && !forwarded && method != "parameters" {
				w.Errorf("the document has %s, which this test does not call", route)
			}
		}
	}
	for route := range laterRoutes {
		method, path, _ := strings.Cut(route, " ")
		if harness.Dig(paths, path+"."+strings.ToLower(method)) != nil {
			w.Errorf("%s is documented now: call it here", route)
		}
	}
}

// unreachable are the names of the reference that no call from outside can
// produce, each with the reason.
var unreachable = map[string]string{
	"SwapError":         "update and rollback share the listening socket; the name stays reserved",
	"SwitchError":       "the new process either accepts on the shared socket or the old one goes on: HealthCheckFailed",
	"RuntimeNotFound":   "there is one runtime, beside the supervisor; a missing one is ResolveError",
	"DirectoryError":    "needs a full or broken disk: pkg/supervisor/deploy tests it",
	"CleanupError":      "needs a broken disk",
	"MoveError":         "needs a broken disk",
	"RegisterError":     "needs a full disk: pkg/supervisor/deploy tests it",
	"StopError":         "needs a process that survives SIGKILL",
	"CreateError":       "needs a full or broken disk",
	"WriteError":        "needs a full or broken disk",
	"CopyError":         "needs a full or broken disk",
	"BadGateway":        "a child that died gives a waiting request to the next one: pkg/supervisor/proxy tests it",
	"PayloadTooLarge":   "TestArchive and pkg/supervisor/httpapi test it with small limits",
	"RateLimited":       "TestRoutes_TooManyCallsOfOneKeyAreRefused",
	"HealthCheckFailed": "TestUpdate_AProcessThatDiesOrNeverComesLeavesTheOldOneServing",
	"DeployConflict":    "needs a live formation that changes during a draft's life: pkg/supervisor/deploy tests it",
}

// names are all of the reference's section 1.2.
const names = "ValidationError InvalidContentType MissingHeader InvalidFormationID ExtractError ParseError SecretsError IDMismatch " +
	"VersionMismatch InvalidRuntime ResolveError NoPreviousVersion NoUpdateInProgress HealthCheckFailed InvalidMode InvalidPath " +
	"InvalidAction InvalidJSON DecodeError Unauthorized NotFound FormationNotFound VersionNotFound RuntimeNotFound DraftNotFound " +
	"LiveNotFound FileNotFound UpdateInProgress NoChange AlreadyRunning AlreadyStopped DraftAlreadyExists DeployConflict DraftRunning " +
	"PayloadTooLarge RateLimited PortAllocationError DirectoryError CleanupError MoveError SpawnError RegisterError SwitchError " +
	"SwapError StopError CreateError WriteError CopyError BadGateway FormationUnavailable"

// refusals calls for errors and remembers their names.
type refusals struct {
	*tour
	seen map[string]bool
}

func (w *refusals) refused(route, id string, body any, status int, name string) {
	w.Helper()
	w.call(route, id, body, status, "success", "false", "error", name, "code", strconv.Itoa(status))
	w.seen[name] = true
}

func TestRoutes_EachReachableErrorHasItsNameAndStatus(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	w := &refusals{newTour(t, harness.Options{Bin: bin, Formations: "  max_formations: 3\n"}), map[string]bool{}}
	w.s.Deploy("one", w.files.Version("1.0.0"))
	w.deployRefusals()
	w.lifecycleRefusals()
	w.draftRefusals()
	w.placeRefusals(bin)
	var missing []string
	for name := range strings.FieldsSeq(names) {
		switch why := unreachable[name]; {
		case w.seen[name] && why != "":
			t.Errorf("%s is listed as unreachable, but was seen", name)
		case !w.seen[name] && why == "":
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no call here ends with %v", missing)
	}
}

func (w *refusals) deployRefusals() {
	w.Helper()
	const deploy, update = "POST /rpc/formations", "PUT /rpc/formations/{id}"
	good := w.bundle("two", "1.0.0")
	changed := func(old, fresh string) []byte {
		files := w.files.Version("2.0.0")
		files["formation.afs"] = strings.Replace(files["formation.afs"], old, fresh, 1)
		return files.Bundle(w, "one")
	}
	w.refused(deploy, "", map[string]any{}, http.StatusBadRequest, "InvalidContentType")
	w.refused(deploy, "", good, http.StatusBadRequest, "MissingHeader")
	w.refused(deploy, "Not-An-Id", good, http.StatusBadRequest, "InvalidFormationID")
	w.refused(deploy, "one", w.bundle("one", "1.0.0"), http.StatusConflict, "ValidationError")
	w.refused(deploy, "two", []byte("no archive"), http.StatusBadRequest, "ExtractError")
	w.refused(deploy, "three", good, http.StatusBadRequest, "IDMismatch")
	w.refused(update, "one", changed("agents: [", "agents: {["), http.StatusBadRequest, "ParseError")
	w.refused(update, "one", changed("id: one\n", "id: one\nsvc_runtime: 7\n"), http.StatusBadRequest, "InvalidRuntime")
	w.refused(update, "one", changed("test-key", "${{ secrets.NOBODY }}"), http.StatusBadRequest, "SecretsError")
	w.refused(update, "one", w.bundle("one", "1.0.0"), http.StatusConflict, "NoChange")
	w.refused(update, "nobody", good, http.StatusNotFound, "FormationNotFound")
	w.refused("GET /rpc/nothing", "", nil, http.StatusNotFound, "NotFound")
	r := w.s.DeployRequest("two", good)
	r.Header["X-Formation-Version"] = "3.0.0"
	w.s.HTTP.Must(r).Want(w, http.StatusBadRequest, "error", "VersionMismatch")
	w.s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: w.s.URL + "/rpc/formations"}).Want(w, http.StatusUnauthorized, "error", "Unauthorized")
	w.seen["VersionMismatch"], w.seen["Unauthorized"] = true, true
}

func (w *refusals) lifecycleRefusals() {
	w.Helper()
	post := func(verb string, body any, status int, name string) {
		w.Helper()
		w.refused("POST /rpc/formations/{id}/"+verb, "one", body, status, name)
	}
	post("start", nil, http.StatusConflict, "AlreadyRunning")
	post("rollback", nil, http.StatusBadRequest, "NoPreviousVersion")
	post("rollback", map[string]string{"version": "7.7.7"}, http.StatusNotFound, "VersionNotFound")
	post("cancel-update", nil, http.StatusBadRequest, "NoUpdateInProgress")
	w.call("POST /rpc/formations/{id}/stop", "one", nil, http.StatusOK)
	post("stop", nil, http.StatusConflict, "AlreadyStopped")
	w.s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: w.s.URL + "/api/one/v1/health"}).
		Want(w, http.StatusServiceUnavailable, "error", "FormationUnavailable")
	w.seen["FormationUnavailable"] = true
	w.call("POST /rpc/formations/{id}/start", "one", nil, http.StatusOK)
	updated := make(chan harness.Reply, 1)
	go func() {
		for { // it is refused while one of the rollbacks below is looked at
			reply := <-w.s.BeginUpdate("one", w.files.Version("9.0.0").With("init: exec sleep 600\n"))
			if reply.Text("error") != "UpdateInProgress" {
				updated <- reply
				return
			}
		}
	}()
	harness.Until(w, "the update is in progress", func() bool {
		return w.s.RPC(http.MethodPost, "/rpc/formations/one/rollback").Text("error") == "UpdateInProgress"
	})
	w.refused("PUT /rpc/formations/{id}", "one", w.bundle("one", "9.1.0"), http.StatusConflict, "UpdateInProgress")
	post("rollback", nil, http.StatusConflict, "UpdateInProgress")
	w.call("POST /rpc/formations/{id}/cancel-update", "one", nil, http.StatusOK)
	<-updated
	if reply := w.s.RPCQuery(http.MethodGet, "/rpc/audit?since=yesterday"); reply.Status != http.StatusBadRequest || !strings.Contains(reply.Text("message"), "since") {
		w.Errorf("a wrong since is answered %d %s", reply.Status, reply.Body)
	}
}

func (w *refusals) draftRefusals() {
	w.Helper()
	const route = "POST /rpc/formations/{id}/draft/files"
	do := func(id string, body map[string]any, status int, name string) {
		w.Helper()
		w.refused(route, id, body, status, name)
	}
	do("one", map[string]any{"action": "list"}, http.StatusNotFound, "DraftNotFound")
	do("one", map[string]any{"action": "dance"}, http.StatusBadRequest, "InvalidAction")
	do("one", map[string]any{"action": "init", "mode": "magic"}, http.StatusBadRequest, "InvalidMode")
	do("fresh-one", map[string]any{"action": "init", "mode": "clone"}, http.StatusNotFound, "LiveNotFound")
	w.call(route, "one", map[string]any{"action": "init", "mode": "clone"}, http.StatusOK)
	do("one", map[string]any{"action": "init", "mode": "new"}, http.StatusConflict, "DraftAlreadyExists")
	do("one", map[string]any{"action": "read", "path": "nothing.md"}, http.StatusNotFound, "FileNotFound")
	do("one", map[string]any{"action": "read", "path": "../../config.yaml"}, http.StatusBadRequest, "InvalidPath")
	do("one", map[string]any{"action": "write", "path": "a", "content": "%%", "encoding": "base64"}, http.StatusBadRequest, "DecodeError")
	broken := w.s.CallText(http.MethodPost, "/rpc/formations/one/draft/files", "{")
	broken.Want(w, http.StatusBadRequest, "error", "InvalidJSON")
	w.seen["InvalidJSON"] = true
	w.call("POST /rpc/dev/run", "", map[string]any{"formation_id": "one"}, http.StatusOK)
	w.refused("POST /rpc/dev/run", "", map[string]any{"formation_id": "one"}, http.StatusConflict, "DraftRunning")
	w.call("POST /rpc/dev/stop", "", map[string]any{"formation_id": "one"}, http.StatusOK)
}

// placeRefusals are those of ports, programs and rates.
func (w *refusals) placeRefusals(bin string) {
	w.Helper()
	w.s.Deploy("two", w.named("two"))
	three := w.s.Deploy("three", w.named("three"))
	w.refused("POST /rpc/formations", "four", w.bundle("four", "1.0.0"), http.StatusInternalServerError, "PortAllocationError")
	w.call("POST /rpc/formations/{id}/stop", "three", nil, http.StatusOK)
	free := harness.Listen(w, three.Port)
	reply := w.s.RPC(http.MethodPost, "/rpc/formations/three/start").Want(w, http.StatusInternalServerError, "error", "SpawnError")
	if !strings.Contains(reply.Text("message"), strconv.Itoa(three.Port)) {
		w.Errorf("a stolen port is told as %q", reply.Text("message"))
	}
	w.seen["SpawnError"] = true
	free()
	w.call("POST /rpc/formations/{id}/start", "three", nil, http.StatusOK, "data.port", strconv.Itoa(three.Port))
	w.call("DELETE /rpc/formations/{id}", "three", nil, http.StatusOK)
	if err := os.Remove(filepath.Join(bin, "formation-runtime")); err != nil {
		w.Fatal(err)
	}
	w.refused("POST /rpc/formations", "four", w.bundle("four", "1.0.0"), http.StatusBadRequest, "ResolveError")
}

func TestRoutes_TooManyCallsOfOneKeyAreRefused(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Server: "  limits:\n    requests_per_minute: 60\n    burst: 5\n"})
	for range 20 {
		reply := s.RPC(http.MethodGet, "/rpc/formations")
		if reply.Status == http.StatusOK {
			continue
		}
		reply.Want(t, http.StatusTooManyRequests, "success", "false", "error", "RateLimited", "code", "429")
		if reply.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
		return
	}
	t.Error("20 calls at once were all answered")
}
