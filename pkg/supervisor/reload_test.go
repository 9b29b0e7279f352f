package supervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/test/testports"
	"github.com/agentformation/service/test/testprogram"
)

func TestReload_UnderLoadFailsNothing(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"plain": "", "TLS": "server: {tls: {cert: c.pem, key: k.pem}}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t, "")
			if settings != "" {
				makeCertificate(t, s.home, "localhost")
				text := readFile(t, s.made.ConfigPath)
				writeFile(t, s.made.ConfigPath, strings.Replace(text, "server:\n", "server:\n  tls: {cert: c.pem, key: k.pem}\n", 1))
				s.url = strings.Replace(s.url, "http:", "https:", 1)
			}
			s.start()
			d := s.deploy("hello")
			l := s.load(d.Port, d.PID)
			l.more(200)
			for range 3 {
				s.install(testBinary(t))
				s.reload()
				l.more(200)
			}
			l.end()
			if s.ended() {
				t.Fatal("the process is another one")
			}
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.cmd.Process.Pid)); err != nil || exe != s.binary {
				t.Errorf("the program is %s, %v; want the new %s", exe, err, s.binary)
			}
			// It is still the parent: the end of the child has a reason, and another follows.
			if err := syscall.Kill(d.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			deploytest.Eventually(t, "the child is replaced", func() bool {
				f, err := s.api().Get(t.Context(), "hello")
				return err == nil && f.Status == "running" && f.PID != d.PID && f.RestartCount == 1
			})
			if !strings.Contains(s.log.String(), `"reason":"signal: killed"`) && !strings.Contains(s.log.String(), "killed") {
				t.Error("the reason of the child's end is not known")
			}
			s.leavesNothing()
		})
	}
}

func TestReload_IsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.start()
	d := s.deploy("hello")
	l := s.load(d.Port, d.PID)
	good := readFile(t, s.made.ConfigPath)
	for _, tc := range []struct {
		name, want string
		spoil      func()
	}{
		{"settings", s.made.ConfigPath + ":", func() { writeFile(t, s.made.ConfigPath, good+"servr: {}\n") }},
		{"certificate", "no such file", func() {
			writeFile(t, s.made.ConfigPath, strings.Replace(good, "server:\n", "server:\n  tls: {cert: c.pem, key: k.pem}\n", 1))
		}},
		{"address", "address already in use", func() {
			writeFile(t, s.made.ConfigPath, strings.Replace(good, "port: "+s.url[strings.LastIndex(s.url, ":")+1:], "port: "+strconv.Itoa(d.Port), 1))
		}},
		{"no program", "no such file", func() {
			if err := os.Remove(s.binary); err != nil {
				t.Fatal(err)
			}
		}},
		{"another program", "it is not for you", func() {
			script := filepath.Join(t.TempDir(), "script")
			if err := testprogram.Write(script, []byte("#!/bin/sh\necho it is not for you >&2\nexit 3\n")); err != nil {
				t.Fatal(err)
			}
			s.install(script)
		}},
	} {
		tc.spoil()
		o := s.hangUp()
		if o.Done || !strings.Contains(o.Message, tc.want) {
			t.Errorf("%s: outcome %+v, want %q", tc.name, o, tc.want)
		}
		writeFile(t, s.made.ConfigPath, good)
		s.install(testBinary(t))
		l.more(100)
	}
	s.reload()
	l.more(100)
	l.end()
	s.leavesNothing()
}

func TestReload_TakesNewSettings(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.start()
	d := s.deploy("hello")
	port := testports.Block(t)
	text := readFile(t, s.made.ConfigPath)
	old := s.url
	writeFile(t, s.made.ConfigPath, strings.Replace(text, "port: "+s.url[strings.LastIndex(s.url, ":")+1:], "port: "+strconv.Itoa(port), 1)+
		"header_prefix: Acme\n")
	s.reload()
	s.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	if text, err := s.ask(t.Context(), s.http, s.url+"/api/hello/"); err != nil || text != strconv.Itoa(d.PID) {
		t.Errorf("at the new address: %q, %v", text, err)
	}
	deploytest.Eventually(t, "the old address is closed", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(old, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	s.leavesNothing()
}

// Streams are finished as long as the drain time allows; nobody else waits for
// them.
func TestReload_ALongStreamIsFinishedAndAnEndlessOneIsCut(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	text := readFile(t, s.made.ConfigPath)
	writeFile(t, s.made.ConfigPath, strings.Replace(text, "drain_timeout: 2", "drain_timeout: 10", 1))
	s.start()
	d := s.deploy("hello")
	open := func(path string) *bufio.Reader {
		res := get(t, s.http, s.url+path)
		t.Cleanup(func() { res.Body.Close() })
		r := bufio.NewReader(res.Body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return r
	}
	long, endless := open("/api/hello/ticks?250"), open("/api/hello/stream")
	began := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	deploytest.Eventually(t, "a bridge serves", func() bool { return len(s.bridges()) == 1 })
	for time.Since(began) < 2*time.Second { // the program is not replaced yet
		asked := time.Now()
		if text, err := s.ask(t.Context(), s.http, s.url+"/api/hello/"); err != nil || text != strconv.Itoa(d.PID) {
			t.Fatalf("meanwhile: %q, %v", text, err)
		}
		if took := time.Since(asked); took > 5*time.Second { // with the new program it would be eight or more
			t.Errorf("a request took %s", took)
		}
	}
	var health client.ServerHealth
	res := get(t, s.http, s.url+"/health")
	if err := json.NewDecoder(res.Body).Decode(&health); err != nil || health.Formations != 1 {
		t.Errorf("health meanwhile: %+v, %v", health, err)
	}
	res.Body.Close()
	// What needs the supervisor waits for it.
	if list, err := s.api().List(t.Context(), ""); err != nil || len(list) != 1 || list[0].PID != d.PID {
		t.Errorf("list: %+v, %v", list, err)
	}
	if took := time.Since(began); took < 9*time.Second || took > time.Minute {
		t.Errorf("the list was answered after %s, want when the drain time was over", took)
	}
	all, err := io.ReadAll(long)
	if err != nil || !strings.HasSuffix(string(all), "data: end\n\n") {
		t.Errorf("the long stream: %v, ... %q", err, all[max(0, len(all)-20):])
	}
	if all, err := io.ReadAll(endless); err == nil {
		t.Errorf("the endless stream ended as if it were complete: %q", all)
	}
	if line := readFile(t, filepath.Join(s.home, "logs/audit.log")); !strings.Contains(line, `"remote_addr":"127.0.0.1"`) {
		t.Errorf("the peer of the call that waited is not recorded: %s", line)
	}
	s.leavesNothing()
}
