package fakellm_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/agentformation/service/test/fakellm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// caller talks to a started server as any HTTP client would.
type caller struct {
	t      testing.TB
	fake   *fakellm.Server
	client *http.Client
}

func start(t testing.TB, opts fakellm.Options, rules ...fakellm.Rule) caller {
	t.Helper()
	fake := fakellm.Start(t, opts)
	fake.Add(rules...)
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tr.CloseIdleConnections)
	return caller{t: t, fake: fake, client: &http.Client{Transport: tr, Timeout: 30 * time.Second}}
}

func (c caller) do(ctx context.Context, method, path, body string) (*http.Response, error) {
	c.t.Helper()
	url := strings.TrimSuffix(c.fake.URL(), "/v1") + path
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
	return c.client.Do(req)
}

func (c caller) send(method, path, body string) (int, string) {
	c.t.Helper()
	res, err := c.do(c.t.Context(), method, path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func chatBody(user string, stream bool) string {
	return fmt.Sprintf(`{"model":"m1","stream":%t,"stream_options":{"include_usage":true},"messages":[{"role":"system","content":"s"},{"role":"user","content":%q}]}`, stream, user)
}

// say makes a plain chat call and returns the text of the answer.
func (c caller) say(user string) string {
	c.t.Helper()
	status, body := c.send(http.MethodPost, "/v1/chat/completions", chatBody(user, false))
	var reply struct {
		Choices []struct {
			Message struct{ Content string }
		}
		Error struct{ Message string }
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		c.t.Fatalf("%s: %v", body, err)
	}
	if status != http.StatusOK {
		return fmt.Sprintf("%d %s", status, reply.Error.Message)
	}
	return reply.Choices[0].Message.Content
}

func TestServer_AnswersFromTheFirstRuleThatMatches(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{},
		fakellm.Rule{User: "^one", Times: 1, Reply: fakellm.Reply{Text: "first"}},
		fakellm.Rule{User: "^one", Reply: fakellm.Reply{Text: "second"}},
		fakellm.Rule{Model: "other", Reply: fakellm.Reply{Text: "wrong model"}},
		fakellm.Rule{Purpose: "route", Reply: fakellm.Reply{Text: "wrong purpose"}},
		fakellm.Rule{Last: "tool", Reply: fakellm.Reply{Text: "wrong role"}},
		fakellm.Rule{User: "fail", Reply: fakellm.Reply{Status: 418, Message: "teapot"}},
	)
	got := []string{c.say("one"), c.say("one"), c.say("one"), c.say("two"), c.say("fail"), c.say("a \"quote\"\n🙂")}
	want := []string{"first", "second", "second", "Fake answer to: two", "418 teapot", "Fake answer to: a \"quote\"\n🙂"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestServer_KeepsARecord(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{Record: 2})
	for _, text := range []string{"a", "b", "c"} {
		c.say(text)
	}
	calls := c.fake.Calls()
	if len(calls) != 2 || calls[0].User != "b" || calls[1].Body != chatBody("c", false) || calls[1].Authorization != "Bearer k" || calls[1].Model != "m1" {
		t.Errorf("record %+v", calls)
	}
	if c.fake.Count() != 3 {
		t.Errorf("count %d, want 3", c.fake.Count())
	}
	_, body := c.send(http.MethodGet, "/_fake/calls?count=3&bodies=0", "")
	var seen struct {
		Count, Active int
		Calls         []fakellm.Call
	}
	if err := json.Unmarshal([]byte(body), &seen); err != nil || seen.Count != 3 || len(seen.Calls) != 2 || seen.Calls[0].Body != "" || seen.Calls[0].User != "b" {
		t.Errorf("over HTTP: %s, error %v", body, err)
	}
	c.fake.Reset()
	if c.fake.Count() != 0 || len(c.fake.Calls()) != 0 {
		t.Error("a reset keeps calls")
	}
}

func TestServer_IsScriptedOverHTTP(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{})
	if status, body := c.send(http.MethodPost, "/_fake/rules", `[{"user":"x","reply":{"text":"scripted"}},{"user":"y","reply":{"text":"too"}}]`); status != http.StatusOK {
		t.Fatal(body)
	}
	if a, b := c.say("x"), c.say("y"); a != "scripted" || b != "too" {
		t.Errorf("answers %q and %q", a, b)
	}
	for _, wrong := range []string{`{"usr":"x"}`, `{"user":"("}`, `[`, `7`} {
		if status, body := c.send(http.MethodPost, "/_fake/rules", wrong); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", wrong, status, body)
		}
	}
	if status, _ := c.send(http.MethodPost, "/_fake/reset", ""); status != http.StatusOK || c.say("x") != "Fake answer to: x" {
		t.Error("the reset did not work")
	}
	if status, _ := c.send(http.MethodGet, "/nowhere", ""); status != http.StatusNotFound {
		t.Errorf("an unknown path: %d", status)
	}
}

