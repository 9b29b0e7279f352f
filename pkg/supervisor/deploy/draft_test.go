package deploy_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/process"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// do does one draft action that must succeed.
func do(t *testing.T, r *deploytest.Rig, id string, req deploy.DraftRequest) deploy.DraftReply {
	t.Helper()
	reply, err := r.Service.Draft(t.Context(), id, req)
	if err != nil {
		t.Fatalf("%s: %v", req.Action, err)
	}
	return reply
}

// newDraft begins a draft whose child is the scripted one.
func newDraft(t *testing.T, r *deploytest.Rig, id string, extra map[string]string) {
	t.Helper()
	do(t, r, id, deploy.DraftRequest{Action: "init", Mode: "new"})
	for name, text := range deploytest.Files(id, extra) {
		do(t, r, id, deploy.DraftRequest{Action: "write", Path: name, Content: text})
	}
	do(t, r, id, deploy.DraftRequest{Action: "delete", Path: "agents/assistant.afs"})
}

func assertDraft(t *testing.T, r *deploytest.Rig, id string, exists bool) {
	t.Helper()
	if got := r.Service.DraftStates(t.Context(), id).Draft.Exists; got != exists {
		t.Errorf("draft of %s exists: %v, want %v", id, got, exists)
	}
}

func TestDraft_FromInitToDeployOfANewFormation(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", nil)
	reply := do(t, r, "hello", deploy.DraftRequest{Action: "list"})
	if !reply.Draft.Exists || reply.Draft.BaseVersion != "" || reply.Live != (deploy.LiveState{}) {
		t.Errorf("states = %+v %+v", reply.Draft, reply.Live)
	}
	if at, err := time.Parse(time.RFC3339, reply.Draft.CreatedAt); err != nil || time.Since(at) > time.Hour {
		t.Errorf("created_at = %q", reply.Draft.CreatedAt)
	}
	if list, err := r.Service.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("a draft alone is listed: %v, %v", list, err)
	}
	if err := r.Service.CheckDeployDraft(t.Context(), "hello"); err != nil {
		t.Errorf("check: %v", err)
	}
	got, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !got.New || got.Process.Status != process.StatusRunning || got.Current.Semantic != "1.2.3" || got.PreviousVersion != "" {
		t.Errorf("deployed = %+v", got)
	}
	if status, _ := deploytest.Ask(t, got.Port, "/"); status != 200 {
		t.Errorf("the formation answers %d", status)
	}
	assertDraft(t, r, "hello", false)
	if _, err := os.Stat(filepath.Join(r.Home, "formations/hello/versions/1/.draft-meta.json")); !os.IsNotExist(err) {
		t.Errorf("the draft's own file was deployed: %v", err)
	}
}

func TestDraft_ClonedAndDeployedIsAnUpdate(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	before := r.MustDeploy(t, "hello", nil)
	reply := do(t, r, "hello", deploy.DraftRequest{Action: "init", Mode: "clone"})
	want := deploy.LiveState{Version: "1.2.3", Status: "running"}
	if reply.Draft.BaseVersion != "1.2.3" || reply.Live != want {
		t.Errorf("states = %+v %+v", reply.Draft, reply.Live)
	}
	text := strings.Replace(deploytest.Files("hello", nil)["formation.afs"], "1.2.3", "1.3.0", 1)
	do(t, r, "hello", deploy.DraftRequest{Action: "write", Path: "formation.afs", Content: text})
	got, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.New || got.PreviousVersion != "1.2.3" || got.Current.Semantic != "1.3.0" || got.Port != before.Port {
		t.Errorf("deployed = %+v", got)
	}
	assertDraft(t, r, "hello", false)
}

func TestDraft_DeployIsRefusedWhenAnotherVersionIsLive(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	do(t, r, "hello", deploy.DraftRequest{Action: "init", Mode: "clone"})
	// The same version, but another bundle.
	b, err := r.Service.Receive(t.Context(), strings.NewReader(string(deploytest.Bundle(t, "hello", deploytest.Files("hello", map[string]string{"x": "y"})))))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Discard()
	if _, err := r.Service.Update(t.Context(), deploy.UpdateRequest{ID: "hello", Bundle: b}, nil); err != nil {
		t.Fatal(err)
	}
	assertFault(t, r.Service.CheckDeployDraft(t.Context(), "hello"), fault.Conflict, "DeployConflict", "since the draft began")
	_, err = r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Conflict, "DeployConflict", "since the draft began")
	assertDraft(t, r, "hello", true)
}

