package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestObserve_ATurnIsSeenByAllWhoLookOnAndAnUpdateSendsThemToTheNewProcess(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent.Write(body)
	}))
	defer collector.Close()
	s := suite.Start(t, harness.Options{
		Formations: quickUpdates + "  env_allow: [OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_BSP_SCHEDULE_DELAY]\n",
		Env:        []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=20"},
	})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	files := suite.Pair(t, "seen", model.URL())
	f := s.Deploy("seen", files)
	c := harness.NewClient(t)
	look := func(url, path string, header ...string) harness.Request {
		r := f.Read(path)
		r.URL = url + path
		for i := 0; i < len(header); i += 2 {
			r.Header[header[i]] = header[i+1]
		}
		return r
	}
	admin := []string{"X-SVC-Admin-Key", f.AdminKey}
	streams := map[string]*harness.Stream{
		"own":     c.MustStream(look(f.Own(), "/v1/events", admin...)),
		"through": c.MustStream(look(f.Through(), "/v1/events", admin...)),
		"logs":    c.MustStream(look(f.Through(), "/v1/logs?event_type=chat.*", admin...)),
	}
	id := f.Say(harness.Chat{"message": "hello", "agent_id": "poet"}).Text("data.request_id")

	for name, stream := range streams {
		for {
			frame := stream.Frame(t)
			if frame.Text("request_id") != id {
				t.Errorf("%s: %s", name, frame.Data)
			}
			if frame.Text("type") == "chat.completed" || frame.Text("event_type") == "chat.completed" {
				break
			}
		}
	}
	trace := c.Must(look(f.Through(), "/v1/requests/"+id+"/trace", admin...))
	trace.Want(t, http.StatusOK, "object", "trace", "data.totals.model_calls", "1", "data.spans.0.kind", "turn", "data.spans.0.attributes.status", "completed")
	metrics := c.Must(look(f.Through(), "/metrics", "Authorization", "Bearer "+f.AdminKey))
	if text := string(metrics.Body); metrics.Status != http.StatusOK || !strings.Contains(text, `formation_turns_total{status="completed"} 1`) {
		t.Errorf("%d\n%s", metrics.Status, text)
	}
	harness.Until(t, "the collector has the turn", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(sent.String(), "invoke_agent poet") && strings.Contains(sent.String(), id)
	})

	s.Update("seen", files.Version("2.0.0")).Want(t, http.StatusOK, "data.version", "2.0.0")
	for name, stream := range streams {
		if rest, err := stream.Rest(); err != nil || len(rest) > 0 {
			t.Errorf("%s: %d frames more, %v", name, len(rest), err)
		}
	}
	again := c.MustStream(look(f.Through(), "/v1/events", admin...))
	f.Say(harness.Chat{"message": "hello", "agent_id": "poet"})
	if frame := again.Frame(t); frame.Text("type") != "chat.started" {
		t.Errorf("after the update: %s", frame.Data)
	}
	again.Close()
}
