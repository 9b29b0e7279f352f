package mcpclient_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/manifest"
)

// byName gives every user the credential that is the user's name.
func byName(cfg *mcpclient.Config) {
	cfg.Resolve = func(_ context.Context, text, user string) (string, error) {
		return manifest.Expand(text, func(string, string) (string, bool) { return user, user != "" })
	}
}

func TestUsers_NobodyIsToldWhatTheProcessOfAnotherSaid(t *testing.T) {
	t.Parallel()
	c := open(t, byName, self(t, "mail", "ofuser", "${{ user.credentials.mail }}"))
	box := c.For("agent", nil)
	anna := chat.Invocation{CallID: "c", User: "anna", Args: json.RawMessage("{}")}
	var count *mcpclient.Tool
	for _, one := range box.Tools(t.Context(), anna) {
		if one.Name() == "count" {
			count = one
		}
	}
	if count == nil {
		t.Fatal("the server has no tools")
	}
	if _, err := count.Call(t.Context(), anna); err != nil {
		t.Fatal(err)
	}
	bert := anna
	bert.User = "bert"
	_, err := count.Call(t.Context(), bert)
	if err == nil || !strings.Contains(err.Error(), "giving up") || strings.Contains(err.Error(), "anna") {
		t.Errorf("bert is told: %v", err)
	}
}

func TestDiscover_LastWordsHoldNoSecret(t *testing.T) {
	t.Parallel()
	c := open(t, func(cfg *mcpclient.Config) {
		cfg.Redact = func(text string) string { return strings.ReplaceAll(text, "configuration", "[gone]") }
	}, self(t, "bad", "dies"))
	warnings := c.Discover(t.Context())
	if len(warnings) != 1 || !strings.Contains(warnings[0], "no [gone] found") || strings.Contains(c.Servers()[0].LastError, "configuration") {
		t.Errorf("%q, %q", warnings, c.Servers()[0].LastError)
	}
}

// refusing is a server that refuses calls of the tool "no" by a status alone, or
// with an error of the protocol as well, while calls of "wait" are under way.
type refusing struct {
	*httptest.Server
	waiting chan struct{} // takes a value from each call of wait
	free    chan struct{} // closed: they may end
	refused atomic.Int32
}

func newRefusing(t *testing.T, status int, body string) *refusing {
	t.Helper()
	r := &refusing{waiting: make(chan struct{}, 8), free: make(chan struct{})}
	server := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "refusing"}, nil)
	mcpsdk.AddTool(server, &mcpsdk.Tool{Name: "wait"}, func(ctx context.Context, _ *mcpsdk.CallToolRequest, _ empty) (*mcpsdk.CallToolResult, any, error) {
		r.waiting <- struct{}{}
		select {
		case <-r.free:
			return text("waited"), nil, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	})
	mcpsdk.AddTool(server, &mcpsdk.Tool{Name: "no"}, func(context.Context, *mcpsdk.CallToolRequest, empty) (*mcpsdk.CallToolResult, any, error) {
		return text("never"), nil, nil
	})
	handler := mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return server }, nil)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Mcp-Name") == "no" || asksFor(req, `"name":"no"`) {
			r.refused.Add(1)
			if body != "" {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return
		}
		handler.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
		for session := range server.Sessions() {
			_ = session.Close()
		}
	})
	return r
}

// asksFor tells whether the body of a request holds a text; it can be read again.
func asksFor(r *http.Request, want string) bool {
	if r.Method != http.MethodPost {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && strings.Contains(string(body), want)
}

func TestHTTP_ARefusedCallLeavesTheCallsOfOthersAlone(t *testing.T) {
	t.Parallel()
	invalid := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the date is in the past"}}`
	for name, test := range map[string]struct {
		status int
		body   string
		want   string
		asked  int32 // at most
	}{
		"forbidden":       {http.StatusForbidden, "", "refuses the credentials: 403", 1},
		"unauthorized":    {http.StatusUnauthorized, "", "refuses the credentials: 401", 1},
		"too large":       {http.StatusRequestEntityTooLarge, "", "413", 3},
		"bad":             {http.StatusBadRequest, "", "", 3},
		"bad, says why":   {http.StatusBadRequest, invalid, "the date is in the past", 1},
		"gateway trouble": {http.StatusBadGateway, "", "502", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			far := newRefusing(t, test.status, test.body)
			c := open(t, nil, remote("far", far.URL))
			discover(t, c)
			type outcome struct {
				res chat.ToolResult
				err error
			}
			done := make(chan outcome, 1)
			wait := tool(t, c, "wait")
			go func() {
				res, err := wait.Call(t.Context(), chat.Invocation{User: "anna", Args: json.RawMessage("{}")})
				done <- outcome{res, err}
			}()
			<-far.waiting
			res, err := tool(t, c, "no").Call(t.Context(), chat.Invocation{User: "bert", Args: json.RawMessage("{}")})
			said := res.Content
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, test.want) || far.refused.Load() > test.asked {
				t.Errorf("the refused call says %q after %d tries", said, far.refused.Load())
			}
			close(far.free)
			if got := <-done; got.err != nil || got.res.Content != "waited" {
				t.Errorf("the other call: %+v, %v", got.res, got.err)
			}
		})
	}
}
