package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/telemetry"
)

var (
	asClient = []string{"X-SVC-Client-Key", clientKey}
	asAdmin  = []string{"X-SVC-Admin-Key", adminKey}
)

func asUser(id string) []string { return append([]string{"X-SVC-User-Id", id}, asClient...) }

// watcher reads the frames of a stream of events.
type watcher struct {
	t     *testing.T
	lines *bufio.Scanner
}

// watch opens a stream and waits until it gets events.
func (d *door) watch(t *testing.T, path string, header ...string) *watcher {
	t.Helper()
	res := d.send(t, "GET", path, "", header...)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		body, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %d %v %s", path, res.StatusCode, res.Header, body)
	}
	w := &watcher{t, bufio.NewScanner(res.Body)}
	w.lines.Buffer(nil, 1<<20)
	if first := w.line(); first != ": keepalive" {
		t.Fatalf("%s begins with %q", path, first)
	}
	return w
}

func (w *watcher) line() string {
	w.t.Helper()
	for w.lines.Scan() {
		if text := w.lines.Text(); text != "" {
			return text
		}
	}
	return "<end>"
}

// next returns the next frame as "event data", without its time.
func (w *watcher) next() string {
	w.t.Helper()
	event := ""
	for {
		line := w.line()
		switch {
		case line == ": keepalive":
		case strings.HasPrefix(line, "event: "):
			event = line[len("event: "):] + " "
		case strings.HasPrefix(line, "data: "):
			return event + strings.ReplaceAll(line[len("data: "):], fmt.Sprintf(`"timestamp":%d,`, now.UnixMilli()), "")
		default:
			return line
		}
	}
}

func (d *door) say(t *testing.T, user, session, message string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"message": message, "session_id": session, "request_id": "r-" + user + "-" + session})
	if err != nil {
		t.Fatal(err)
	}
	res := d.send(t, "POST", "/v1/chat", string(body), asUser(user)...)
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
}

