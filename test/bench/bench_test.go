package main

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/test/fakellm"
)

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestCall_ReadsBothFormsOverOneConnection(t *testing.T) {
	t.Parallel()
	var peers []string
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		peers = append(peers, r.RemoteAddr)
		if r.Header.Get("Accept") == "application/json" {
			_, _ = w.Write([]byte(`{"success":true}`))
			return
		}
		for _, frame := range []string{`data: {"token":{"type":"planning"}}`, `data: {"token":{"type":"content"}}`, "event: done\ndata: {}"} {
			_, _ = w.Write([]byte(frame + "\n\n"))
			w.(http.Flusher).Flush()
		}
	})
	c := caller{addr: addr}
	defer c.close()
	for _, stream := range []bool{false, true, false, true} {
		c.request, c.done = chatRequest(addr, "a", stream, plainMessage)
		if err := c.call(); err != nil {
			t.Fatalf("stream %v: %v", stream, err)
		}
		if c.first.IsZero() == stream {
			t.Errorf("stream %v: first content frame seen: %v", stream, !c.first.IsZero())
		}
	}
	for _, peer := range peers {
		if peer != peers[0] {
			t.Fatalf("connections %v, want one for all", peers)
		}
	}
}

func TestCall_CountsOnlyWholeAnswers(t *testing.T) {
	t.Parallel()
	tests := map[string]http.HandlerFunc{
		"wrong status": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"success":true}`))
		},
		"failure told in the body": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"success":false}`)) },
		"empty":                    func(http.ResponseWriter, *http.Request) {},
		"cut in the body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"success":true}`))
		},
		"cut between chunks": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"success":true}`))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	}
	for name, h := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := caller{addr: serve(t, h)}
			defer c.close()
			c.request, c.done = chatRequest(c.addr, "a", false, plainMessage)
			if err := c.call(); err == nil {
				t.Error("counted as an answer")
			}
			if c.conn != nil {
				t.Error("the connection is kept after an error")
			}
		})
	}
}

func TestCall_ConnectsAgainWhenTheServerCloses(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write([]byte(`{"success":true}`))
	})
	c := caller{addr: addr}
	c.request, c.done = chatRequest(addr, "a", false, plainMessage)
	for range 3 {
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoad_CountsRequestsAndErrors(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"success":true}`)) })
	target := target{addr: addr, pid: os.Getpid()}
	target.request, target.done = chatRequest(addr, "a", false, plainMessage)
	s, err := load{conc: 4, slice: time.Minute, requests: 100}.run(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if s.requests != 100 || s.errors != 0 || len(s.latency) != 100 {
		t.Errorf("%d requests, %d errors, %d latencies; want 100, 0, 100", s.requests, s.errors, len(s.latency))
	}
	target.done = []byte("never said")
	s, err = load{conc: 1, slice: time.Minute, requests: 7}.run(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	if s.requests != 0 || s.errors != 7 || s.lastErr == nil {
		t.Errorf("%d requests, %d errors, last %v; want 0, 7 and the error", s.requests, s.errors, s.lastErr)
	}
}

func TestLimit_AnswersAndKeepsARowPerRequest(t *testing.T) {
	t.Parallel()
	model := fakellm.Start(t, fakellm.Options{Text: "a short answer"})
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(dir, "limit.db")
	addr, ended := startLimitHere(ctx, t, strings.TrimSuffix(strings.TrimPrefix(model.URL(), "http://"), "/v1"), file)
	c := caller{addr: addr}
	defer c.close()
	for _, stream := range []bool{false, true} {
		c.request, c.done = chatRequest(addr, "", stream, plainMessage)
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(c.body), "a short answer") {
			t.Errorf("stream %v: no answer in %s", stream, c.body)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var rows int
	if err := db.QueryRow(`SELECT count(*) FROM turns WHERE answer = 'a short answer'`).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v; want 2", rows, err)
	}
}

// startLimitHere runs the limit handler in this process.
func startLimitHere(ctx context.Context, t *testing.T, model, file string) (string, <-chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- runLimit(ctx, ln, model, file) }()
	return ln.Addr().String(), ended
}

func TestJudge_TellsGrowthFromNoise(t *testing.T) {
	t.Parallel()
	marks := func(of func(i int) mark) []mark {
		all := make([]mark, soakMarks)
		for i := range all {
			all[i] = of(i)
		}
		return all
	}
	still := func(i int) mark {
		return mark{memory: memory{anon: int64(20+i%3) << 20}, files: 40 + i%5, goroutines: 30 + i%4, processes: 1}
	}
	tests := map[string]struct {
		marks []mark
		want  string
	}{
		"steady":          {marks(still), ""},
		"warming up":      {marks(func(i int) mark { m := still(i); m.memory.anon += int64(min(i, 8)) << 22; return m }), ""},
		"memory leak":     {marks(func(i int) mark { m := still(i); m.memory.anon += int64(i) << 22; return m }), "anonymous memory"},
		"descriptors":     {marks(func(i int) mark { m := still(i); m.files += 10 * i; return m }), "descriptors"},
		"goroutines":      {marks(func(i int) mark { m := still(i); m.goroutines += 2 * i; return m }), "goroutines"},
		"a process stays": {marks(func(i int) mark { m := still(i); m.processes += i / 2; return m }), "processes"},
		"failed request": {marks(func(i int) mark {
			m := still(i)
			if i == 3 {
				m.load = sample{errors: 1, lastErr: errors.New("refused")}
			}
			return m
		}), "refused"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := judge(tt.marks)
			if tt.want == "" && err != nil {
				t.Errorf("a settled process was refused: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("want an error with %q, got %v", tt.want, err)
			}
		})
	}
}

func TestProc_ReadsThisProcess(t *testing.T) {
	t.Parallel()
	m, err := readMemory(os.Getpid())
	if err != nil || m.pss < 1<<20 || m.private <= 0 {
		t.Errorf("memory %+v, %v", m, err)
	}
	if _, err := cpuTime(os.Getpid()); err != nil {
		t.Error(err)
	}
	if n, err := openFiles(os.Getpid()); err != nil || n < 3 {
		t.Errorf("%d descriptors, %v", n, err)
	}
}

func TestRoutingQuestions_AreOfEveryKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		team, half                               string
		questions, offTopic, followUps, switched int
	}{
		{"routing", "", 500, 30, 50, 20},
		{heldOut, "", 300, 30, 49, 13},
		{heldOut, "odd", 150, 15, 24, 6},
		{heldOut, "even", 150, 15, 25, 7},
	} {
		list, err := routingQuestions(c.team, c.half)
		if err != nil {
			t.Fatal(err)
		}
		of, follow, switched := map[string]int{}, 0, 0
		for _, q := range list {
			of[q.agent]++
			if q.last != "" {
				follow++
				if q.last != q.agent {
					switched++
				}
			}
		}
		if len(list) != c.questions || len(of) != 11 || of[nobody] != c.offTopic || follow != c.followUps || switched != c.switched {
			t.Errorf("%s %s: %d questions for %v, %d follow another, %d of these go elsewhere", c.team, c.half, len(list), of, follow, switched)
		}
	}
}
