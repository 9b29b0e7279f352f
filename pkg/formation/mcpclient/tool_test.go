package mcpclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/mcpclient"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// memoryLists is a store of lists. fake, when set, is what every server offers.
type memoryLists struct {
	mu    sync.Mutex
	lists map[string][]byte
	fake  []byte
	saves int
}

func (m *memoryLists) Load(_ context.Context, server, config string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fake != nil {
		return m.fake, nil
	}
	return m.lists[server+" "+config], nil
}

func (m *memoryLists) Save(_ context.Context, server, config string, list []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lists == nil {
		m.lists = make(map[string][]byte)
	}
	m.lists[server+" "+config] = list
	m.saves++
	return nil
}

func (m *memoryLists) all() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.lists)
}

func TestDiscover_WhatIsStoredIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "memory.db"), LaunchID: "l", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lists := mcpclient.Stored{DB: db}
	s := self(t, "tester", "works")
	s.Auth = manifest.Auth{Type: manifest.AuthEnv, Values: map[string]string{"KEY": "${{ secrets.K }}"}}
	first := open(t, func(cfg *mcpclient.Config) { cfg.Lists, cfg.Resolve = lists, secretsOf(map[string]string{"K": "v"}) }, s)
	discover(t, first)
	want := first.Catalog()

	var launch string
	again := open(t, func(cfg *mcpclient.Config) { cfg.Lists, launch = lists, cfg.Launch }, s) // no secret: it could not connect
	discover(t, again)
	if diff := cmp.Diff(want, again.Catalog()); diff != "" || len(want) == 0 {
		t.Error(diff)
	}
	if len(running(launch)) > 0 {
		t.Error("a process was started")
	}
	changed := s
	changed.Args = append(slices.Clone(s.Args), "another")
	c := open(t, func(cfg *mcpclient.Config) { cfg.Lists, cfg.Resolve = lists, secretsOf(map[string]string{"K": "v"}) }, changed)
	discover(t, c)
	if len(c.Catalog()) != len(want)+1 {
		t.Errorf("a changed file has the tools %+v", c.Catalog())
	}
}

func TestTools_ListChangesAreSeen(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "tester", "works"))
	discover(t, c)
	box := c.For("agent", nil)
	before := len(box.Tools(t.Context(), chat.Invocation{}))
	call(t, c, "grow", "{}")
	eventually(t, "the new tool is offered", func() bool { return len(box.Tools(t.Context(), chat.Invocation{})) == before+1 })
	if res := call(t, c, "grown", "{}"); res.Content != "grown up" {
		t.Errorf("%+v", res)
	}
}

func TestTools_NamesAreFitForModelsAndUnique(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 20)
	c := open(t, nil, self(t, "a.b", "works", long+"1", long+"2", "odd_name_with_dots", "odd name_with.dots"))
	discover(t, c)
	fit := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	seen := map[string]bool{}
	for _, tool := range c.For("agent", nil).Tools(t.Context(), chat.Invocation{}) {
		name := tool.Spec().Name
		if !fit.MatchString(name) || seen[name] || !strings.HasPrefix(name, "a_b__") {
			t.Errorf("a tool is called %q", name)
		}
		seen[name] = true
		if strings.HasPrefix(tool.Name(), "odd") || strings.HasPrefix(tool.Name(), "long") {
			if res, err := tool.Call(t.Context(), chat.Invocation{}); err != nil || res.Content != "done" {
				t.Errorf("%s: %+v, %v", name, res, err)
			}
		}
	}
	if len(seen) != 13 {
		t.Errorf("%d tools: %v", len(seen), seen)
	}
}

func TestTools_FiltersOfServerAndAgent(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works", "read_a", "read_b", "write_a")
	s.Tools = manifest.ToolFilter{Allow: []string{"read_*", "write_*", "count", "nothing_*"}, Deny: []string{"*_b"}}
	own := self(t, "own", "works")
	own.Agent = "writer"
	c := open(t, nil, s, own)
	discover(t, c)
	names := func(agent string, uses []manifest.MCPUse) string {
		var out []string
		for _, tool := range c.For(agent, uses).Tools(t.Context(), chat.Invocation{}) {
			out = append(out, tool.Name())
		}
		return strings.Join(out, " ")
	}
	for _, test := range []struct {
		agent string
		uses  []manifest.MCPUse
		want  string
	}{
		{"any", nil, "count read_a write_a"},
		{"any", []manifest.MCPUse{}, ""},
		{"any", []manifest.MCPUse{{ID: "tester", Tools: manifest.ToolFilter{Deny: []string{"write_*"}}}}, "count read_a"},
		{"any", []manifest.MCPUse{{ID: "tester", Tools: manifest.ToolFilter{Allow: []string{"read_b", "write_a"}}}}, "write_a"},
		{"any", []manifest.MCPUse{{ID: "own"}}, ""},
		{"writer", []manifest.MCPUse{{ID: "own", Own: &own.MCPServer, Tools: manifest.ToolFilter{Allow: []string{"about"}}}}, "about"},
	} {
		if got := names(test.agent, test.uses); got != test.want {
			t.Errorf("%s with %+v has %q, want %q", test.agent, test.uses, got, test.want)
		}
	}
	if len(c.Catalog()) != 3+9 {
		t.Errorf("%+v", c.Catalog())
	}
}

