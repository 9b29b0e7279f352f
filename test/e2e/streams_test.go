package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
	"github.com/agentformation/service/test/npm"
)

// npmReaders are the packages that people read streams with, and how often
// their requests are cut: a parser only parses.
var npmReaders = []struct {
	name, module string
	reconnects   bool
}{
	{"parser", "eventsource-parser/dist/index.cjs", false},
	{"eventSource", "eventsource/dist/index.cjs", true},
	{"fetchEventSource", "@microsoft/fetch-event-source/lib/cjs/index.js", true},
}

// event is one event as a reader gave it.
type event struct{ ID, Event, Data string }

var (
	unsteady   = regexp.MustCompile(`"(timestamp|processing_time_ms)":\d+`)
	requestIDs = regexp.MustCompile(`"request_id":"[^"]*"`)
)

// sameEachTime takes out of events what differs from run to run.
func sameEachTime(events []event) []event {
	for i := range events {
		events[i].Data = unsteady.ReplaceAllString(requestIDs.ReplaceAllString(events[i].Data, `"request_id":"R"`), `"$1":0`)
	}
	return events
}

func TestStreams_NpmReadersReadAlikeAndAReconnectRepeatsNoTurn(t *testing.T) {
	t.Parallel()
	model := fakellm.Start(t, fakellm.Options{})
	model.Add(
		fakellm.Rule{User: "tell", Reply: fakellm.Reply{Text: "Zeile eins\nund „zwei“: fünf Äpfel\r\n\n: no comment\ndata: nor this", Chunks: 12, ChunkDelayMS: 3}},
		fakellm.Rule{User: "fail", Reply: fakellm.Reply{Status: 400, Message: "no\nmore\r\nwords"}},
	)
	a := suite.Alone(t, suite.Pair(t, "streams", model.URL()).Write(t), t.TempDir())
	for _, message := range []string{"tell", "fail"} {
		var want []event
		turn := 0
		read := func(reader string, cut int, how func(t *testing.T, body []byte) (events []event, requests int)) {
			t.Run(message+"/"+reader+"/"+strconv.Itoa(cut), func(t *testing.T) {
				before := model.Count()
				turn++
				body, err := json.Marshal(harness.Chat{
					"message": message, "agent_id": "poet", "session_id": fmt.Sprint("s", turn), "request_id": fmt.Sprint(message, turn), "stream": true,
				})
				if err != nil {
					t.Fatal(err)
				}
				events, requests := how(t, body)
				for i := range events {
					events[i].Data = strings.ReplaceAll(events[i].Data, fmt.Sprintf(`"s%d"`, turn), `"S"`)
				}
				if events = sameEachTime(events); want == nil {
					want = events
				}
				if diff := cmp.Diff(want, events); diff != "" {
					t.Errorf("not what others read:\n%s", diff)
				}
				if asked := model.Count() - before; asked != 1 {
					t.Errorf("the model was asked %d times", asked)
				}
				if again := min(cut, 1); requests != 1+again {
					t.Errorf("%d requests", requests)
				}
			})
		}
		read("harness", 0, func(t *testing.T, body []byte) (events []event, requests int) {
			s, err := harness.NewClient(t).Stream(harness.Context(t), harness.Request{
				Method: http.MethodPost, URL: a.URL + "/v1/chat", Body: json.RawMessage(body),
				Header: map[string]string{"X-SVC-Client-Key": a.ClientKey, "X-SVC-User-Id": "ann"},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, f := range s.MustRest(t) {
				if !f.Comment {
					events = append(events, event{ID: strconv.Itoa(f.ID), Event: f.Event, Data: f.Data})
				}
			}
			return events, 1
		})
		for _, r := range npmReaders {
			cuts := []int{0}
			if r.reconnects {
				cuts = []int{0, 1, 3}
			}
			for _, cut := range cuts {
				read(r.name, cut, func(t *testing.T, body []byte) ([]event, int) {
					return nodeReads(t, r.name, npm.Module(t, r.module), a, body, cut)
				})
			}
		}
		if len(want) < 4 || want[len(want)-1].Event != "done" {
			t.Fatalf("%s: %+v", message, want)
		}
	}
}

// nodeReads has a package read the stream of a chat.
func nodeReads(t *testing.T, reader, module string, a *harness.Alone, body []byte, cut int) ([]event, int) {
	t.Helper()
	headers, err := json.Marshal(map[string]string{"X-SVC-Client-Key": a.ClientKey, "X-SVC-User-Id": "ann"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(harness.Context(t), "node", filepath.Join("testdata", "streams.cjs"),
		reader, module, a.URL+"/v1/chat", string(headers), string(body), strconv.Itoa(cut))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var read struct {
		Events   []event
		Requests int
	}
	if err := json.Unmarshal(out, &read); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return read.Events, read.Requests
}
