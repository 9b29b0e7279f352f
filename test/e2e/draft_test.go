package e2e

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// at is r at another formation's door, with that one's key.
func at(r harness.Request, base, key string) harness.Request {
	_, path, _ := strings.Cut(r.URL, "/v1/")
	r.URL, r.Header = base+"/v1/"+path, maps.Clone(r.Header)
	r.Header["X-SVC-Client-Key"] = key
	return r
}

func TestDraft_ChatsThroughTheSupervisorBesideTheLiveFormation(t *testing.T) {
	t.Parallel()
	const key, soon = "client-key-of-the-draft-0123456789", "the draft speaks"
	s := suite.Start(t, harness.Options{})
	live, drafted := fakellm.Start(t, fakellm.Options{}), fakellm.Start(t, fakellm.Options{Chunks: 4})
	live.Add(answer("the live one speaks"))
	drafted.Add(answer(soon))
	f := s.Deploy("both", suite.Pair(t, "both", live.URL()))
	dir := suite.Pair(t, "both", drafted.URL()).With("server:\n  api_keys:\n    client_key: " + key + "\n").Write(t)
	dev := s.Call(http.MethodPost, "/rpc/dev/run", map[string]any{"path": dir}).
		Want(t, http.StatusOK, "formation_id", "both", "status", "running")
	door := s.URL + "/draft/both"
	ask := harness.Chat{"message": "a poem with rhymes"}

	s.HTTP.Must(at(f.Request(ask), door, key)).Want(t, http.StatusOK, "data.response", soon)
	frames := s.HTTP.MustStream(at(f.Streamed(ask), door, key)).MustRest(t)
	if last := frames[len(frames)-1]; harness.Deltas(frames) != soon || last.Event != "done" {
		t.Errorf("the draft's stream adds up to %q and ends with %+v", harness.Deltas(frames), last)
	}
	// The same as on the own port of its process, refusals included.
	for given, want := range map[string]int{key: http.StatusOK, f.ClientKey: http.StatusUnauthorized} {
		for _, base := range []string{"http://127.0.0.1:" + strconv.Itoa(dev.Int("data.port")), door} {
			if reply := s.HTTP.Must(at(f.Request(ask), base, given)); reply.Status != want {
				t.Errorf("%s answers %d, want %d: %s", base, reply.Status, want, reply.Body)
			}
		}
	}
	s.HTTP.Must(at(f.Request(ask), f.Through(), f.ClientKey)).Want(t, http.StatusOK, "data.response", "the live one speaks")

	s.Call(http.MethodPost, "/rpc/dev/stop", map[string]any{"formation_id": "both"}).Want(t, http.StatusOK, "status", "stopped")
	if reply := s.HTTP.Must(at(f.Request(ask), door, key)); reply.Status != http.StatusNotFound {
		t.Errorf("a draft that was stopped answers %d %s", reply.Status, reply.Body)
	}
	s.HTTP.Must(at(f.Request(ask), f.Through(), f.ClientKey)).Want(t, http.StatusOK)
}
