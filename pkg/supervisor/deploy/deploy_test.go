package deploy_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

func TestDeploy_ServesAndRecords(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	var stages []deploy.Stage
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	v, err := r.DeployBundle(t, deploy.Request{ID: "hello", Version: "1.2.3"}, body, func(p deploy.Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []deploy.Stage{deploy.StageExtracting, deploy.StageValidating, deploy.StageResolving, deploy.StageSpawning, deploy.StageHealth}
	if diff := cmp.Diff(want, stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	if v.Name != "Name of hello" || v.Process.Status != process.StatusRunning || v.Current.Semantic != "1.2.3" ||
		len(v.Current.SHA256) != 64 || v.Port != r.First || v.Desired != registry.Running || v.State != registry.Deployed {
		t.Errorf("view = %+v", v)
	}
	if status, _ := deploytest.Ask(t, v.Port, "/"); status != 200 {
		t.Errorf("the formation answers %d", status)
	}
	if _, err := os.Stat(filepath.Join(r.Home, "formations/hello/versions/1/agents/one.afs")); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Join(r.Home, "tmp")); len(left) != 0 {
		t.Errorf("uploads left: %v", left)
	}
}

func TestDeploy_ChildSeesTheAllowListOnly(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Child.Env = append(c.Child.Env, "REGION=north") })
	key := "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	if err := os.MkdirAll(filepath.Join(r.Home, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Home, "keys", "hello.key"), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	v := r.MustDeploy(t, "hello", nil)
	_, text := deploytest.Ask(t, v.Port, "/env")
	var names []string
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		names = append(names, name)
		switch {
		case name == "SVC_SERVER_URL" && value != "http://localhost:7890",
			name == "HOME" && value != filepath.Join(r.Home, "formations/hello/state"),
			name == "HF_HOME" && value != filepath.Join(r.Home, "cache"),
			name == "REGION" && value != "north",
			name == "SVC_SECRETS_KEY" && value != key:
			t.Errorf("%s = %q", name, value)
		}
	}
	for _, name := range []string{"PATH", "HOME", "LANG", "HF_HOME", "SVC_ENV", "SVC_SERVER_URL", "REGION", "FORMATION_ID", "SVC_SECRETS_KEY"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing in %q", name, names)
		}
	}
	if slices.Contains(names, "SECRET_OF_THE_SUPERVISOR") {
		t.Error("a variable of the supervisor reached the child")
	}
}

func TestDeploy_RollsBackWhenChildDies(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	_, err := r.Deploy(t, "hello", map[string]string{"behave": "crash"})
	assertFault(t, err, fault.Invalid, "HealthCheckFailed", "Formation crashed during startup: the disk is on fire")
	var f *deploy.StageError
	if !errors.As(err, &f) || f.Stage != deploy.StageHealth || f.Rollback != deploy.RollbackDone {
		t.Errorf("failure = %+v", f)
	}
	assertClean(t, r, "hello")
	v := r.MustDeploy(t, "hello", nil)
	if v.Port != r.First || v.Current.Serial != 1 {
		t.Errorf("the next deploy got %+v", v.Formation)
	}
}

// assertClean checks that nothing is left of a formation: no file, row or port.
func assertClean(t *testing.T, r *deploytest.Rig, id string) {
	t.Helper()
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
	if _, err := r.Registry.Get(t.Context(), id); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("row of %s: %v, want none", id, err)
	}
	if s, ok := r.Ports.Get(id); ok {
		t.Errorf("%s still has port %d", id, s.Port())
	}
	if _, err := r.Service.Get(t.Context(), id); fault.NameOf(err) != "FormationNotFound" {
		t.Errorf("get %s: %v, want FormationNotFound", id, err)
	}
	if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", itoa(r.First))); err != nil {
		t.Errorf("the port is not free: %v", err)
	} else {
		l.Close()
	}
}

func assertFault(t *testing.T, err error, kind fault.Kind, name, text string) {
	t.Helper()
	if fault.KindOf(err) != kind || fault.NameOf(err) != name || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%v %s)\nwant    %s (%v %s)", err, fault.KindOf(err), fault.NameOf(err), text, kind, name)
	}
}

