package deploytest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/confine"
	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
)

// childEnv makes a test binary a child instead.
const childEnv = "DEPLOYTEST_CHILD"

// Main runs verify (goleak.VerifyTestMain, usually), or what this process was
// started as: the stage before an init command, a child, a supervisor. TestMain
// calls it.
func Main(m *testing.M, verify func(*testing.M)) {
	if _, staged, err := confine.FromEnv(); staged || err != nil {
		if err == nil {
			err = confine.Stage(os.Args[1:]) // does not return when it succeeds
		}
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(3)
	}
	if os.Getenv(childEnv) != "" {
		os.Exit(childMain())
	}
	if home := os.Getenv(supervisorEnv); home != "" {
		os.Exit(supervisorMain(home))
	}
	verify(m)
}

// childMain serves one scripted formation over the real control protocol.
func childMain() int {
	if _, err := confine.Settle(); err != nil {
		fmt.Fprintln(os.Stderr, "settle:", err)
		return 2
	}
	in, err := control.Inherit()
	if err != nil || in == nil {
		fmt.Fprintln(os.Stderr, "inherit:", in, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &formation{in: in, started: time.Now(), records: make(chan control.Record)}
	if err := control.Serve(ctx, f, in.ServeOptions(zerolog.New(in.Log))); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		return 1
	}
	return 0
}

// formation behaves as the file "behave" of its bundle says, or the one of its
// state directory, which a test can write later:
//
//	crash            prints a line on descriptor 2 and exits with 7 during Load
//	crash-after D    does so with 9 when it has served for the duration D and was asked for its health since
//	unready-after D  is not ready any more when it has served for the duration D
//	never            stays in Load without progress
//	secrets          fails Load with SecretsError
//	wait             stays in Load, with progress, while the state directory has no file "go"
//	records          has an audit record and an alert to tell, and tells those of /record
//	linger           ends its drain only when the state directory has a file "go"
type formation struct {
	in      *control.Inherited
	started time.Time
	state   string
	dir     string
	mode    string
	after   time.Duration // of the modes that have one
	serving atomic.Bool
	since   time.Time // when it began to serve; written before serving
	falling sync.Once
	beats   atomic.Uint64
	http    *http.Server
	close   func() error
	records chan control.Record // made by /record, for whoever follows
}

// Hello proves the launch.
func (f *formation) Hello(_ context.Context, req control.HelloRequest) (control.Hello, error) {
	if err := f.in.CheckHello(req); err != nil {
		return control.Hello{}, err
	}
	return control.Hello{
		FormationID: f.in.FormationID, LaunchID: f.in.LaunchID, Build: "test", PID: os.Getpid(),
		StartedAt: f.started, Serving: f.serving.Load(), ControlVersion: control.Version,
	}, nil
}

// Load does what the bundle asks for.
func (f *formation) Load(_ context.Context, req control.LoadRequest, progress func(string)) (control.Loaded, error) {
	f.dir, f.state = req.Dir, req.StateDir
	for _, dir := range []string{req.Dir, req.StateDir} {
		if text, err := os.ReadFile(filepath.Join(dir, "behave")); err == nil {
			f.mode = strings.TrimSpace(string(text))
		}
	}
	if mode, after, ok := strings.Cut(f.mode, " "); ok {
		var err error
		if f.after, err = time.ParseDuration(after); err != nil {
			return control.Loaded{}, err
		}
		f.mode = mode
	}
	switch f.mode {
	case "never":
		select {}
	case "crash":
		fmt.Fprintln(os.Stderr, "the disk is on fire")
		os.Exit(7)
	case "secrets":
		return control.Loaded{}, fault.New(fault.Invalid, "SecretsError", "secret API_KEY is missing; set it with: supervisor secrets")
	case "wait":
		f.await(progress)
	}
	return control.Loaded{Warnings: []string{"formation.afs:1:1: a warning"}, Agents: 1}, nil
}

// await returns when the state directory has a file "go".
func (f *formation) await(progress func(string)) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := os.Stat(filepath.Join(f.state, "go")); err == nil {
			return
		}
		progress("waiting")
	}
}

