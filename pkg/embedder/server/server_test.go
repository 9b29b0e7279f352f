package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/embedder/purego"
	"github.com/agentformation/service/pkg/embedder/server"
	"github.com/agentformation/service/pkg/fault"
)

// serve runs a server within the test until its end.
func serve(t *testing.T, r *rig, set func(*server.Config)) {
	t.Helper()
	ready := make(chan error, 1)
	cfg := server.Config{Dir: r.dir, Hub: r.hub(t), Engine: purego.Engine{}, Patience: patience, Ready: func(err error) { ready <- err }, Log: zerolog.Nop()}
	if set != nil {
		set(&cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
}

func TestServe_SaysWhatIsWrongWithACall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := embedtest.Files(r.bert)
	files["onnx/model.onnx"] = []byte("no model")
	r.Add("acme/broken", files)
	serve(t, r, nil)
	c := r.clientOf(t, embedder.Config{})
	tests := map[string]struct {
		model, text, task string
		kind              fault.Kind
		name, words       string
	}{
		"alias":        {"local/all-MiniLM-L6-v2", "cat", "", fault.Invalid, hub.NameBadModel, "local/sentence-transformers/all-MiniLM-L6-v2"},
		"unknown":      {"local/acme/none", "cat", "", fault.NotFound, hub.NameNotFound, "acme/none"},
		"no embedder":  {"local/acme/broken", "cat", "", fault.Unprocessable, model.NameUnsuitable, "onnx/model.onnx"},
		"blank":        {tiny, " ", "", fault.Invalid, model.NameBadText, "blank"},
		"unknown task": {tiny, "cat", "poetry", fault.Invalid, model.NameBadTask, "poetry"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := c.Embed(t.Context(), tt.model, []string{"dog", tt.text}, tt.task)
			wantFault(t, err, tt.kind, tt.name, tt.words)
		})
	}
}

func TestServe_ASecondOneIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	serve(t, r, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := server.Run(ctx, server.Config{Dir: r.dir, Hub: r.hub(t), Engine: purego.Engine{}, Log: zerolog.Nop()})
	if err == nil || !strings.Contains(err.Error(), "another embedding process") {
		t.Errorf("got %v", err)
	}
}

func TestServe_AModelThatIsStillComingIsUnavailableAndThenThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stall := make(chan struct{})
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 100_000, Stall: stall, Times: 1})
	serve(t, r, func(cfg *server.Config) { cfg.Patience = 50 * time.Millisecond })
	c := r.clientOf(t, embedder.Config{})
	_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameLoading, "try again")
	close(stall)
	until(t, "the model is there", func() bool {
		_, err = c.Embed(t.Context(), tiny, []string{"cat"}, "")
		return fault.NameOf(err) != embedder.NameLoading
	})
	if err != nil {
		t.Fatal(err)
	}
	r.right(t, c, "cat")
}

func TestServe_WaitsForItsFirstCallThoughItIsSoonIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	serve(t, r, func(cfg *server.Config) { cfg.Idle = time.Nanosecond })
	r.right(t, r.clientOf(t, embedder.Config{}), "cat")
}

func TestServe_ACallHasATimeLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stall := make(chan struct{})
	t.Cleanup(func() { close(stall) })
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 10, Stall: stall})
	serve(t, r, nil)
	_, err := r.clientOf(t, embedder.Config{Timeout: 50 * time.Millisecond}).Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameTimeout, "50ms")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.clientOf(t, embedder.Config{}).Embed(ctx, tiny, []string{"cat"}, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestServe_ModelsTakeTurnsInMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	berts := map[string]*embedtest.Bert{}
	for i, name := range []string{"acme/one", "acme/two", "acme/three"} {
		berts[name] = embedtest.NewBert(embedtest.Tiny, uint64(10+i))
		r.Add(name, embedtest.Files(berts[name]))
	}
	serve(t, r, func(cfg *server.Config) { cfg.MaxModels = 1 })
	c := r.clientOf(t, embedder.Config{})
	var wg sync.WaitGroup
	for range 2 {
		for name, bert := range berts {
			wg.Go(func() {
				got, err := c.Embed(t.Context(), "local/"+name, []string{"cat"}, "")
				if err != nil {
					t.Error(err)
					return
				}
				embedtest.Near(t, name, got.Vectors[0], bert.Mean(embedtest.IDs("cat")))
			})
		}
	}
	wg.Wait()
}

func TestServe_MoreTextsThanOneRequestTakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	serve(t, r, nil)
	texts := make([]string, 2*embedder.MaxTexts+3)
	for i := range texts {
		texts[i] = []string{"cat", "dog", "hello world"}[i%3]
	}
	texts[1] = strings.Repeat("cat ", embedder.MaxText) // is clipped, and then cut
	got, err := r.clientOf(t, embedder.Config{}).Embed(t.Context(), tiny, texts, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Vectors) != len(texts) || got.Dimension != embedtest.Tiny.Hidden {
		t.Fatalf("%d vectors of %d", len(got.Vectors), got.Dimension)
	}
	for i, text := range texts {
		if i == 1 {
			text = strings.Repeat("cat ", embedtest.Tiny.Positions-2)
		}
		embedtest.Near(t, text, got.Vectors[i], r.bert.Mean(embedtest.IDs(text)))
	}
}

func TestServe_TakesNoMoreCallsThanItWasTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stall := make(chan struct{})
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 10, Stall: stall, Times: 1})
	serve(t, r, func(cfg *server.Config) { cfg.MaxCalls = 1 })
	c := r.clientOf(t, embedder.Config{})
	first := make(chan error, 1)
	go func() {
		_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
		first <- err
	}()
	awaitCall(t, r, "/storage/"+repo+"/onnx/model.onnx")
	_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameBusy, "1 calls")
	close(stall)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// TestServe_LimitsWhatItReads speaks to the socket without the client, which
// keeps within the limits by itself.
func TestServe_LimitsWhatItReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	serve(t, r, nil)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", embedder.SocketPath(r.dir))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	encode := func(req embedder.Request) []byte {
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	tests := map[string]struct {
		body  []byte
		words string
	}{
		"no JSON":        {[]byte("{"), "read the request"},
		"another type":   {[]byte(`{"texts": "cat"}`), "read the request"},
		"too many texts": {encode(embedder.Request{Model: tiny, Texts: make([]string, embedder.MaxTexts+1)}), "at most 64"},
		"too long":       {encode(embedder.Request{Model: tiny, Texts: []string{strings.Repeat("a", embedder.MaxText+1)}}), "text 1"},
		"too much":       {encode(embedder.Request{Model: strings.Repeat("a", embedder.MaxBody+1)}), "too large"},
	}
	for name, tt := range tests {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x"+embedder.PathEmbed, bytes.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var f embedder.Failure
		err = json.NewDecoder(res.Body).Decode(&f)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(f.Message, tt.words) {
			t.Errorf("%s: %s %+v %v", name, res.Status, f, err)
		}
	}
}

func TestNewEngine_FallsBackToGo(t *testing.T) {
	t.Parallel()
	none := func(string) (string, bool) { return "", false }
	var log bytes.Buffer
	tests := map[string]struct {
		cfg  server.EngineConfig
		want string // the engine, or the words of the error
	}{
		"no library":         {server.EngineConfig{Kind: server.EngineAuto, Caches: []string{t.TempDir()}}, "go"},
		"a library is gone":  {server.EngineConfig{Library: "/nowhere/libonnxruntime.so"}, "go"},
		"none and no way":    {server.EngineConfig{Kind: server.EngineORT}, "SVC_ONNXRUNTIME_LIB"},
		"gone and no way":    {server.EngineConfig{Kind: server.EngineORT, Library: "/nowhere"}, "/nowhere"},
		"asked for":          {server.EngineConfig{Kind: server.EngineGo}, "go"},
		"no such engine":     {server.EngineConfig{Kind: "cuda"}, `"cuda"`},
		"the library itself": {server.EngineConfig{Kind: server.EngineORT, Library: embedtest.Library(t)}, "onnxruntime 1."},
	}
	for name, tt := range tests {
		tt.cfg.Lookup, tt.cfg.Log = none, zerolog.New(&log)
		engine, err := server.NewEngine(tt.cfg)
		got := fmt.Sprint(err)
		if err == nil {
			got = engine.Name()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if !strings.Contains(log.String(), "models run in Go") {
		t.Errorf("nobody was told: %s", log.String())
	}
}