func TestDeploy_RefusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	manifest := func(change func(string) string) map[string]string {
		return map[string]string{"formation.afs": change(deploytest.Files("hello", nil)["formation.afs"])}
	}
	for name, tc := range map[string]struct {
		req    deploy.Request
		extra  map[string]string
		change func(*deploy.Config)
		kind   fault.Kind
		fault  string
		text   string
		stage  deploy.Stage
	}{
		"bad id": {
			req: deploy.Request{ID: "Hello"}, kind: fault.Invalid, fault: "InvalidFormationID", text: "3 to 50", stage: deploy.StageExtracting,
		},
		"reserved id": {
			req: deploy.Request{ID: "health"}, kind: fault.Invalid, fault: "InvalidFormationID", text: "reserved", stage: deploy.StageExtracting,
		},
		"no manifest": {
			extra: map[string]string{"formation.afs": "\x00"}, // removed below
			kind:  fault.Invalid, fault: "ParseError", text: "formation.afs", stage: deploy.StageValidating,
		},
		"fault in the manifest": {
			extra: manifest(func(s string) string { return strings.Replace(s, "id: hello", "id: [x]", 1) }),
			kind:  fault.Invalid, fault: "ParseError", text: "formation.afs:2:", stage: deploy.StageValidating,
		},
		"fault in an agent": {
			extra: map[string]string{"agents/one.afs": "schema: \"1.0.0\"\nid: two\n"},
			kind:  fault.Invalid, fault: "ParseError", text: "agents/one.afs", stage: deploy.StageValidating,
		},
		"other id": {
			req: deploy.Request{ID: "other"}, kind: fault.Invalid, fault: "IDMismatch", text: `"hello" and the request "other"`, stage: deploy.StageValidating,
		},
		"other version": {
			req:  deploy.Request{ID: "hello", Version: "2.0.0"},
			kind: fault.Invalid, fault: "VersionMismatch", text: `"1.2.3" and the request "2.0.0"`, stage: deploy.StageValidating,
		},
		"no version": {
			req:  deploy.Request{ID: "hello", Version: "../x"},
			kind: fault.Invalid, fault: "ValidationError", text: "X-Formation-Version", stage: deploy.StageValidating,
		},
		"runtime without sense": {
			extra: manifest(func(s string) string { return s + "svc_runtime: \"1.0:tpu\"\n" }),
			kind:  fault.Invalid, fault: "InvalidRuntime", text: "cpu, gpu or cuda", stage: deploy.StageValidating,
		},
		"no runtime program": {
			change: func(c *deploy.Config) { c.Child.Binary = "/nowhere/formation-runtime" },
			kind:   fault.Invalid, fault: "ResolveError", text: "/nowhere/formation-runtime", stage: deploy.StageResolving,
		},
		"missing secrets": {
			extra: map[string]string{"behave": "secrets"},
			kind:  fault.Invalid, fault: "SecretsError", text: "API_KEY", stage: deploy.StageValidating,
		},
		"program that is none": {
			change: func(c *deploy.Config) { c.Child.Args, c.Child.Env = []string{"-test.run=^$"}, nil }, // exits well, without a handshake
			kind:   fault.Invalid, fault: "HealthCheckFailed", text: "crashed during startup", stage: deploy.StageSpawning,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := deploytest.New(t, tc.change)
			if tc.req.ID == "" {
				tc.req.ID = "hello"
			}
			files := deploytest.Files("hello", tc.extra)
			if files["formation.afs"] == "\x00" {
				delete(files, "formation.afs")
			}
			_, err := r.DeployBundle(t, tc.req, deploytest.Bundle(t, "hello", files), nil)
			assertFault(t, err, tc.kind, tc.fault, tc.text)
			var f *deploy.StageError
			if errors.As(err, &f) && f.Stage != tc.stage {
				t.Errorf("stage = %s, want %s", f.Stage, tc.stage)
			}
			assertClean(t, r, tc.req.ID)
		})
	}
}