func TestDraft_BegunBeforeItsFormationWasDeployedConflicts(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", nil)
	r.MustDeploy(t, "hello", nil)
	assertDraft(t, r, "hello", true)
	_, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Conflict, "DeployConflict", "since the draft began")
	if _, err := os.Stat(filepath.Join(r.Home, "formations/hello/versions/1/formation.afs")); err != nil {
		t.Errorf("deployed beside the draft: %v", err)
	}
}

func TestDraft_SurvivesADeployThatFails(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", map[string]string{"behave": "crash"})
	_, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Invalid, "HealthCheckFailed", "the disk is on fire")
	assertDraft(t, r, "hello", true)
	left, err := os.ReadDir(filepath.Join(r.Home, "formations/hello"))
	if err != nil || len(left) != 1 {
		t.Errorf("left beside the draft: %v, %v", left, err)
	}
	do(t, r, "hello", deploy.DraftRequest{Action: "write", Path: "behave", Content: "well"})
	if _, err := r.Service.DeployDraft(t.Context(), "hello", nil); err != nil {
		t.Errorf("the mended draft: %v", err)
	}
}

func TestDraft_WithAFaultIsParseError(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", map[string]string{"formation.afs": "schema: \"1.0.0\"\n"})
	_, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Invalid, "ParseError", "formation.afs")
	if err := os.Symlink("/etc/passwd", filepath.Join(r.Home, "formations/hello/draft/link")); err != nil {
		t.Fatal(err)
	}
	_, err = r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Invalid, "ParseError", "link is not a regular file")
	if left, _ := os.ReadDir(filepath.Join(r.Home, "tmp")); len(left) != 0 {
		t.Errorf("bundles left: %v", left)
	}
}

