package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Client sends requests and keeps all replies, so that a test can search them.
type Client struct {
	tb   testing.TB
	http *http.Client

	mu   sync.Mutex // guards seen
	seen bytes.Buffer
}

// NewClient returns a client whose connections are closed with the test.
func NewClient(tb testing.TB) *Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	tb.Cleanup(tr.CloseIdleConnections)
	return &Client{tb: tb, http: &http.Client{Transport: tr, Timeout: 2 * Patience}}
}

// Fresh returns a client that opens a connection for each request.
func Fresh(tb testing.TB) *Client {
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	tb.Cleanup(tr.CloseIdleConnections)
	return &Client{tb: tb, http: &http.Client{Transport: tr, Timeout: 2 * Patience}}
}

// Seen returns the headers and bodies of all replies so far.
func (c *Client) Seen() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.seen.Bytes())
}

// Request is what to send.
type Request struct {
	Method, URL string
	Header      map[string]string
	Body        any // nil, []byte or string as they are, io.Reader, else JSON
}

// Reply is what came back.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
	Closes bool // the server announced that it closes the connection
}

// Do sends a request and reads the whole reply.
func (c *Client) Do(ctx context.Context, r Request) (Reply, error) {
	res, err := c.Open(ctx, r)
	if err != nil {
		return Reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	reply := Reply{Status: res.StatusCode, Header: res.Header, Body: body, Closes: res.Close}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = res.Header.Write(&c.seen) // a buffer takes everything
	c.seen.Write(body)
	return reply, err
}

// Must is Do where no reply is a failure of the test.
func (c *Client) Must(r Request) Reply {
	c.tb.Helper()
	reply, err := c.Do(Context(c.tb), r)
	if err != nil {
		c.tb.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return reply
}

// Open sends a request and leaves the body to the caller.
func (c *Client) Open(ctx context.Context, r Request) (*http.Response, error) {
	var body io.Reader
	switch b := r.Body.(type) {
	case nil:
	case []byte:
		body = bytes.NewReader(b)
	case string:
		body = strings.NewReader(b)
	case io.Reader:
		body = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	return c.http.Do(req)
}

// Get returns a value of a JSON reply by its path, such as "data.agents.0.id";
// nil when there is none. Numbers are json.Number.
func (r Reply) Get(path string) any {
	dec := json.NewDecoder(bytes.NewReader(r.Body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return Dig(v, path)
}

// Dig returns a value inside decoded JSON.
func Dig(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// Text returns a string of a JSON reply, "" when there is none.
func (r Reply) Text(path string) string {
	text, _ := r.Get(path).(string)
	return text
}

// Int returns a whole number of a JSON reply, 0 when there is none.
func (r Reply) Int(path string) int {
	n, _ := r.Get(path).(json.Number)
	i, _ := n.Int64()
	return int(i)
}

// Want fails the test when a reply has another status or other values, given
// as pairs of path and text (as JSON would print the value without quotes).
func (r Reply) Want(tb testing.TB, status int, pairs ...string) Reply {
	tb.Helper()
	if r.Status != status {
		tb.Errorf("status %d, want %d: %s", r.Status, status, r.Body)
		return r
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if got := plain(r.Get(pairs[i])); got != pairs[i+1] {
			tb.Errorf("%s is %q, want %q in %s", pairs[i], got, pairs[i+1], r.Body)
		}
	}
	return r
}

func plain(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Unix is a time as signatures have it.
func Unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