func TestDeploy_VersionComesFromTheRequestElseTheManifestElseADefault(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	bare := strings.Replace(deploytest.Files("bare", nil)["formation.afs"], "version: 1.2.3\n", "", 1)
	files := deploytest.Files("bare", map[string]string{"formation.afs": bare})
	for _, tc := range []struct{ request, want string }{{"", "1.0.0"}, {"4.5.6", "4.5.6"}} {
		v, err := r.DeployBundle(t, deploy.Request{ID: "bare", Version: tc.request}, deploytest.Bundle(t, "", files), nil)
		if err != nil {
			t.Fatal(err)
		}
		if v.Current.Semantic != tc.want {
			t.Errorf("request %q: version %q, want %q", tc.request, v.Current.Semantic, tc.want)
		}
		if err := r.Service.Delete(t.Context(), "bare"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeploy_RefusesASecondOfTheSameIDAlsoAtTheSameMoment(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = r.DeployBundle(t, deploy.Request{ID: "hello"}, body, nil) })
	}
	wg.Wait()
	good := 0
	for _, err := range errs {
		if err == nil {
			good++
			continue
		}
		assertFault(t, err, fault.Conflict, "ValidationError", "Formation 'hello' already exists")
	}
	if good != 1 {
		t.Errorf("%d of 4 deploys succeeded: %v", good, errs)
	}
	if _, err := r.Deploy(t, "hello", nil); err == nil {
		t.Error("a later deploy of the same id was accepted")
	}
	if status, _ := deploytest.Ask(t, r.First, "/"); status != 200 {
		t.Errorf("the first formation answers %d after the refusals", status)
	}
}

func TestDeploy_RefusesMoreFormationsThanAllowed(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.MaxFormations = 1 })
	r.MustDeploy(t, "first", nil)
	_, err := r.Deploy(t, "second", nil)
	assertFault(t, err, fault.Failed, "PortAllocationError", "at most 1 formations")
}

func TestDeploy_NoFreePortIsPortAllocationError(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.MaxFormations = 100 })
	for i := range 10 {
		if _, err := r.Ports.Lease("other-" + itoa(i)); err != nil {
			break // ports of other programs count as well
		}
	}
	_, err := r.Deploy(t, "hello", nil)
	assertFault(t, err, fault.Failed, "PortAllocationError", "no free port")
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
}

func TestDeploy_DoesNotTouchADirectoryTheRegistryDoesNotKnow(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	memory := filepath.Join(r.Home, "formations/hello/state/memory.db")
	if err := os.MkdirAll(filepath.Dir(memory), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(memory, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := r.Deploy(t, "hello", nil)
	assertFault(t, err, fault.Failed, "DirectoryError", "move the directory away")
	if text, err := os.ReadFile(memory); err != nil || string(text) != "precious" {
		t.Errorf("memory = %q, %v", text, err)
	}
}

func TestDelete_CancelsADeployInProgress(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	waiting := make(chan struct{})
	var once sync.Once
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", map[string]string{"behave": "wait"}))
	result := make(chan error, 1)
	go func() {
		_, err := r.DeployBundle(t, deploy.Request{ID: "hello"}, body, func(p deploy.Progress) {
			if p.Message == "waiting" {
				once.Do(func() { close(waiting) })
			}
		})
		result <- err
	}()
	<-waiting
	if v, err := r.Service.Get(t.Context(), "hello"); err != nil || v.Process.Status != process.StatusStarting {
		t.Errorf("during the deploy: %v, %v; want starting", v.Process.Status, err)
	}
	if _, err := r.Service.Start(t.Context(), "hello", nil); fault.NameOf(err) != "AlreadyRunning" {
		t.Errorf("start during the deploy: %v, want AlreadyRunning", err)
	}
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Errorf("delete: %v", err)
	}
	assertFault(t, <-result, fault.Conflict, "DeployConflict", "deleted during its deploy")
	assertClean(t, r, "hello")
}

func TestDeploy_GoesOnWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	b, err := r.Service.Receive(ctx, strings.NewReader(string(deploytest.Bundle(t, "hello", deploytest.Files("hello", nil)))))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Discard()
	v, err := r.Service.Deploy(ctx, deploy.Request{ID: "hello", Bundle: b}, func(deploy.Progress) { cancel() })
	if err != nil || v.Process.Status != process.StatusRunning {
		t.Errorf("deploy = %+v, %v", v.Process, err)
	}
}

func TestReceive_BoundsTheBodyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, func(c *deploy.Config) { c.Limits.MaxBytes = 10 })
	if b, err := r.Service.Receive(t.Context(), strings.NewReader("0123456789")); err != nil || b.Size != 10 {
		t.Errorf("ten bytes: %v", err)
	} else {
		b.Discard()
	}
	_, err := r.Service.Receive(t.Context(), strings.NewReader("0123456789x"))
	assertFault(t, err, fault.TooLarge, "PayloadTooLarge", "max_bytes")
	if left := r.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
}