// Serve accepts on the inherited socket.
func (f *formation) Serve(context.Context) error {
	l, err := control.Listener()
	if err != nil {
		return err
	}
	f.http = &http.Server{Handler: f.routes(), ReadHeaderTimeout: 10 * time.Second}
	f.close = sync.OnceValue(l.Close)
	l = closer{l, f.close} // the server closes it, too
	go func() { _ = f.http.Serve(l) }()
	if !f.serving.Load() { // and not only again
		f.since = time.Now()
		f.serving.Store(true)
	}
	return nil
}

// closer is a listener that may be closed twice.
type closer struct {
	net.Listener
	close func() error
}

// Close is the same for all who call it.
func (c closer) Close() error { return c.close() }

// Pause stops accepting; Serve begins again.
func (f *formation) Pause(context.Context) error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Fence has no store.
func (f *formation) Fence(context.Context, []string) (int, error) { return 0, nil }

// Health beats at every question. A child whose time is over gives no good answer
// any more, however late its own timers are; before it was asked once, the answer
// to Serve might still be on its way.
func (f *formation) Health(context.Context) (control.Health, error) {
	h := control.Health{Ready: true, Serving: f.serving.Load(), Heartbeat: f.beats.Add(1)}
	if !h.Serving {
		return h, nil
	}
	left := f.after - time.Since(f.since)
	switch f.mode {
	case "crash-after":
		if left <= 0 {
			fall()
		}
		f.falling.Do(func() { time.AfterFunc(left, fall) })
	case "unready-after":
		h.Ready = left > 0
	}
	return h, nil
}

// fall ends the process.
func fall() {
	fmt.Fprintln(os.Stderr, "the roof fell in")
	os.Exit(9)
}

// Status tells little.
func (f *formation) Status(context.Context) (control.Status, error) {
	return control.Status{FormationID: f.in.FormationID, Agents: 1, Uptime: time.Since(f.started)}, nil
}

// Drain closes the port and finishes requests.
func (f *formation) Drain(ctx context.Context, req control.DrainRequest) (control.Drained, error) {
	if req.CloseSocket {
		if err := control.ShutdownListener(); err != nil {
			return control.Drained{}, err
		}
	}
	if f.mode == "linger" {
		f.await(func(string) {})
	}
	if f.close == nil {
		return control.Drained{}, nil
	}
	return control.Drained{}, errors.Join(f.close(), f.http.Shutdown(ctx))
}

// Stop has nothing to close.
func (f *formation) Stop(context.Context) error { return nil }

// Records tells the two records of the mode "records".
func (f *formation) Records(ctx context.Context, _ uint64, sink func(control.Record) error) error {
	if f.mode == "records" {
		if err := sink(control.Record{Seq: 3, Time: time.Now(), Kind: control.RecordAudit, Action: "keys.generated", Actor: "formation", Result: "ok"}); err != nil {
			return err
		}
		err := sink(control.Record{
			Seq: 4, Time: time.Now(), Kind: control.RecordAlert, Action: "webhook.dead_letter", Actor: "formation", Result: "failed",
			Message: "a delivery was given up", Detail: []byte(`{"delivery":"d-1"}`),
		})
		if err != nil {
			return err
		}
	}
	for {
		select {
		case r := <-f.records:
			if err := sink(r); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// routes: / tells the process number, /dir the version's directory, /env the environment, /log writes a line
// to both logs, /record?n makes an audit record of that number and answers when
// it was told, /exit ends the process without a word to the supervisor, /stream
// opens an event stream without end, /ticks?n one of n events, 10 ms each.
func (f *formation) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strconv.Itoa(os.Getpid())) })
	mux.HandleFunc("/dir", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, filepath.Base(f.dir)) })
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Join(os.Environ(), "\n")) })
	mux.HandleFunc("/log", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(f.in.Log, "out "+r.URL.RawQuery)
		_, _ = syscall.Write(2, []byte("err "+r.URL.RawQuery+"\n")) // not through a file, whose end would close it
	})
	mux.HandleFunc("/record", func(w http.ResponseWriter, r *http.Request) {
		seq, _ := strconv.ParseUint(r.URL.RawQuery, 10, 64)
		select {
		case f.records <- control.Record{Seq: seq, Time: time.Now(), Kind: control.RecordAudit, Action: "keys.generated", Actor: "formation", Result: "ok"}:
		case <-time.After(patience):
			http.Error(w, "nobody follows", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: open\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/ticks", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		n, _ := strconv.Atoi(r.URL.RawQuery)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := range n {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
		fmt.Fprint(w, "data: end\n\n")
	})
	return mux
}