func TestTools_AFilterThatSaysSomethingElseThanItSeemsIsTold(t *testing.T) {
	t.Parallel()
	hub := telemetry.New(telemetry.Config{})
	heard := hub.Subscribe(0, nil)
	defer heard.Close()
	s := self(t, "tester", "works")
	s.Tools = manifest.ToolFilter{Allow: []string{"count", "cuont"}, Deny: []string{"write_*"}}
	c := open(t, func(cfg *mcpclient.Config) { cfg.Hub = hub }, s)
	discover(t, c)
	c.For("a", []manifest.MCPUse{{ID: "tester", Tools: manifest.ToolFilter{Deny: []string{"*"}}}}).Known()
	var got []string
	for range 3 {
		e := <-heard.Events()
		got = append(got, fmt.Sprint(e.Name, " ", e.AgentID, " ", e.Data["patterns"]))
	}
	slices.Sort(got)
	want := []string{"mcp.tool_filter.empty_set a <nil>", "mcp.tool_filter.unknown_allow a [cuont]", "mcp.tool_filter.unknown_deny a [write_*]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParameters_AreGivenToEveryCallAndAnExplicitArgumentWins(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works")
	s.Parameters = map[string]any{"region": "eu", "limit": int64(5), "token": "Bearer ${{ secrets.T }}"}
	c := open(t, func(cfg *mcpclient.Config) { cfg.Resolve = secretsOf(map[string]string{"T": "hidden"}) }, s)
	discover(t, c)
	if res := call(t, c, "args", `{"limit":7,"x":1}`); res.Content != `{"limit":7,"region":"eu","token":"Bearer hidden","x":1}` {
		t.Errorf("%+v", res)
	}
}

func TestPlaceholders_WithoutAValueAreNeverSent(t *testing.T) {
	t.Parallel()
	call := self(t, "call", "works")
	call.Parameters = map[string]any{"token": "${{ user.credentials.github }}"}
	start := self(t, "start", "works")
	start.Auth = manifest.Auth{Type: manifest.AuthEnv, Values: map[string]string{"KEY": "${{ secrets.GONE }}"}}
	c := open(t, func(cfg *mcpclient.Config) { cfg.Resolve = secretsOf(nil) }, call, start)
	warnings := c.Discover(t.Context())
	if len(warnings) != 1 || !strings.Contains(warnings[0], "no value for ${{ secrets.GONE }}") {
		t.Errorf("%q", warnings)
	}
	_, err := tool(t, c, "args").Call(t.Context(), chat.Invocation{User: "ada"})
	e, ok := err.(*mcpclient.Error) //nolint:errorlint // it is the contract
	if !ok || e.Begun() || !strings.Contains(e.Error(), "no value for ${{ user.credentials.github }}") {
		t.Errorf("%v", err)
	}
}

func TestUsers_NeverShareAConnectionWithTheirCredentials(t *testing.T) {
	t.Parallel()
	s := self(t, "tester", "works")
	s.Auth = manifest.Auth{Type: manifest.AuthEnv, Values: map[string]string{"KEY": "${{ user.credentials.github }}"}}
	values := map[string]string{"ada.github": "same", "bob.github": "same"}
	var launch string
	c := open(t, func(cfg *mcpclient.Config) { cfg.Resolve, launch = secretsOf(values), cfg.Launch }, s)
	discover(t, c) // not without a user
	if len(c.Catalog()) != 0 || len(running(launch)) != 0 {
		t.Fatal("it was asked without credentials")
	}
	box := c.For("agent", nil)
	if got := box.Tools(t.Context(), chat.Invocation{User: "eve"}); len(got) != 0 {
		t.Errorf("who has no credentials sees %d tools", len(got))
	}
	if got := box.Tools(t.Context(), chat.Invocation{User: "ada"}); len(got) == 0 {
		t.Fatal("no tools for who has credentials")
	}
	count := func(user string) string {
		res, err := tool(t, c, "count").Call(t.Context(), chat.Invocation{User: user})
		if err != nil {
			return err.Error()
		}
		return res.Content
	}
	if a, b, again := count("ada"), count("bob"), count("ada"); a != "1" || b != "1" || again != "2" {
		t.Errorf("ada %s, bob %s, ada %s", a, b, again)
	}
	if got := count("eve"); !strings.Contains(got, "no value for ${{ user.credentials.github }}") {
		t.Errorf("eve: %s", got)
	}
}

