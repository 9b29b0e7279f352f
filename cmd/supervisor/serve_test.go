package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// watched is a log that tells when a text appears in it.
type watched struct {
	mu   sync.Mutex // guards the fields that follow
	buf  bytes.Buffer
	text string
	seen chan struct{} // closed then
}

func watch(text string) *watched { return &watched{text: text, seen: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := strings.Contains(w.buf.String(), w.text)
	n, err := w.buf.Write(p)
	if !before && strings.Contains(w.buf.String(), w.text) {
		close(w.seen)
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func TestServe_ServesUntilInterruptedAndIsFoundByItsHome(t *testing.T) {
	t.Parallel()
	s := &session{home: t.TempDir()}
	home := filepath.Join(t.TempDir(), "home")
	if code := s.run(t.Context(), "init", "--home", home, "--port", "1", "--no-models"); code != 0 {
		t.Fatalf("init: exit code %d: %s", code, s.er.String())
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	log := watch("the address is left")
	ended := make(chan int, 1)
	a := s.app(log, log)
	go func() { ended <- run(ctx, a, []string{"serve", "--home", home, "--listen", "127.0.0.1:0"}) }()
	select {
	case <-log.seen:
	case code := <-ended:
		t.Fatalf("exit code %d: %s", code, log)
	}
	address := filepath.Join(home, "run", "address")
	if code := s.run(t.Context(), "list", "--home", home); code != 0 || !strings.HasPrefix(s.out.String(), "NAME ") {
		t.Errorf("list: exit code %d: %s%s", code, s.out.String(), s.er.String())
	}
	if code := s.run(t.Context(), "status", "gone", "--home", home); code != exitNotFound {
		t.Errorf("status of an unknown formation: exit code %d: %s", code, s.er.String())
	}
	if code := s.run(t.Context(), "serve", "--home", home, "--listen", "127.0.0.1:0"); code != exitConflict {
		t.Errorf("a second supervisor: exit code %d", code)
	}
	if !strings.Contains(s.er.String(), "another supervisor") {
		t.Errorf("a second supervisor said %q", s.er.String())
	}
	interrupt()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, log)
	}
	if strings.Contains(log.String(), "svc_sk_") {
		t.Error("the log shows the secret key")
	}
	if _, err := os.Stat(address); !os.IsNotExist(err) {
		t.Errorf("the address stays behind: %v", err)
	}
	if code := s.run(t.Context(), "list", "--home", home); code != exitUnavailable {
		t.Errorf("list without a supervisor: exit code %d", code)
	}
}

func TestServe_SaysWhatItCannotUse(t *testing.T) {
	t.Parallel()
	s := &session{home: t.TempDir()}
	home := filepath.Join(t.TempDir(), "home")
	if code := s.run(t.Context(), "serve", "--home", home); code != exitFailed || !strings.Contains(s.er.String(), "supervisor init --home") {
		t.Errorf("without a home: exit code %d: %s", code, s.er.String())
	}
	if code := s.run(t.Context(), "init", "--home", home, "--no-models"); code != 0 {
		t.Fatalf("init: exit code %d", code)
	}
	if code := s.run(t.Context(), "serve", "--home", home, "--log-level", "loud"); code != exitUsage {
		t.Errorf("bad level: exit code %d: %s", code, s.er.String())
	}
	if code := s.run(t.Context(), "serve", "--home", home, "--listen", "nowhere"); code != exitUsage || !strings.Contains(s.er.String(), "it must be host:port") {
		t.Errorf("bad address: exit code %d: %s", code, s.er.String())
	}
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if code := s.run(t.Context(), "serve", "--home", home, "--listen", taken.Addr().String()); code != exitFailed || !strings.Contains(s.er.String(), "choose another address with --listen") {
		t.Errorf("an address that is taken: exit code %d: %s", code, s.er.String())
	}
}
