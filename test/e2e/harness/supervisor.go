package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Options say how a supervisor differs from the one that init makes.
type Options struct {
	// Formations are lines of YAML for the block "formations", each indented by
	// two spaces; Settings are whole blocks.
	Formations, Settings string
	// Server are lines for the block "server", indented likewise.
	Server string
	// Env is added to the environment.
	Env []string
	// Bin replaces the directory of the programs.
	Bin string
}

// Supervisor is a home and, while it runs, the process that serves it.
type Supervisor struct {
	*Process

	TB            testing.TB
	Home          string
	KeyID, Secret string
	URL           string // of the management API, of the latest start
	FirstPort     int    // of the formations
	HTTP          *Client

	bin    string
	env    []string
	listen string // of the management API, the same at every start
}

// Start makes a home, starts a supervisor on it and waits until it answers. At
// the end of the test it is stopped, and must leave no process behind.
func (s *Suite) Start(tb testing.TB, o Options) *Supervisor {
	tb.Helper()
	s.slot(tb)
	sup := s.prepare(tb, o)
	sup.Serve()
	return sup
}

// prepare makes the home.
func (s *Suite) prepare(tb testing.TB, o Options) *Supervisor {
	tb.Helper()
	dir, err := os.MkdirTemp("", "e2e") // short: sockets lie below it
	if err != nil {
		tb.Fatal(err)
	}
	sup := &Supervisor{TB: tb, Home: filepath.Join(dir, "home"), bin: o.Bin, HTTP: NewClient(tb)}
	if sup.bin == "" {
		sup.bin = s.bin
	}
	user := filepath.Join(dir, "user") // so that nobody's own files are read
	sup.env = append([]string{"HOME=" + user, "USER=tester", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, o.Env...)
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	first, last := s.claim(tb) // before what gives the ports back at the end
	tb.Cleanup(sup.end)
	if r := sup.Run("init", "--home", sup.Home, "--yes", "--no-models"); r.Code != 0 {
		tb.Fatalf("init: %s", r.Stderr)
	}
	sup.configure(o, first, last)
	return sup
}

// configure gives the home its ports and settings, and reads its keys.
func (s *Supervisor) configure(o Options, first, last int) {
	s.TB.Helper()
	path := filepath.Join(s.Home, "config.yaml")
	raw, err := os.ReadFile(path)
	if err != nil {
		s.TB.Fatal(err)
	}
	s.FirstPort, s.listen = first, fmt.Sprintf("127.0.0.1:%d", last)
	last--
	text := strings.NewReplacer(
		"\nserver:\n", "\nserver:\n"+o.Server,
		"port_range_start: 8000", fmt.Sprintf("port_range_start: %d", first),
		"port_range_end: 9000", fmt.Sprintf("port_range_end: %d\n%s", last, o.Formations),
	).Replace(string(raw))
	if text == string(raw) {
		s.TB.Fatalf("init wrote other settings than expected:\n%s", raw)
	}
	if err := os.WriteFile(path, []byte(text+"\n"+o.Settings), 0o600); err != nil {
		s.TB.Fatal(err)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "- id: "); ok {
			s.KeyID = id
		}
		if secret, ok := strings.CutPrefix(strings.TrimSpace(line), "secret: "); ok {
			s.Secret = secret
		}
	}
}

// Serve starts the process and waits until it answers.
func (s *Supervisor) Serve() {
	s.TB.Helper()
	s.HTTP.http.CloseIdleConnections() // those of a process before it
	s.Process = run(s.TB, s.env, filepath.Join(s.bin, "supervisor"), "serve", "--home", s.Home, "--listen", s.listen)
	Until(s.TB, "the supervisor serves", func() bool {
		if s.Ended() {
			s.TB.Fatalf("the supervisor ended:\n%s", s.Out)
		}
		addr := s.Out.value("supervisor is ready", "address")
		// The commands of the command line look it up in this file.
		left, err := os.ReadFile(filepath.Join(s.Home, "run", "address"))
		if url := "http://" + addr; addr != "" && s.URL != url { // a load may be reading it
			s.URL = url
		}
		return addr != "" && err == nil && strings.TrimSpace(string(left)) == addr
	})
}

// Stop asks the process to end, as an operator does, and returns its exit code.
func (s *Supervisor) Stop() int {
	s.TB.Helper()
	s.Signal(syscall.SIGTERM)
	return s.Exit(s.TB)
}

// end stops what runs and looks for processes that were left behind.
func (s *Supervisor) end() {
	if s.Process != nil && !s.Ended() {
		if code := s.terminate(); code != 0 {
			s.TB.Errorf("the supervisor ended with %d", code)
		}
	}
	for _, pid := range s.leftBehind() {
		s.TB.Errorf("process %d is left behind", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	s.checkErrorLogs()
	if s.TB.Failed() && s.Process != nil {
		s.TB.Logf("the supervisor's log, without its requests:\n%s", s.Out.without(`"message":"request"`))
		s.logChildren()
	}
}

// leftBehind returns the processes that do not end by themselves. A supervisor
// that was killed may have started one that nobody knows; that one ends when it
// finds nobody to report to.
func (s *Supervisor) leftBehind() []int {
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		left := processesBelow(s.Home)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-limit.C:
			return left
		}
	}
}

// checkErrorLogs looks for what no child may print.
func (s *Supervisor) checkErrorLogs() {
	logs, _ := filepath.Glob(filepath.Join(s.Home, "logs", "*-err.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			s.TB.Error(err)
		}
		for _, mark := range []string{"DATA RACE", "panic: ", "fatal error: "} {
			if strings.Contains(string(text), mark) {
				s.TB.Errorf("%s holds %q:\n%s", filepath.Base(path), mark, text)
			}
		}
	}
}

func (s *Supervisor) logChildren() {
	logs, _ := filepath.Glob(filepath.Join(s.Home, "logs", "*.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err == nil && !strings.HasSuffix(path, "audit.log") {
			s.TB.Logf("%s:\n%s", filepath.Base(path), text)
		}
	}
}

// Run runs the command line to its end, as it is.
func (s *Supervisor) Run(args ...string) Result {
	s.TB.Helper()
	return output(s.TB, s.env, filepath.Join(s.bin, "supervisor"), args...)
}

// CLI runs a command against this home.
func (s *Supervisor) CLI(args ...string) Result {
	s.TB.Helper()
	return s.Run(append(args, "--home", s.Home)...)
}

// Background starts a command against this home and leaves it running.
func (s *Supervisor) Background(args ...string) *Process {
	s.TB.Helper()
	p := run(s.TB, s.env, filepath.Join(s.bin, "supervisor"), append(args, "--home", s.Home)...)
	s.TB.Cleanup(p.Kill)
	return p
}

// Second starts another process on the same home, which is not waited for.
func (s *Supervisor) Second() *Process {
	s.TB.Helper()
	return s.Background("serve", "--listen", "127.0.0.1:0")
}

// Files lists what lies in directories below the home, relative to it.
func (s *Supervisor) Files(dirs ...string) []string {
	s.TB.Helper()
	var found []string
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(s.Home, dir), func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(s.Home, path)
			if rel != dir {
				found = append(found, rel)
			}
			return err
		})
		if err != nil {
			s.TB.Fatal(err)
		}
	}
	return found
}