func TestResult_WidgetsLinksAndMedia(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "tester", "works"))
	discover(t, c)
	res := call(t, c, "show", "{}")
	const id = "ui_123456789012345678901"
	want := []chat.Widget{
		{Type: chat.WidgetActionLink, ID: id, Label: "Open", URL: "https://example.com/a", Hint: "new"},
		{Type: chat.WidgetMCPResource, ID: id, Resource: "ui://panel/1", Data: "<b>hi</b>", Server: "tester", Tool: "show", MIMEType: "text/html"},
	}
	if diff := cmp.Diff(want, res.Widgets); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]chat.Part{{Kind: chat.Image, MediaType: "image/png", Data: []byte("png")}}, res.Parts); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(res.Content, "[ui://panel/1 is shown to the user]\n[image: image/png, 3 bytes]") || !strings.Contains(string(res.Structured), "javascript") {
		t.Errorf("%+v", res)
	}
}

func TestElicit_IsShownAndAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		elicit func(context.Context, mcpclient.Elicitation) (mcpclient.Reply, error)
		want   string
	}{
		"nobody to ask": {nil, "decline <nil>"},
		"answered": {func(_ context.Context, e mcpclient.Elicitation) (mcpclient.Reply, error) {
			if e.User != "ada" || e.Session != "s1" || e.Tool != "ask" || !strings.Contains(string(e.Schema), "colour") {
				return mcpclient.Reply{}, nil
			}
			return mcpclient.Reply{Accept: true, Content: map[string]any{"colour": "red"}}, nil
		}, "accept red"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, func(cfg *mcpclient.Config) { cfg.Elicit = test.elicit }, self(t, "tester", "works"))
			discover(t, c)
			var shown heard
			res, err := tool(t, c, "ask").Call(t.Context(), chat.Invocation{User: "ada", Session: "s1", Progress: shown.add})
			if err != nil || res.Content != test.want {
				t.Errorf("%+v, %v", res, err)
			}
			if got := shown.all(); len(got) != 1 || got[0].Message != "tester asks: Which colour?" {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestCall_ArgumentsMustBeAnObject(t *testing.T) {
	t.Parallel()
	c := open(t, nil, self(t, "tester", "works"))
	discover(t, c)
	for _, args := range []string{`[]`, `"x"`, `{`, `null`} {
		res, err := tool(t, c, "args").Call(t.Context(), chat.Invocation{Args: json.RawMessage(args)})
		if err != nil || !res.IsError {
			t.Errorf("%s: %+v, %v", args, res, err)
		}
	}
}

func TestRun_ServersThatCouldNotBeAskedAreAskedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	works := self(t, "late", "works")
	program := filepath.Join(dir, "late")
	late := works
	late.Command = program
	c := open(t, quick(mcpclient.Limits{Refresh: 50 * time.Millisecond}), late, self(t, "tester", "works"))
	if warnings := c.Discover(t.Context()); len(warnings) != 1 {
		t.Fatalf("%q", warnings)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	if err := os.Symlink(works.Command, program); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its tools are known", func() bool { return c.Servers()[0].Tools == 9 && c.Servers()[0].LastError == "" })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRun_StoredListsAreRefreshed(t *testing.T) {
	t.Parallel()
	lists := &memoryLists{}
	first := open(t, func(cfg *mcpclient.Config) { cfg.Lists = lists }, self(t, "tester", "works"))
	discover(t, first)
	for key := range lists.all() { // of a server that has changed meanwhile
		server, config, _ := strings.Cut(key, " ")
		_ = lists.Save(t.Context(), server, config, []byte(`{"tools":[{"name":"old","schema":{}}]}`))
	}
	c := open(t, func(cfg *mcpclient.Config) { cfg.Lists, cfg.Limits.Refresh = lists, 50*time.Millisecond }, self(t, "tester", "works"))
	discover(t, c)
	if n := len(c.Catalog()); n != 1 {
		t.Fatalf("%d tools", n)
	}
	if err := c.Run(t.Context()); err != nil { // it has nothing to do once all are asked
		t.Error(err)
	}
	if n := len(c.Catalog()); n != 9 {
		t.Errorf("%d tools", n)
	}
}
