package mcpserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/openapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// FuzzRead looks for a body that gets in without a key although the protocol's
// server would answer it.
func FuzzRead(f *testing.F) {
	for _, body := range []string{
		"", "[]", "{}", "7", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"chat"}}`, "[[", `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add([]byte(body))
	}
	flights := new(flights)
	f.Fuzz(func(t *testing.T, body []byte) {
		messages, err := read(body)
		if err != nil && NeedsKey(body) {
			t.Error("what can't be read needs no key")
		}
		for _, m := range messages {
			if !open(m.Method) && !NeedsKey(body) {
				t.Errorf("%s needs a key", m.Method)
			}
			flights.takeBack("s", m)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("id: 7\nevent: log\ndata: {\"a\":1}\n\n: keepalive\n\ndata: a\ndata: b\n\n"), 3)
	f.Add([]byte("data\n\n\n\n"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		whole, parts := &frames{most: 5, stop: func() {}}, &frames{most: 5, stop: func() {}}
		errWhole := whole.take(stream)
		cut = min(max(cut, 0), len(stream))
		err := parts.take(stream[:cut])
		if err == nil {
			err = parts.take(stream[cut:])
		}
		if !cmp.Equal(whole.found, parts.found) || !errors.Is(err, errWhole) || len(whole.found) > 5 {
			t.Errorf("%v %v\n%v %v", whole.found, errWhole, parts.found, err)
		}
	})
}

func TestFrames_AreReadAsTheFormatSays(t *testing.T) {
	t.Parallel()
	f := &frames{most: 10, stop: func() {}}
	if err := f.take([]byte(": hello\n\nid: 7\nevent: log\ndata: {\"a\":1}\n\ndata: a\ndata: b\n\nevent: none\n\ndata: half")); err != nil {
		t.Fatal(err)
	}
	want := []event{{ID: "7", Event: "log", Data: []byte(`{"a":1}`)}, {Data: []byte(`"a\nb"`)}}
	if diff := cmp.Diff(want, f.found); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
}

func TestPath_ValuesStayInTheirSegment(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"a": "a", "a/b": "a%2Fb", "..": "%2E%2E", ".": "%2E", "a b?c#d": "a%20b%3Fc%23d", "%2e%2e": "%252e%252e", "ä": "%C3%A4",
	} {
		path, bad := pathOf("/v1/x/:id/y", map[string]string{"id": value})
		if path != "/v1/x/"+want+"/y" || len(bad) > 0 {
			t.Errorf("%q: %s %v", value, path, bad)
		}
		if u, err := url.Parse(path); err != nil || strings.Count(u.EscapedPath(), "/") != 4 {
			t.Errorf("%q: %v %v", value, u, err)
		}
	}
	if _, bad := pathOf("/v1/:a/:b", map[string]string{"a": "x"}); len(bad) != 1 || bad[0].Field != "b" {
		t.Errorf("%v", bad)
	}
}

// front is a server with one tool, which does what api does.
func front(t *testing.T, pace time.Duration, api http.HandlerFunc) string {
	t.Helper()
	s, err := New(Config{
		Name: "test", API: api, UserHeader: "X-SVC-User-ID", NewID: func(p string) string { return p + "1" }, Pace: pace, Log: zerolog.Nop(),
		Fault: func(err error) []byte { return fmt.Appendf(nil, `{"message":%q}`, fault.From(err).Message) },
		Routes: func() []Route {
			return []Route{{Tool: "act", Route: openapi.Route{Method: "POST", Path: "/act"}}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.Serve(w, r, Request{Body: body, Keyed: r.Header.Get("X-Keyed") != "no"})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func post(t *testing.T, address, body string, header ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const act = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}`

func TestServe_FillsTheSilenceOfALongCall(t *testing.T) {
	t.Parallel()
	alive := make(chan struct{})
	address := front(t, time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		<-alive
		_, _ = w.Write([]byte(`{"done":true}`))
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(act))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req) // the header comes before the answer
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, len(": keepalive\n\n"))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != ": keepalive\n\n" || res.Header.Get("Content-Type") != eventStream {
		t.Errorf("%q %v %v", first, err, res.Header)
	}
	close(alive)
	rest, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(rest), `"structuredContent":{"done":true}`) {
		t.Errorf("%q %v", rest, err)
	}
}

func TestServe_APanicOfTheAPIEndsNoProcess(t *testing.T) {
	t.Parallel()
	address := front(t, 0, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if text := post(t, address, act); !strings.Contains(text, "internal error") || !strings.Contains(text, `"isError":true`) {
		t.Error(text)
	}
}

// TestServe_KeepsWhatNeedsAKeyFromWhoHasNone is about a body that NeedsKey took
// for something else than the protocol's server does.
func TestServe_KeepsWhatNeedsAKeyFromWhoHasNone(t *testing.T) {
	t.Parallel()
	address := front(t, 0, func(http.ResponseWriter, *http.Request) { t.Error("it was called") })
	if text := post(t, address, act, "X-Keyed", "no"); !strings.Contains(text, "this needs a key") {
		t.Error(text)
	}
	listen := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	if text := post(t, address, listen, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen"); !strings.Contains(text, "-32601") {
		t.Error(text)
	}
}

func TestNew_WantsWhatItStandsOn(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Name: "x"}); err == nil {
		t.Error("made of nothing")
	}
}
