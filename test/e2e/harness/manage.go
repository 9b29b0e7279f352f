package harness

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// UpdateRequest is a signed update of a formation by a bundle.
func (s *Supervisor) UpdateRequest(id string, bundle []byte) Request {
	path := "/rpc/formations/" + id
	header := s.Signing(http.MethodPut, path, bundle).ThreeHeaders()
	header["Content-Type"] = "application/gzip"
	return Request{Method: http.MethodPut, URL: s.URL + path, Header: header, Body: bundle}
}

// Update updates a formation to files and returns the answer, whatever it is.
func (s *Supervisor) Update(id string, files Files) Reply {
	s.TB.Helper()
	return s.change(s.UpdateRequest(id, files.Bundle(s.TB, id)))
}

// BeginUpdate is Update beside the test: its answer comes over the channel.
func (s *Supervisor) BeginUpdate(id string, files Files) <-chan Reply {
	s.TB.Helper()
	request := s.UpdateRequest(id, files.Bundle(s.TB, id))
	answer := make(chan Reply, 1)
	go func() {
		reply, err := s.HTTP.Do(s.TB.Context(), request)
		s.HTTP.http.CloseIdleConnections()
		if err != nil {
			s.TB.Errorf("update %s: %v", id, err)
		}
		answer <- reply
	}()
	return answer
}

// Call is RPC with a JSON body.
func (s *Supervisor) Call(method, path string, body any) Reply {
	s.TB.Helper()
	return s.change(s.CallRequest(method, path, body))
}

// change sends what may end a process of a formation. No later request tries a
// connection that ended with it.
func (s *Supervisor) change(r Request) Reply {
	s.TB.Helper()
	reply := s.HTTP.Must(r)
	s.HTTP.http.CloseIdleConnections()
	return reply
}

// CallRequest is a signed call of the management API with a JSON body.
func (s *Supervisor) CallRequest(method, path string, body any) Request {
	s.TB.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		s.TB.Fatal(err)
	}
	route, _, _ := strings.Cut(path, "?")
	return Request{Method: method, URL: s.URL + path, Header: s.Signing(method, route, text).ThreeHeaders(), Body: text}
}

// Reload makes the running process execute its program anew, as SIGHUP does,
// and waits until the new image answers.
func (s *Supervisor) Reload() {
	s.TB.Helper()
	starts := strings.Count(s.Out.String(), `"supervisor is ready"`)
	s.Signal(syscall.SIGHUP)
	Until(s.TB, "the new image is ready", func() bool {
		if s.Ended() {
			s.TB.Fatalf("the supervisor ended:\n%s", s.Out)
		}
		return strings.Count(s.Out.String(), `"supervisor is ready"`) > starts
	})
	s.HTTP.http.CloseIdleConnections() // those of the old image
}

// Version returns the files with another version in the manifest.
func (f Files) Version(version string) Files {
	changed := f.With("")
	lines := strings.Split(changed["formation.afs"], "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "version:") {
			lines = append(lines[:i], lines[i+1:]...)
			break
		}
	}
	changed["formation.afs"] = "version: " + strconv.Quote(version) + "\n" + strings.Join(lines, "\n")
	return changed
}

// Children returns the processes that work below this home, the supervisor left
// out.
func (s *Supervisor) Children() []int { return processesBelow(s.Home) }

// Runtimes returns, of those, the formation-runtime processes of one formation.
func (s *Supervisor) Runtimes(id string) []int {
	var found []int
	below := filepath.Join(s.Home, "formations", id)
	for _, pid := range processesBelow(below) {
		name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if err == nil && strings.HasPrefix(string(name), "formation-runti") {
			found = append(found, pid)
		}
	}
	return found
}

// RPCQuery is RPC with a query in the path, which is not signed.
func (s *Supervisor) RPCQuery(method, path string) Reply {
	s.TB.Helper()
	route, _, _ := strings.Cut(path, "?")
	return s.change(Request{Method: method, URL: s.URL + path, Header: s.Signing(method, route, nil).ThreeHeaders()})
}

// CallText is Call with a body as it is.
func (s *Supervisor) CallText(method, path, text string) Reply {
	s.TB.Helper()
	return s.HTTP.Must(Request{Method: method, URL: s.URL + path, Header: s.Signing(method, path, []byte(text)).ThreeHeaders(), Body: text})
}

// Listen takes a loopback port, as another program would, until free is called
// or the test ends.
func Listen(tb testing.TB, port int) (free func()) {
	tb.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		tb.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		// A process that is being forked holds the socket, too, until it executes its
		// program: closing it would not free the port at once.
		raw, err := l.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
		}
		if err := errors.Join(err, l.Close()); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(free)
	return free
}