func TestServer_HoldsRepliesAtAGate(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{}, fakellm.Rule{User: "held", Reply: fakellm.Reply{Text: "free", Gate: "g"}})
	answers := make(chan string, 2)
	for range 2 {
		go func() { answers <- c.say("held") }()
	}
	if err := c.fake.WaitActive(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := c.say("other"); got != "Fake answer to: other" {
		t.Errorf("another call: %q", got)
	}
	select {
	case got := <-answers:
		t.Fatalf("passed the closed gate: %q", got)
	default:
	}
	if status, _ := c.send(http.MethodPost, "/_fake/release?gate=g", ""); status != http.StatusOK {
		t.Fatal(status)
	}
	if a, b, late := <-answers, <-answers, c.say("held"); a != "free" || b != "free" || late != "free" {
		t.Errorf("answers %q, %q, %q", a, b, late)
	}
}

func TestServer_StreamsFrames(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{Chunks: 3}, fakellm.Rule{User: "frames", Reply: fakellm.Reply{Frames: []string{"a", "b"}, NoDone: true}})
	_, body := c.send(http.MethodPost, "/v1/chat/completions", chatBody("hello", true))
	frames := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	if len(frames) != 7 { // role, three deltas, finish, usage, [DONE]
		t.Errorf("%d frames:\n%s", len(frames), body)
	}
	if frames[len(frames)-1] != "data: [DONE]" || !strings.Contains(frames[5], `"usage"`) {
		t.Errorf("the end is %q", frames[5:])
	}
	if _, body = c.send(http.MethodPost, "/v1/chat/completions", chatBody("frames", true)); body != "data: a\n\ndata: b\n\n" {
		t.Errorf("frames %q", body)
	}
}

