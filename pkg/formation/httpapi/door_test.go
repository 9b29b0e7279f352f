package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/httpapi"
	"github.com/agentformation/service/pkg/formation/jobs"
	"github.com/agentformation/service/pkg/formation/llm/budget"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/formation/memory"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/overlord/clarify"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/secrets/credentials"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

func TestMain(m *testing.M) {
	// The server stays half a second on a connection whose body it did not take.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const (
	adminKey  = "fma_test"
	clientKey = "fmc_test"
)

// script is an overlord that does what the message says.
type script struct {
	calls atomic.Int64
	// started gets the message of each turn that waits; the turn goes on when
	// release is closed.
	started chan string
	release chan struct{}
}

func (s *script) Knows(id string) bool { return id == "writer" || id == "coder" }

func (s *script) Handle(ctx context.Context, in overlord.Input, sink chat.Sink) (chat.Answer, error) {
	s.calls.Add(1)
	agent := in.AgentID
	if agent == "" {
		agent = "writer"
	}
	answer := chat.Answer{AgentID: agent, Model: "demo/one", Usage: chat.Usage{PromptTokens: 3, CompletionTokens: 2, TotalTokens: 5}}
	if len(in.Files) > 0 {
		in.Message = chat.WithNote(in.Message, chat.NameFiles(in.Files))
		if in.Files[0].Spoken {
			answer.Heard = "spoken words"
		}
	}
	if in.Pending != nil {
		answer.Settles = chat.SettlesDropped
		if r := clarify.Read(*in.Pending, in.Message, in.Click); r.Verdict == clarify.Choice {
			answer.Settles, in.Message = chat.SettlesAnswered, in.Pending.Options[r.Option].Value
			answer.Heard = in.Pending.Options[r.Option].Label
		}
	}
	switch {
	case strings.HasPrefix(in.Message, "ask"):
		q := chat.Question{
			ID: "ui_000000000000000000001", Kind: "test", Prompt: "Which one?", RequestID: in.RequestID, Message: in.Message,
			Options: []chat.Option{{Value: "tea", Label: "Tea"}, {Value: "milk", Label: "Milk"}, {Value: "ask more", Label: "Other"}},
		}
		no := false
		answer.Content, answer.Question, answer.Agents = q.Prompt, &q, []string{agent}
		answer.Widgets = []chat.Widget{{Type: chat.WidgetOptions, ID: q.ID, Prompt: q.Prompt, Options: q.Options, Multi: &no}}
		return answer, nil
	case strings.HasPrefix(in.Message, "link"):
		answer.Widgets = []chat.Widget{{Type: chat.WidgetActionLink, ID: "ui_000000000000000000002", Label: "Sign in", URL: "https://example.com/in"}}
	case strings.HasPrefix(in.Message, "fail"):
		return answer, fault.New(fault.RateLimited, "", "model demo/one: the provider limits the rate of requests")
	case strings.HasPrefix(in.Message, "break"):
		return answer, errors.New("open /etc/secret: permission denied")
	case strings.HasPrefix(in.Message, "budget"):
		return answer, fault.New(fault.RateLimited, "BUDGET_EXCEEDED", "the daily budget is used up")
	case strings.HasPrefix(in.Message, "wait"):
		s.started <- in.Message
		select {
		case <-s.release:
		case <-ctx.Done():
			return answer, context.Cause(ctx)
		}
	}
	for _, e := range []chat.Event{
		{Type: chat.Planning, Content: "Choosing an agent"},
		{Type: chat.Progress, Stage: chat.StageAgentProcessing, Content: "Agent " + agent + " is working"},
	} {
		if err := sink(e); err != nil {
			return answer, err
		}
	}
	for _, word := range []string{"You ", "said <", in.Message, ">\n", "ünïcode"} {
		answer.Content += word
		if err := sink(chat.Event{Type: chat.Content, Stage: chat.StageResponseGeneration, Content: word}); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

func formationForTest() *manifest.Formation {
	temperature := 0.2
	return &manifest.Formation{
		Schema: "1.0.0", ID: "hello-team", Name: "Hello team", Description: "For tests", Version: "2.1.0",
		LLM:         manifest.LLM{Models: []manifest.Model{{Capability: "text", ID: "demo/one"}, {Capability: "audio", ID: "demo/ears"}}, Settings: manifest.Settings{Temperature: 0.7, MaxTokens: 4096, Timeout: 30 * time.Second, MaxRetries: 3}},
		InputLimits: manifest.InputLimits{MaxMessageLength: 40},
		MCPServers: []manifest.MCPServer{{
			ID: "issues", Description: "Reads issues", Type: "http", Active: true, Endpoint: "https://example.com/mcp",
			Auth: manifest.Auth{Type: "bearer", Values: map[string]string{"token": "${{ user.credentials.Tracker }}"}},
		}},
		Memory: manifest.Memory{Buffer: manifest.Buffer{Size: 50, Multiplier: 10}},
		Agents: []manifest.Agent{
			{
				Schema: "1.0.0", ID: "writer", Name: "Writer", Description: "Writes texts", SystemMessage: "You write.", Role: "specialist", Active: true,
				Specialization: manifest.Specialization{Domain: "prose", Keywords: []string{"text", "story"}},
				SystemBehavior: manifest.SystemBehavior{Constraints: []string{"no verse"}, InteractionStyle: "friendly"},
				Buffer:         manifest.Buffer{Size: 50, Multiplier: 10}, Metadata: map[string]any{"version": "1.2", "tags": []any{"a"}},
			},
			{
				Schema: "1.0.0", ID: "coder", Name: "coder", Description: "Writes code", Active: true,
				LLM: manifest.AgentLLM{
					Models: []manifest.Model{
						{Capability: "text", ID: "openai/gpt-x", APIKey: "${{ secrets.CODER_KEY }}"},
						{Capability: "vision", ID: "openai/gpt-v", APIKey: "sk-written-out"},
					},
					Settings: manifest.Overrides{Temperature: &temperature},
				},
				Buffer: manifest.Buffer{Size: 10, Multiplier: 2}, Timeout: manifest.AgentTimeout{Default: 90 * time.Second},
			},
		},
	}
}

// now is the time at which all tests happen.
var now = time.Date(2026, 1, 31, 9, 30, 0, 123_000_000, time.UTC)

// door is a whole formation behind its HTTP API, with a scripted overlord.
type door struct {
	url    string
	script *script
	turns  *turn.Service
	ledger *budget.Ledger
	hub    *telemetry.Hub
	db     *store.DB
}

type doorOptions struct {
	formation *manifest.Formation
	prefix    string
	draining  func() bool
	budgets   *manifest.Budgets
	prices    budget.Prices
	noFiles   bool
	redact    func(string) string
	overlord  turn.Handler     // nil: the script
	clock     func() time.Time // of the door; nil stands still
}

func openDoor(t *testing.T, opt doorOptions) *door {
	t.Helper()
	if opt.formation == nil {
		opt.formation = formationForTest()
	}
	clock := func() time.Time { return now }
	if opt.clock == nil {
		opt.clock = clock
	}
	db, err := store.Open(t.Context(), store.Config{
		Path: filepath.Join(t.TempDir(), "memory.db"), LaunchID: "one", Log: zerolog.Nop(), Now: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	var ids atomic.Int64
	newID := func(prefix string) string { return fmt.Sprintf("%s%d", prefix, ids.Add(1)) }
	d := &door{db: db, hub: telemetry.New(telemetry.Config{Now: clock}), script: &script{started: make(chan string, 10), release: make(chan struct{})}}
	if opt.overlord == nil {
		opt.overlord = d.script
	}
	queue, err := jobs.New(t.Context(), jobs.Config{DB: db, Log: zerolog.Nop(), Handlers: map[string]jobs.Handler{
		turn.JobKind: func(ctx context.Context, j jobs.Job) error { return d.turns.RunJob(ctx, j.Key) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	mem := memory.New(memory.Config{DB: db, FormationID: opt.formation.ID, BufferSize: 10, NewID: newID})
	d.turns = turn.New(t.Context(), turn.Config{
		DB: db, Memory: mem, Overlord: opt.overlord, Jobs: queue, NewID: newID, Telemetry: d.hub, Log: zerolog.Nop(),
		Async:    manifest.Async{Mode: "auto", Threshold: time.Minute, EnableEstimation: true, ResultTTL: time.Hour, OnDisconnect: "continue"},
		Response: manifest.Response{Format: "markdown", StreamTokens: true, Progress: true},
	})
	d.ledger = budget.New(budget.Config{
		Formation: opt.formation.ID, DB: db, Limits: budget.Of(nil, opt.budgets), Prices: opt.prices, Log: zerolog.Nop(),
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- queue.Run(ctx) }()
	var files httpapi.Files = media.New(media.Config{MaxFiles: 3, MaxFileBytes: 64}) // of kinds that need no Worker
	if opt.noFiles {
		files = nil
	}
	handler, err := httpapi.New(httpapi.Config{
		Formation: opt.formation, Turns: d.turns, Requests: request.Reader{DB: db}, Sessions: mem,
		Usage: d.ledger, Telemetry: d.hub,
		Router: overlord.New(overlord.Config{Formation: opt.formation, Now: clock, Log: zerolog.Nop()}),
		Files:  files,
		Keys: func() httpapi.Keys {
			return httpapi.Keys{
				Admin:  []httpapi.Digest{httpapi.DigestOf("fma_old"), httpapi.DigestOf(adminKey)},
				Client: []httpapi.Digest{httpapi.DigestOf(clientKey)},
			}
		},
		ToolServers: toolServers{}, Redact: opt.redact, Secrets: openSecrets(t), Credentials: credentials.Open(credentials.Config{DB: db, StateDir: t.TempDir(), NewID: newID}), HeaderPrefix: opt.prefix, Started: now.Add(-90 * time.Second), Draining: opt.draining, Log: zerolog.Nop(), Now: opt.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := httpx.NewHTTPServer(handler, zerolog.Nop())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	d.url = "http://" + listener.Addr().String()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		d.turns.Stop()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// answer is a reply whose body ends with the test.
type answer struct {
	StatusCode int
	Header     http.Header
	Close      bool
	Body       io.Reader
}

// send makes one request with a connection of its own.
func (d *door) send(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return answer{res.StatusCode, res.Header, res.Close, res.Body}
}
