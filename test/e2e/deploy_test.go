package e2e

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestDeploy_AcceptsEachSignatureLayout(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	for id, layout := range map[string]func(harness.Signing) map[string]string{
		"three-headers": harness.Signing.ThreeHeaders,
		"authorization": harness.Signing.Authorization,
	} {
		bundle := suite.Pair(t, id, model.URL()).Bundle(t, id)
		header := layout(s.Signing(http.MethodPost, "/rpc/formations", bundle))
		header["Content-Type"], header["X-Formation-ID"], header["X-Formation-Version"] = "application/gzip", id, "1.0.0"
		reply := s.HTTP.Must(harness.Request{Method: http.MethodPost, URL: s.URL + "/rpc/formations", Header: header, Body: bundle})
		port := strconv.Itoa(reply.Int("data.port"))
		reply.Want(t, http.StatusCreated, "success", "true", "data.id", id, "data.formation_id", id, "data.version", "1.0.0",
			"data.status", "running", "data.url", s.URL+"/api/"+id, "data.health_url", "http://localhost:"+port+"/v1/health")
		if pid := reply.Int("data.pid"); !harness.Alive(pid) {
			t.Errorf("process %d of %s does not exist", pid, id)
		}
		get := "/rpc/formations/" + id
		s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + get, Header: layout(s.Signing(http.MethodGet, get, nil))}).
			Want(t, http.StatusOK, "success", "true", "data.status", "running", "data.port", port)
	}
}

func TestDeploy_GivesPortsOfTheRangeAndListsTheFleet(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	one := s.Deploy("one", suite.Pair(t, "one", model.URL()))
	two := s.Deploy("two", suite.Pair(t, "two", model.URL()))
	if one.Port != s.FirstPort || two.Port != s.FirstPort+1 {
		t.Errorf("ports %d and %d, want the lowest free ones from %d on", one.Port, two.Port, s.FirstPort)
	}
	list := s.RPC(http.MethodGet, "/rpc/formations").Want(t, http.StatusOK, "success", "true", "data.total", "2",
		"data.formations.0.id", "one", "data.formations.0.status", "running", "data.formations.0.healthy", "true",
		"data.formations.1.id", "two", "data.formations.1.restart_count", "0", "data.formations.1.version.semantic", "1.0.0")
	if sum := list.Text("data.formations.0.version.current"); len(sum) != 64 {
		t.Errorf("the current version is %q, want the SHA-256 of the bundle", sum)
	}
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + "/health"}).Want(t, http.StatusOK,
		"status", "ok", "formations", "2", "data.port_pool.allocated", "2")
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: two.Own() + "/v1/health"}).Want(t, http.StatusOK,
		"status", "healthy", "formation_id", "two", "data.version", "1.0.0")
}

func TestDeploy_StreamsItsStages(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	bundle := suite.Read(t, "test/formations/valid/solo").Bundle(t, "solo")
	r := s.DeployRequest("solo", bundle)
	r.Header["Accept"] = "text/event-stream"
	frames := s.HTTP.MustStream(r).MustRest(t)
	var stages []string
	for i, f := range frames {
		if last := i == len(frames)-1; (f.Event == "complete") != last || (f.Event == "progress") == last {
			t.Fatalf("frame %d of %d is %+v", i+1, len(frames), f)
		}
		if stage := f.Text("stage"); stage != "" && !slices.Contains(stages, stage) {
			stages = append(stages, stage)
		}
	}
	want := []string{"extracting", "validating", "resolving_runtime", "spawning", "health_check"}
	if diff := cmp.Diff(want, stages); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	done := harness.Reply{Status: http.StatusOK, Body: []byte(frames[len(frames)-1].Data)}
	done.Want(t, http.StatusOK, "formation_id", "solo", "status", "running", "port", strconv.Itoa(s.FirstPort), "url", s.URL+"/api/solo")
}

func TestDeploy_RefusesAnIDThatIsTaken(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	files := suite.Pair(t, "taken", model.URL())
	f := s.Deploy("taken", files)
	pid := f.PID()
	for name, accept := range map[string]string{"JSON": "", "stream": "text/event-stream"} {
		r := s.DeployRequest("taken", files.Bundle(t, "taken"))
		r.Header["Accept"] = accept
		reply := s.HTTP.Must(r).Want(t, http.StatusConflict,
			"success", "false", "error", "ValidationError", "code", "409")
		if !strings.Contains(reply.Text("message"), "taken") {
			t.Errorf("%s: the message %q does not name the formation", name, reply.Text("message"))
		}
	}
	if now := f.PID(); now != pid {
		t.Errorf("process %d became %d", pid, now)
	}
}