func TestDraft_IsNotChangedWhileItIsDeployed(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", map[string]string{"behave": "wait"})
	loading, done := make(chan struct{}), make(chan error, 1)
	go func() {
		told := false
		_, err := r.Service.DeployDraft(t.Context(), "hello", func(p deploy.Progress) {
			if p.Stage == deploy.StageHealth && !told {
				told = true
				close(loading)
			}
		})
		done <- err
	}()
	<-loading
	for _, req := range []deploy.DraftRequest{
		{Action: "write", Path: "x", Content: "y"}, {Action: "delete", Path: "behave"}, {Action: "discard"},
	} {
		_, err := r.Service.Draft(t.Context(), "hello", req)
		assertFault(t, err, fault.Conflict, "DeployConflict", "is being deployed")
	}
	_, err := r.Service.DeployDraft(t.Context(), "hello", nil)
	assertFault(t, err, fault.Conflict, "DeployConflict", "is being deployed")
	do(t, r, "hello", deploy.DraftRequest{Action: "read", Path: "behave"})
	if err := os.WriteFile(filepath.Join(r.Home, "formations/hello/state/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("deploy: %v", err)
	}
}

func TestDraft_OfAnInterruptedDeployIsKept(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", nil)
	// What a supervisor leaves that is killed between its record and its commit.
	err := r.Registry.Begin(t.Context(), registry.NewFormation{
		ID: "hello", Name: "hello", Port: r.First, Semantic: "1.2.3", SHA256: "x", Dir: "versions/1", Serial: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"versions/1", "state"} {
		if err := os.MkdirAll(filepath.Join(r.Home, "formations/hello", dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.Abandon(t)
	r.Start(t, nil)
	assertDraft(t, r, "hello", true)
	if left, _ := os.ReadDir(filepath.Join(r.Home, "formations/hello")); len(left) != 1 {
		t.Errorf("left beside the draft: %v", left)
	}
	if _, err := r.Service.DeployDraft(t.Context(), "hello", nil); err != nil {
		t.Errorf("deploy: %v", err)
	}
}

func TestDraft_GoesWithItsFormation(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	do(t, r, "hello", deploy.DraftRequest{Action: "init", Mode: "new"})
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	assertDraft(t, r, "hello", false)
	assertClean(t, r, "hello")
}

func TestDraft_DiscardedLeavesNothing(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	newDraft(t, r, "hello", nil)
	reply := do(t, r, "hello", deploy.DraftRequest{Action: "discard"})
	if reply.Draft.Exists {
		t.Error("the reply says that there is a draft")
	}
	assertClean(t, r, "hello")
	_, err := r.Service.Draft(t.Context(), "hello", deploy.DraftRequest{Action: "discard"})
	assertFault(t, err, fault.NotFound, "DraftNotFound", "")
}

func TestDraft_RefusalsCarryTheStates(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "live", nil)
	newDraft(t, r, "both", nil)
	for name, tc := range map[string]struct {
		id   string
		req  deploy.DraftRequest
		kind fault.Kind
		name string
	}{
		"bad id":           {"../x", deploy.DraftRequest{Action: "list"}, fault.Invalid, "InvalidFormationID"},
		"reserved id":      {"rpc", deploy.DraftRequest{Action: "init", Mode: "new"}, fault.Invalid, "InvalidFormationID"},
		"no action":        {"live", deploy.DraftRequest{}, fault.Invalid, "InvalidAction"},
		"unknown action":   {"both", deploy.DraftRequest{Action: "move"}, fault.Invalid, "InvalidAction"},
		"deploy":           {"both", deploy.DraftRequest{Action: "deploy"}, fault.Invalid, "InvalidAction"},
		"no mode":          {"live", deploy.DraftRequest{Action: "init"}, fault.Invalid, "InvalidMode"},
		"nothing to clone": {"nil", deploy.DraftRequest{Action: "init", Mode: "clone"}, fault.NotFound, "LiveNotFound"},
		"no draft":         {"live", deploy.DraftRequest{Action: "list"}, fault.NotFound, "DraftNotFound"},
		"second draft":     {"both", deploy.DraftRequest{Action: "init", Mode: "new"}, fault.Conflict, "DraftAlreadyExists"},
		"no file":          {"both", deploy.DraftRequest{Action: "read", Path: "x"}, fault.NotFound, "FileNotFound"},
		"bad path":         {"both", deploy.DraftRequest{Action: "delete", Path: "../draft"}, fault.Invalid, "InvalidPath"},
		"bad content":      {"both", deploy.DraftRequest{Action: "write", Path: "x", Content: "*", Encoding: "base64"}, fault.Invalid, "DecodeError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply, err := r.Service.Draft(t.Context(), tc.id, tc.req)
			assertFault(t, err, tc.kind, tc.name, "")
			if reply.Data != nil || reply.Draft.Exists != (tc.id == "both") || (reply.Live.Status != "") != (tc.id == "live") {
				t.Errorf("reply = %+v", reply)
			}
		})
	}
	for _, id := range []string{"live", "../x"} {
		err := r.Service.CheckDeployDraft(t.Context(), id)
		if name := fault.NameOf(err); name != "DraftNotFound" && name != "InvalidFormationID" {
			t.Errorf("deploy of %s: %v", id, err)
		}
	}
}

func TestDraft_WaitsForItsTurnNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	reply, err := r.Service.Draft(ctx, "hello", deploy.DraftRequest{Action: "init", Mode: "new"})
	if err != nil && fault.KindOf(err) != fault.Canceled {
		t.Errorf("reply = %+v, %v", reply, err)
	}
}

func TestDraft_DataIsThatOfTheReference(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	for _, step := range []struct {
		req  deploy.DraftRequest
		want string
	}{
		{deploy.DraftRequest{Action: "init", Mode: "new"}, `{"action":"init","mode":"new"}`},
		{deploy.DraftRequest{Action: "write", Path: "a/b", Content: "xyz"}, `{"path":"a/b","size":3,"written":true}`},
		{deploy.DraftRequest{Action: "read", Path: "a/b"}, `{"path":"a/b","content":"xyz","encoding":"utf-8"}`},
		{deploy.DraftRequest{Action: "list", Path: "a"}, `{"path":"a","entries":[{"name":"b","type":"file","size":3}]}`},
		{deploy.DraftRequest{Action: "delete", Path: "a"}, `{"path":"a","deleted":true}`},
		{deploy.DraftRequest{Action: "discard"}, `{"discarded":true}`},
	} {
		if diff := cmp.Diff(step.want, toJSON(t, do(t, r, "hello", step.req).Data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.req.Action, diff)
		}
	}
}
