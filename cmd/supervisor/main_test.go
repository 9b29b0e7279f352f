package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A scanner that waits for a terminal ends with the program only.
	goleak.VerifyTestMain(m)
}

// fake is a supervisor that answers what a test tells it to, 404 else, and
// writes down what it was asked.
type fake struct {
	*httptest.Server
	mu      sync.Mutex // guards the fields that follow
	replies map[string]reply
	calls   []string
}

type reply struct {
	status int
	body   string
	do     func(http.ResponseWriter, *http.Request) // instead of a body
}

func newFake(tb interface{ Cleanup(func()) }) *fake {
	f := &fake{replies: map[string]reply{}}
	f.Server = httptest.NewServer(f)
	tb.Cleanup(f.Close)
	return f
}

func (f *fake) on(route string, r reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replies[route] = r
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := r.Method + " " + r.URL.RequestURI()
	f.mu.Lock()
	f.calls = append(f.calls, route)
	answer, ok := f.replies[route]
	f.mu.Unlock()
	switch {
	case !ok:
		answer = reply{404, `{"success":false,"error":"FormationNotFound","message":"no formation with that id","code":404}`, nil}
	case answer.do != nil:
		answer.do(w, r)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(answer.body, "event: ") || strings.HasPrefix(answer.body, ": ") {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	w.WriteHeader(answer.status)
	w.Write([]byte(answer.body))
}

// said returns what the fake was asked and forgets it.
func (f *fake) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.calls, "\n") + "\n"
	f.calls = nil
	return text
}

// session runs command lines in this process.
type session struct {
	env      map[string]string
	home     string
	in       string
	inTTY    bool
	errTTY   bool
	outTTY   bool
	noColour bool
	out, er  bytes.Buffer
}

func (s *session) run(ctx context.Context, args ...string) int {
	s.out.Reset()
	s.er.Reset()
	return run(ctx, s.app(&s.out, &s.er), args)
}

func (s *session) app(out, errs io.Writer) *app {
	return &app{
		in: strings.NewReader(s.in), out: out, err: errs, inTTY: s.inTTY, errTTY: s.errTTY,
		userHome: s.home, userName: "ada", pause: 10 * time.Millisecond, outTTY: s.outTTY, noColour: s.noColour,
		lookupEnv: func(name string) (string, bool) { v, ok := s.env[name]; return v, ok },
	}
}

// TestScripts runs testdata/script: the command lines of a person, what they
// print and their exit codes. Beside the commands of testscript there are
//
//	cli CODE ARGS...           run the command line, expect the exit code
//	on 'METHOD PATH' FILE [STATUS]  answer a request with a file
//	asked [sorted] FILE        compare what the supervisor was asked
//	forget                     forget what it was asked
//
// The environment is that of the script.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			f := newFake(deferrer{env})
			env.Values["fake"] = f
			env.Setenv("URL", f.URL)
			env.Setenv("SVC_SERVER_URL", f.URL)
			env.Setenv("SVC_KEY_ID", "svc_pk_a")
			env.Setenv("SVC_SECRET_KEY", "svc_sk_a")
			return os.MkdirAll(filepath.Join(env.WorkDir, "user"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"cli": cli, "on": on, "asked": asked, "forget": forget, "address": address},
	})
}

type deferrer struct{ env *testscript.Env }

func (d deferrer) Cleanup(f func()) { d.env.Defer(f) }

func cli(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	s := &session{home: ts.MkAbs("user"), env: map[string]string{}}
	for _, name := range []string{"SVC_SERVER_URL", "SVC_KEY_ID", "SVC_SECRET_KEY", "SVC_PROFILE"} {
		if v := ts.Getenv(name); v != "" {
			s.env[name] = v
		}
	}
	if raw, err := os.ReadFile(ts.MkAbs("stdin")); err == nil {
		s.in = string(raw)
	}
	for i, arg := range args {
		if strings.HasPrefix(arg, "./") {
			args[i] = ts.MkAbs(arg)
		}
	}
	got := s.run(context.Background(), args[1:]...)
	clean := strings.NewReplacer(ts.Getenv("URL"), "$URL", ts.Getenv("WORK"), "$WORK")
	fmt.Fprint(ts.Stdout(), clean.Replace(s.out.String()))
	fmt.Fprint(ts.Stderr(), clean.Replace(s.er.String()))
	if got != want {
		ts.Fatalf("exit code %d, want %d\n%s%s", got, want, s.out.String(), s.er.String())
	}
}

func on(ts *testscript.TestScript, _ bool, args []string) {
	status := 200
	if len(args) == 3 {
		n, err := strconv.Atoi(args[2])
		ts.Check(err)
		status = n
	}
	ts.Value("fake").(*fake).on(args[0], reply{status: status, body: ts.ReadFile(args[1])})
}

func asked(ts *testscript.TestScript, _ bool, args []string) {
	got := ts.Value("fake").(*fake).said()
	if args[0] == "sorted" { // by calls side by side
		lines := strings.Split(strings.TrimSpace(got), "\n")
		slices.Sort(lines)
		got, args = strings.Join(lines, "\n")+"\n", args[1:]
	}
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("asked\n%swant\n%s", got, want)
	}
}

func forget(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Value("fake").(*fake).said()
}

// address leaves the fake's address as a supervisor would.
func address(ts *testscript.TestScript, _ bool, args []string) {
	host := strings.TrimPrefix(ts.Getenv("URL"), "http://")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(host+"\n"), 0o600))
}