func TestDelete_LeavesNothing(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("gone", suite.Pair(t, "gone", model.URL()))
	pid := f.PID()
	s.RPC(http.MethodDelete, "/rpc/formations/gone").Want(t, http.StatusOK, "success", "true", "data.id", "gone")
	f.Get().Want(t, http.StatusNotFound, "error", "FormationNotFound")
	harness.Until(t, "its process is gone", func() bool { return !harness.Alive(pid) })
	if left := s.Files("formations", "tmp"); !onlyWorkrooms(left) {
		t.Errorf("left behind: %v", left)
	}
	if _, err := s.HTTP.Do(harness.Context(t), harness.Request{Method: http.MethodGet, URL: f.Own() + "/v1/health"}); err == nil {
		t.Error("its port still answers")
	}
	again := s.Deploy("gone", suite.Pair(t, "gone", model.URL()))
	if again.Port != f.Port || again.ClientKey == f.ClientKey {
		t.Errorf("the next one of that name has port %d and the old keys: %t", again.Port, again.ClientKey == f.ClientKey)
	}
}

// onlyWorkrooms tells that nothing is left but the two empty directories of the
// supervisor itself.
func onlyWorkrooms(files []string) bool {
	for _, f := range files {
		if f != "formations/.staging" && f != "formations/.trash" {
			return false
		}
	}
	return true
}

func TestFormation_AnswersOnItsPortAndThroughTheSupervisor(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "Roses are red."}})
	f := s.Deploy("both", suite.Pair(t, "both", model.URL()))
	for name, base := range map[string]string{"own port": f.Own(), "through": f.Through()} {
		r := f.Request(harness.Chat{"message": "a poem, please"})
		r.URL = base + "/v1/chat"
		reply := s.HTTP.Must(r).Want(t, http.StatusOK, "object", "chat_response", "type", "chat.completed", "success", "true",
			"error", "null", "data.response", "Roses are red.", "data.message.content", "Roses are red.", "data.agent", "poet",
			"data.status", "completed", "data.processing_mode", "sync", "data.user_id", "ann", "data.model", "scripted")
		if id := reply.Text("request.id"); !strings.HasPrefix(id, "req_") || len(id) != len("req_")+21 {
			t.Errorf("%s: request id %q", name, id)
		}
		if reply.Int("data.usage.total_tokens") == 0 || reply.Text("data.session_id") == "" {
			t.Errorf("%s: no usage or session in %s", name, reply.Body)
		}
		r.Header["Accept"] = "text/event-stream"
		stream := s.HTTP.MustStream(r)
		frames := stream.MustRest(t)
		if text := harness.Deltas(frames); text != "Roses are red." {
			t.Errorf("%s: streamed %q", name, text)
		}
		if got := stream.Response.Header.Get("Cache-Control"); got != "no-cache" {
			t.Errorf("%s: Cache-Control %q", name, got)
		}
	}
	// Not found in front of the formation and inside it are two envelopes.
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + "/api/nobody/v1/health"}).
		Want(t, http.StatusNotFound, "success", "false", "error", "FormationNotFound", "message", "No formation with id 'nobody'")
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: f.Through() + "/v1/nowhere"}).
		Want(t, http.StatusNotFound, "object", "error", "error.code", "RESOURCE_NOT_FOUND")
}

func TestStreams_PassTheSupervisorFrameByFrame(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(fakellm.Rule{Purpose: "agent", Reply: fakellm.Reply{Text: "one two three four", Gate: "rest", GateAfter: 3}})
	f := s.Deploy("flow", suite.Pair(t, "flow", model.URL()))
	r := f.Streamed(harness.Chat{"message": "count", "agent_id": "poet"})
	r.URL = f.Through() + "/v1/chat"
	stream := s.HTTP.MustStream(r)
	// The model holds its answer after two pieces: they must be here before it goes on.
	first := harness.Deltas(stream.UntilType(t, "content"))
	first += harness.Deltas(stream.UntilType(t, "content"))
	if first != "one two t" || model.Active() != 1 {
		t.Errorf("%q arrived while %d model calls run", first, model.Active())
	}
	model.Release("rest")
	if all := first + harness.Deltas(stream.MustRest(t)); all != "one two three four" {
		t.Errorf("streamed %q", all)
	}
	if _, err := stream.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// keys returns the keys of an object in order.
func keys(v any) []string {
	object, _ := v.(map[string]any)
	return slices.Sorted(maps.Keys(object))
}