func TestEvents_ShowAUserWhatHappensToIt(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	ann, one, all := d.watch(t, "/v1/events", asUser("ann")...), d.watch(t, "/v1/events/s2", asUser("ann")...), d.watch(t, "/v1/events", asAdmin...)
	d.say(t, "bob", "s2", "hello")
	d.say(t, "ann", "s1", "hello")
	d.say(t, "ann", "s2", "fail")
	d.hub.Emit(telemetry.Event{Name: "memory.projection.lagging", UserID: "ann", Message: "not of a family that is shown"})
	d.hub.Emit(telemetry.Event{Name: "task.done", UserID: "ann", SessionID: "s2", Message: "a\nb"})

	frame := func(typ, message, user, session string) string {
		return fmt.Sprintf(`{"type":%q,"message":%q,"session_id":%q,"request_id":"r-%s-%s"}`, typ, message, session, user, session)
	}
	failed := "The turn failed: model demo/one: the provider limits the rate of requests"
	const works = "Agent writer is working"
	s1 := []string{frame("chat.started", "The turn has begun", "ann", "s1"), frame("chat.progress", works, "ann", "s1"), frame("chat.completed", "The turn ended after 0s", "ann", "s1")}
	s2 := []string{frame("chat.started", "The turn has begun", "ann", "s2"), frame("chat.failed", failed, "ann", "s2")}
	bob := []string{frame("chat.started", "The turn has begun", "bob", "s2"), frame("chat.progress", works, "bob", "s2"), frame("chat.completed", "The turn ended after 0s", "bob", "s2")}
	task := `{"type":"task.done","message":"a\nb","session_id":"s2","request_id":""}`
	for name, c := range map[string]struct {
		w    *watcher
		want []string
	}{
		"a user":         {ann, append(append(append([]string{}, s1...), s2...), task)},
		"one session":    {one, append(append([]string{}, s2...), task)},
		"administrators": {all, append(append(append(append([]string{}, bob...), s1...), s2...), task)},
	} {
		var got []string
		for range c.want {
			got = append(got, c.w.next())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestLogs_ShowWhatTheFiltersLetThrough(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	events := []telemetry.Event{
		{Level: telemetry.Debug, Name: "log", Message: "0"},
		{Level: telemetry.Warning, Name: "budget.warning", UserID: "ann", Message: "1"},
		{Name: "chat.started", UserID: "ann", SessionID: "s", RequestID: "r", AgentID: "writer", Message: "2"},
		{Level: telemetry.Error, Name: "chat.failed", UserID: "bob", RequestID: "r2", Message: "3"},
		{Level: telemetry.Critical, Name: "end", UserID: "ann", SessionID: "s", RequestID: "r", AgentID: "writer", Message: "end"},
	}
	cases := map[string]struct {
		header []string
		want   string
	}{
		"level=debug":                           {asAdmin, "0 1 2 3 end"},
		"level=WARNING":                         {asAdmin, "1 3 end"},
		"level=CRITICAL":                        {asAdmin, "end"},
		"user_id=ann":                           {asAdmin, "1 2 end"},
		"user_id=ann&level=INFO":                {asClient, "1 2 end"},
		"user_id=ann&event_type=*a*":            {asUser("ann"), "1 2"},
		"session_id=s":                          {asAdmin, "2 end"},
		"request_id=r":                          {asAdmin, "2 end"},
		"agent_id=writer&event_type=chat.*":     {asAdmin, "2"},
		"event_type=*":                          {asAdmin, "0 1 2 3 end"},
		"event_type=*.*a*ed":                    {asAdmin, "2 3"},
		"event_type=chat.":                      {asAdmin, ""},
		"event_type=chat.failed&user_id=%20bob": {asAdmin, "3"},
	}
	watchers := make(map[string]*watcher, len(cases))
	for query, c := range cases {
		watchers[query] = d.watch(t, "/v1/logs?"+query, c.header...)
	}
	for _, e := range events {
		d.hub.Emit(e)
	}
	d.hub.Dismiss()
	for query, w := range watchers {
		var got []string
		for frame := w.next(); frame != "<end>"; frame = w.next() {
			text, found := strings.CutPrefix(frame, "log ")
			var f struct{ Message string }
			if err := json.Unmarshal([]byte(text), &f); err != nil || !found {
				t.Fatalf("%s: %q", query, frame)
			}
			got = append(got, f.Message)
		}
		if s := strings.Join(got, " "); s != cases[query].want {
			t.Errorf("%s: got %q, want %q", query, s, cases[query].want)
		}
	}
}

func TestLogs_AFrameTellsEverything(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	w := d.watch(t, "/v1/logs?user_id=ann", asClient...)
	d.hub.Emit(telemetry.Event{Level: telemetry.Warning, Name: "a.b", UserID: "ann", SessionID: "s", RequestID: "r", AgentID: "g", Message: "m", Data: map[string]any{"n": 1}})
	want := `log {"level":"WARNING","event_type":"a.b","user_id":"ann","session_id":"s","request_id":"r","agent_id":"g","message":"m","data":{"n":1}}`
	if got := w.next(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestLogs_RefusesWhatItMayNotShow(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for _, c := range []struct {
		query  string
		header []string
		status int
		text   string
	}{
		{"", asAdmin, 400, "Name at least one filter: user_id, session_id, request_id, agent_id, level, event_type"},
		{"?color=red", asAdmin, 400, "at least one filter"},
		{"?user_id=%20", asClient, 400, "at least one filter"},
		{"?level=loud", asAdmin, 400, "level is 'loud': want DEBUG, INFO, WARNING, ERROR or CRITICAL"},
		{"?level=INFO", asClient, 403, "filter by user_id"},
		{"?level=INFO", asUser("ann"), 403, "filter by user_id"},
		{"?user_id=bob", asUser("ann"), 403, "own user only"},
		{"?user_id=" + strings.Repeat("x", 300), asClient, 400, "longer than 256 bytes"},
		{"?user_id=ann", nil, 401, "Missing client key"},
	} {
		res := d.send(t, "GET", "/v1/logs"+c.query, "", c.header...)
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != c.status || !strings.Contains(string(body), c.text) {
			t.Errorf("%s: %d %s", c.query, res.StatusCode, body)
		}
	}
	res := d.send(t, "GET", "/v1/events", "", asClient...)
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("events of nobody in particular: %d", res.StatusCode)
	}
}

func TestEvents_ALosingReaderIsTold(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	logs, events := d.watch(t, "/v1/logs?level=INFO", asAdmin...), d.watch(t, "/v1/events", asAdmin...)
	// Readers that take nothing for a while: their buffers and those of their
	// connections are full, and who emits does not notice.
	long := strings.Repeat("x", 2000)
	began := time.Now()
	for range 20_000 {
		d.hub.Emit(telemetry.Event{Name: "chat.x", Message: long})
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("emitting took %v", took)
	}
	told := func(w *watcher, prefix string) bool {
		for range 20_000 {
			if frame := w.next(); strings.HasPrefix(frame, prefix) {
				return strings.Contains(frame, " events were lost")
			}
		}
		return false
	}
	if !told(logs, `error {"error":true,"message":"`) || !told(events, `{"error":true,"message":"`) {
		t.Error("nobody was told")
	}
}

func TestEvents_EndWhenTheProcessHandsOver(t *testing.T) {
	t.Parallel()
	var draining atomic.Bool
	d := openDoor(t, doorOptions{draining: draining.Load})
	w := d.watch(t, "/v1/events", asAdmin...)
	d.hub.Dismiss()
	if got := w.next(); got != "<end>" {
		t.Errorf("got %q", got)
	}
	draining.Store(true)
	res := d.send(t, "GET", "/v1/events", "", asAdmin...)
	if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%d, %v", res.StatusCode, err)
	}
	if d.hub.Listening() {
		t.Error("an observer is left")
	}
}

func TestTrace_OfATurnBelongsToItsUser(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	d.say(t, "ann", "s", "hello")
	get := func(id string, header ...string) (int, string) {
		res := d.send(t, "GET", "/v1/requests/"+id+"/trace", "", header...)
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	for _, header := range [][]string{asUser("ann"), asAdmin} {
		status, body := get("r-ann-s", header...)
		var got struct {
			Object, Type string
			Data         struct {
				RequestID string `json:"request_id"`
				Spans     []struct {
					Kind, Name, Status string
					Attributes         map[string]any
				}
				Totals map[string]any
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s: %v", status, body, err)
		}
		if got.Object != "trace" || got.Type != "request.trace.retrieved" || got.Data.RequestID != "r-ann-s" || len(got.Data.Spans) != 2 {
			t.Fatalf("%s", body)
		}
		turn, memory := got.Data.Spans[0], got.Data.Spans[1]
		if turn.Kind != "turn" || turn.Attributes["status"] != "completed" || turn.Attributes["agent_id"] != "writer" || memory.Kind != "memory" || memory.Attributes["query_chars"] != 5.0 {
			t.Errorf("%s", body)
		}
		if mode := turn.Attributes["mode"]; mode != "sync" {
			t.Errorf("attributes %v", turn.Attributes)
		}
		if len(got.Data.Totals) != 5 || got.Data.Totals["cost"] != nil {
			t.Errorf("totals %v", got.Data.Totals)
		}
	}
	if status, body := get("r-ann-s", asUser("bob")...); status != http.StatusForbidden || !strings.Contains(body, `"FORBIDDEN"`) {
		t.Errorf("another user: %d %s", status, body)
	}
	if status, body := get("nothing", asUser("ann")...); status != http.StatusNotFound || !strings.Contains(body, `"REQUEST_NOT_FOUND"`) {
		t.Errorf("an unknown request: %d %s", status, body)
	}
}

func TestTrace_OfARunningTurn(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	ended := make(chan struct{})
	go func() { defer close(ended); d.say(t, "ann", "s", "wait for it") }()
	<-d.script.started
	res := d.send(t, "GET", "/v1/requests/r-ann-s/trace", "", asUser("ann")...)
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"kind": "memory"`) && !strings.Contains(string(body), `"kind":"memory"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	close(d.script.release)
	<-ended
}

func TestMetrics_AreForThoseWithTheAdminKey(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	d.say(t, "ann", "s", "hello")
	for _, header := range [][]string{asAdmin, {"Authorization", "Bearer " + adminKey}} {
		res := d.send(t, "GET", "/metrics", "", header...)
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" ||
			!strings.Contains(string(body), "formation_turns_total{status=\"completed\"} 1\n") {
			t.Errorf("%v: %d %v\n%s", header, res.StatusCode, res.Header, body)
		}
	}
	for _, header := range [][]string{nil, asClient, {"Authorization", "Bearer wrong"}, {"Authorization", adminKey}} {
		if res := d.send(t, "GET", "/metrics", "", header...); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%v: %d", header, res.StatusCode)
		}
	}
}