func TestServer_BreaksAsScripted(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{},
		fakellm.Rule{User: "reset", Reply: fakellm.Reply{Reset: true}},
		fakellm.Rule{User: "cut", Reply: fakellm.Reply{Text: "abcdef", CutAfter: 2}},
		fakellm.Rule{User: "bytes", Reply: fakellm.Reply{Text: "abcdef", CutBytes: 10}},
		fakellm.Rule{User: "stall", Reply: fakellm.Reply{Text: "abcdef", StallAfter: 1}},
	)
	if res, err := c.do(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody("reset", false)); err == nil {
		_ = res.Body.Close()
		t.Error("no reset")
	} else if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("reset: %v", err)
	}
	for text, want := range map[string]string{"cut": `"content":"a`, "bytes": "data: {\"id"} {
		res, err := c.do(t.Context(), http.MethodPost, "/v1/chat/completions", chatBody(text, true))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(body), want) || strings.Contains(string(body), "DONE") {
			t.Errorf("%s: %q, error %v", text, body, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", chatBody("stall", true))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "data: ") {
		t.Errorf("before the stall: %q, error %v", line, err)
	}
	cancel()
	_ = res.Body.Close()
	if err := c.fake.WaitActive(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

func TestServer_RoutesToTheDescriptionThatFits(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{}, fakellm.Rule{Purpose: "route", User: "overridden", Reply: fakellm.Reply{Text: `{"agent_id":"x"}`}})
	route := func(user string) string {
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"Agents:\n\n- agent_id: baker\n  description: bakes bread and cakes\n- agent_id: smith\n  description: works iron and steel\n"},{"role":"user","content":%q}],
			"response_format":{"type":"json_schema","json_schema":{"name":"route","schema":{"type":"object","properties":{"agent_id":{"type":"string","enum":["baker","smith"]},"sure":{"type":"boolean"}}}}}}`, user)
		_, reply := c.send(http.MethodPost, "/v1/chat/completions", body)
		var out struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(reply), &out); err != nil || len(out.Choices) != 1 {
			t.Fatalf("%s: %v", reply, err)
		}
		return out.Choices[0].Message.Content
	}
	for user, want := range map[string]string{
		"How do I bake a cake?":           `{"agent_id":"baker","sure":false}`,
		"Message:\nIs steel harder?":      `{"agent_id":"smith","sure":false}`,
		"the smith, please":               `{"agent_id":"smith","sure":false}`,
		"nothing that fits":               `{"agent_id":"baker","sure":false}`,
		"by \"smith\"\n\nMessage:\nagain": `{"agent_id":"smith","sure":false}`,
		"overridden":                      `{"agent_id":"x"}`,
	} {
		if got := route(user); got != want {
			t.Errorf("%q: %s, want %s", user, got, want)
		}
	}
}

func TestServer_EmbedsLikeTextsClose(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{}, fakellm.Rule{User: "limited", Reply: fakellm.Reply{Status: 429, Headers: map[string]string{"Retry-After": "1"}}})
	_, body := c.send(http.MethodPost, "/v1/embeddings", `{"model":"e","dimensions":64,"input":["the bakery bakes bread","bread from the bakery","steel and iron"]}`)
	var reply struct {
		Data []struct {
			Index     int
			Embedding []float64
		}
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil || len(reply.Data) != 3 || len(reply.Data[2].Embedding) != 64 {
		t.Fatalf("%.200s, error %v", body, err)
	}
	dot := func(a, b int) (sum float64) {
		for i, v := range reply.Data[a].Embedding {
			sum += v * reply.Data[b].Embedding[i]
		}
		return sum
	}
	if dot(0, 0) < 0.999 || dot(0, 0) > 1.001 || dot(0, 1) < dot(0, 2)+0.2 {
		t.Errorf("itself %.3f, alike %.3f, other %.3f", dot(0, 0), dot(0, 1), dot(0, 2))
	}
	for _, c2 := range []struct {
		body string
		want int
	}{
		{`{"model":"e","input":"limited"}`, http.StatusTooManyRequests},
		{`{"model":"e","input":[]}`, http.StatusBadRequest},
		{`{"model":"e","input":"x","dimensions":-1}`, http.StatusBadRequest},
		{`{"input":"x"}`, http.StatusBadRequest},
		{`{"model":"e","input":"x","encoding_format":"base64"}`, http.StatusOK},
	} {
		if status, body := c.send(http.MethodPost, "/v1/embeddings", c2.body); status != c2.want {
			t.Errorf("%s: %d %s", c2.body, status, body)
		}
	}
}

func TestServer_RefusesWhatNoModelServerTakes(t *testing.T) {
	t.Parallel()
	c := start(t, fakellm.Options{Key: "right"})
	if status, _ := c.send(http.MethodPost, "/v1/chat/completions", chatBody("x", false)); status != http.StatusUnauthorized {
		t.Errorf("a wrong key: %d", status)
	}
	c = start(t, fakellm.Options{})
	for _, body := range []string{"", "{", `{"model":"m"}`, `{"messages":[{"role":"user","content":"x"}]}`} {
		if status, _ := c.send(http.MethodPost, "/v1/chat/completions", body); status != http.StatusBadRequest {
			t.Errorf("%q: %d", body, status)
		}
	}
	if status, _ := c.send(http.MethodGet, "/v1/chat/completions", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", status)
	}
	if c.fake.Count() != 4 || c.fake.Active() != 0 {
		t.Errorf("count %d, active %d", c.fake.Count(), c.fake.Active())
	}
}

// BenchmarkServer shows what the fake costs: benchmarks of the product carry
// it. The caller writes prepared bytes, so nearly all CPU time is the server's.
func BenchmarkServer(b *testing.B) {
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%t", stream), func(b *testing.B) {
			fake := fakellm.Start(b, fakellm.Options{Record: -1})
			conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(fake.URL(), "http://"), "/v1"))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			body := chatBody(strings.Repeat("some words of a question ", 12), stream)
			request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: fake\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			in := make([]byte, 64<<10)
			end := []byte("}}}")
			if stream {
				end = []byte("\r\n0\r\n\r\n")
			}
			before := cpuTime(b)
			for b.Loop() {
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				for n := 0; ; {
					k, err := conn.Read(in[n:])
					if err != nil {
						b.Fatal(err)
					}
					if n += k; bytes.HasSuffix(in[:n], end) {
						break
					}
				}
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
