package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func toJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// author is a formation in a directory of its author.
func author(t *testing.T, id string, extra map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range deploytest.Files(id, extra) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustRun(t *testing.T, r *deploytest.Rig, req deploy.DevRequest) deploy.Dev {
	t.Helper()
	d, err := r.Service.DevRun(t.Context(), req, nil)
	if err != nil {
		t.Fatalf("dev run: %v", err)
	}
	return d
}

// files lists what lies in dir, with contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			text, rerr := os.ReadFile(path)
			all[path], err = string(text), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestDevRun_RunsADirectoryInPlaceBesideWhatIsDeployed(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	live := r.MustDeploy(t, "hello", nil)
	dir := author(t, "hello", nil)
	before := len(files(t, dir))
	d := mustRun(t, r, deploy.DevRequest{Path: dir})
	if d.ID != "hello" || d.Port == live.Port {
		t.Errorf("dev = %+v, live port %d", d, live.Port)
	}
	target, err := r.Service.DraftTarget(t.Context(), "hello")
	if err != nil || target.Port != d.Port {
		t.Errorf("target = %+v, %v", target, err)
	}
	_, env := deploytest.Ask(t, d.Port, "/env")
	if home := "HOME=" + filepath.Join(r.Home, "formations/.dev/hello/state"); !strings.Contains(env, home) {
		t.Errorf("the draft's environment lacks %s", home)
	}
	_, pid := deploytest.Ask(t, d.Port, "/")
	if cwd, err := os.Readlink("/proc/" + pid + "/cwd"); err != nil || cwd != dir {
		t.Errorf("it runs in %s, %v; want %s", cwd, err, dir)
	}
	if err := r.Service.DevStop(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if after := len(files(t, dir)); after != before {
		t.Errorf("the author's directory has %d files, had %d", after, before)
	}
	if _, ok := r.Ports.Get("hello-draft"); ok {
		t.Error("the port is not released")
	}
	if status, _ := deploytest.Ask(t, live.Port, "/"); status != 200 {
		t.Errorf("what is deployed answers %d", status)
	}
	_, err = r.Service.DraftTarget(t.Context(), "hello")
	assertFault(t, err, fault.NotFound, "FormationNotFound", "No draft")
	assertFault(t, r.Service.DevStop(t.Context(), "hello"), fault.NotFound, "DraftNotFound", "No draft")
}

func TestDevRun_OfADraftRemembersBesideIt(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", nil)
	d := mustRun(t, r, deploy.DevRequest{FormationID: "hello"})
	_, env := deploytest.Ask(t, d.Port, "/env")
	if home := "HOME=" + filepath.Join(r.Home, "formations/hello/draft-state"); !strings.Contains(env, home) {
		t.Errorf("the draft's environment lacks %s", home)
	}
	// Deployed, it is moved: the process that ran it ends.
	if _, err := r.Service.DeployDraft(t.Context(), "hello", nil); err != nil {
		t.Fatal(err)
	}
	_, err := r.Service.DraftTarget(t.Context(), "hello")
	assertFault(t, err, fault.NotFound, "FormationNotFound", "No draft")
	left, err := os.ReadDir(filepath.Join(r.Home, "formations/hello"))
	if err != nil || len(left) != 2 { // state and versions
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestDevRun_EndsWithADiscardOrADelete(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	end := map[string]func() error{
		"discarded": func() error {
			_, err := r.Service.Draft(t.Context(), "discarded", deploy.DraftRequest{Action: "discard"})
			return err
		},
		"deleted": func() error { return r.Service.Delete(t.Context(), "deleted") },
	}
	r.MustDeploy(t, "deleted", nil)
	for id, end := range end {
		newDraft(t, r, id, nil)
		mustRun(t, r, deploy.DevRequest{FormationID: id})
		if err := end(); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		_, err := r.Service.DraftTarget(t.Context(), id)
		assertFault(t, err, fault.NotFound, "FormationNotFound", "No draft")
	}
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
}

func TestDevRun_RefusesWhatCannotBeRun(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	dir := author(t, "hello", nil)
	newDraft(t, r, "broken", map[string]string{"formation.afs": "id: broken\n"})
	newDraft(t, r, "other", map[string]string{"formation.afs": deploytest.Files("hello", nil)["formation.afs"]})
	for name, tc := range map[string]struct {
		req        deploy.DevRequest
		kind       fault.Kind
		name, text string
	}{
		"nothing":        {deploy.DevRequest{}, fault.Invalid, "ValidationError", "path or formation_id"},
		"relative":       {deploy.DevRequest{Path: "hello"}, fault.Invalid, "ValidationError", "must be absolute"},
		"no directory":   {deploy.DevRequest{Path: dir + "/nowhere"}, fault.Invalid, "ValidationError", "no directory"},
		"a file":         {deploy.DevRequest{Path: dir + "/formation.afs"}, fault.Invalid, "ValidationError", "no directory"},
		"no manifest":    {deploy.DevRequest{Path: dir + "/agents"}, fault.Invalid, "ParseError", "formation.afs"},
		"another id":     {deploy.DevRequest{Path: dir, FormationID: "other"}, fault.Invalid, "IDMismatch", `"hello"`},
		"no id":          {deploy.DevRequest{FormationID: "Hello"}, fault.Invalid, "InvalidFormationID", "3 to 50"},
		"no draft":       {deploy.DevRequest{FormationID: "hello"}, fault.NotFound, "DraftNotFound", "no draft"},
		"broken draft":   {deploy.DevRequest{FormationID: "broken"}, fault.Invalid, "ParseError", "formation.afs"},
		"draft's own id": {deploy.DevRequest{FormationID: "other"}, fault.Invalid, "IDMismatch", `"hello"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := r.Service.DevRun(t.Context(), tc.req, nil)
			assertFault(t, err, tc.kind, tc.name, tc.text)
		})
	}
}

func TestDevRun_ThatFailsLeavesNoProcessAndNoPort(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	for behave, want := range map[string]struct{ name, text string }{
		"crash":   {"HealthCheckFailed", "the disk is on fire"},
		"secrets": {"SecretsError", "API_KEY"},
	} {
		dir := author(t, "hello", map[string]string{"behave": behave})
		d, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: dir}, nil)
		assertFault(t, err, fault.Failed, want.name, want.text)
		if d.ID != "hello" {
			t.Errorf("the refusal names formation %q", d.ID)
		}
		if _, ok := r.Ports.Get("hello-draft"); ok {
			t.Error("the port is not released")
		}
		if left, _ := os.ReadDir(filepath.Join(r.Home, "run")); len(left) != 0 {
			t.Errorf("left in run: %v", left)
		}
	}
	if _, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: author(t, "hello", nil)}, nil); err != nil {
		t.Errorf("the mended directory: %v", err)
	}
}

func TestDevRun_RefusesASecondOneUntilTheFirstHasEnded(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	dir := author(t, "hello", nil)
	first := mustRun(t, r, deploy.DevRequest{Path: dir})
	_, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: dir}, nil)
	assertFault(t, err, fault.Conflict, "DraftRunning", "stop it first")
	deploytest.Ask(t, first.Port, "/log?one")
	deploytest.Ask(t, first.Port, "/exit") // no restart
	deploytest.Eventually(t, "the draft is down", func() bool {
		_, err := r.Service.DraftTarget(t.Context(), "hello")
		return fault.NameOf(err) == "FormationUnavailable"
	})
	rotated := filepath.Join(r.Home, "logs/hello-draft-err.log.1") // as the rotation leaves it
	if err := os.WriteFile(rotated, []byte("err zero\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, deploy.DevRequest{Path: dir})
	for path, text := range files(t, filepath.Join(r.Home, "logs")) {
		if text != "" {
			t.Errorf("%s has something of the run before: %q", path, text)
		}
	}
}

func TestDevRun_StoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	dir := author(t, "hello", map[string]string{"behave": "wait"})
	loading, done := make(chan struct{}), make(chan error, 1)
	go func() {
		told := false
		_, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: dir}, func(p deploy.Progress) {
			if p.Stage == deploy.StageHealth && !told {
				told = true
				close(loading)
			}
		})
		done <- err
	}()
	<-loading
	if err := r.Service.DevStop(t.Context(), "hello"); err != nil {
		t.Error(err)
	}
	assertFault(t, <-done, fault.Failed, "HealthCheckFailed", "stopped before it was ready")
	if _, ok := r.Ports.Get("hello-draft"); ok {
		t.Error("the port is not released")
	}
}

func TestDevRun_AndAFormationWithTheNameOfItsProcessExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "one-draft", nil)
	_, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: author(t, "one", nil)}, nil)
	assertFault(t, err, fault.Conflict, "DraftRunning", "one-draft")
	mustRun(t, r, deploy.DevRequest{Path: author(t, "two", nil)})
	_, err = r.Deploy(t, "two-draft", nil)
	assertFault(t, err, fault.Conflict, "ValidationError", "two-draft")
}

func TestDevRun_EndsWithTheService(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*deploytest.Rig, *testing.T){
		"shutdown": func(r *deploytest.Rig, t *testing.T) { r.Shutdown(t) },
		"close":    func(r *deploytest.Rig, t *testing.T) { r.Abandon(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, nil)
			d := mustRun(t, r, deploy.DevRequest{Path: author(t, "hello", nil)})
			pid := pidOf(t, d.Port)
			end(r, t)
			if err := syscall.Kill(pid, 0); err == nil && !zombie(pid) {
				t.Error("the draft's process lives")
			}
			r.Start(t, nil)
			_, err := r.Service.DraftTarget(t.Context(), "hello")
			assertFault(t, err, fault.NotFound, "FormationNotFound", "No draft")
		})
	}
}

func TestRestore_EndsTheDraftsOfASupervisorThatWasKilled(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	d := mustRun(t, r, deploy.DevRequest{Path: author(t, "hello", nil)})
	pid := pidOf(t, d.Port)
	// A supervisor that is killed leaves all as it is; a second Service over the
	// same home finds what the next supervisor would.
	second := *r
	second.Start(t, nil)
	deploytest.Eventually(t, "the draft's process ends", func() bool {
		return syscall.Kill(pid, 0) != nil || zombie(pid)
	})
	if left, _ := filepath.Glob(filepath.Join(r.Home, "run/*/draft.json")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	mustRun(t, &second, deploy.DevRequest{Path: author(t, "hello", nil)})
}

func TestRestore_LeavesAForeignProcessAloneThatADraftsMarkLeadsTo(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	d := mustRun(t, r, deploy.DevRequest{Path: author(t, "hello", nil)})
	dir := filepath.Dir(glob(t, filepath.Join(r.Home, "run/*/draft.json")))
	mark, err := os.ReadFile(filepath.Join(dir, "draft.json"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(glob(t, filepath.Join(dir, "launch-*.json")))
	if err != nil {
		t.Fatal(err)
	}
	record := glob(t, filepath.Join(dir, "launch-*.json"))
	pid := pidOf(t, d.Port)
	r.Abandon(t)
	// The same record, but the number belongs to another process now: to this one.
	text = []byte(strings.Replace(string(text), `"pid":`+strconv.Itoa(pid), `"pid":`+strconv.Itoa(os.Getpid()), 1))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "draft.json"), mark, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(r.Home, "run", "00000000")
	if err := os.MkdirAll(broken, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "draft.json"), []byte(`{"id":"../..","port":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Start(t, nil) // would end this test, if it signalled
	if left, _ := filepath.Glob(filepath.Join(r.Home, "run/*/draft.json")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func glob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v; want one", pattern, found, err)
	}
	return found[0]
}

func pidOf(t *testing.T, port int) int {
	t.Helper()
	_, text := deploytest.Ask(t, port, "/")
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the draft answers %q", text)
	}
	return pid
}

// zombie tells whether a process has ended and waits for its parent.
func zombie(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(text), ") Z ")
}

func TestDevRun_RunsInitInTheDirectoryEachTime(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	manifest := deploytest.Files("hello", nil)["formation.afs"]
	dir := author(t, "hello", map[string]string{"formation.afs": manifest + "init: echo once >> made\n"})
	for range 2 {
		mustRun(t, r, deploy.DevRequest{Path: dir})
		if err := r.Service.DevStop(t.Context(), "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(text) != "once\nonce\n" {
		t.Errorf("init left %q, %v", text, err)
	}
	dir = author(t, "hello", map[string]string{"formation.afs": manifest + "init: echo no network >&2; exit 3\n"})
	_, err := r.Service.DevRun(t.Context(), deploy.DevRequest{Path: dir}, nil)
	assertFault(t, err, fault.Failed, "SpawnError", "init failed (exit 3): no network")
	if _, ok := r.Ports.Get("hello-draft"); ok {
		t.Error("the port is not released")
	}
}
