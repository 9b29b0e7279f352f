package harness

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	return s.HTTP.Must(s.UpdateRequest(id, files.Bundle(s.TB, id)))
}

// Call is RPC with a JSON body.
func (s *Supervisor) Call(method, path string, body any) Reply {
	s.TB.Helper()
	return s.HTTP.Must(s.CallRequest(method, path, body))
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
	return s.HTTP.Must(Request{Method: method, URL: s.URL + path, Header: s.Signing(method, route, nil).ThreeHeaders()})
}

// CallText is Call with a body as it is.
func (s *Supervisor) CallText(method, path, text string) Reply {
	s.TB.Helper()
	return s.HTTP.Must(Request{Method: method, URL: s.URL + path, Header: s.Signing(method, path, []byte(text)).ThreeHeaders(), Body: text})
}

// Listen takes a loopback port, as another program would.
func Listen(tb testing.TB, port int) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}
