package control

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func ensure(t *testing.T) (dir string, pair *tlsPair) {
	t.Helper()
	dir = t.TempDir()
	if err := EnsureTLS(dir); err != nil {
		t.Fatal(err)
	}
	pair, err := loadTLS(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, pair
}

func TestEnsureTLS_MakesOnceAndKeepsClosedToOthers(t *testing.T) {
	t.Parallel()
	dir, _ := ensure(t)
	path := filepath.Join(dir, tlsFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := EnsureTLS(dir); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the keys changed, %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if strings.Count(string(after), "PRIVATE KEY-----\n") != 4 { // two keys, begin and end
		t.Error("want the keys of the two ends and not the authority's")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("files left: %v, %v", entries, err)
	}
}

func TestEnsureTLS_ReplacesABrokenFile(t *testing.T) {
	t.Parallel()
	dir, _ := ensure(t)
	if err := os.Truncate(filepath.Join(dir, tlsFile), 700); err != nil {
		t.Fatal(err)
	}
	if _, err := loadTLS(dir); err == nil {
		t.Fatal("half a file was accepted")
	}
	if err := EnsureTLS(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := loadTLS(dir); err != nil {
		t.Error(err)
	}
	if err := EnsureTLS(filepath.Join(dir, "none")); err == nil {
		t.Error("keys were kept in a directory that is not there")
	}
}

func TestTLS_OnlyTheTwoEndsOfOneFormationMeet(t *testing.T) {
	t.Parallel()
	_, own := ensure(t)
	_, other := ensure(t)
	reversed := own.client()
	reversed.Certificates = own.server().Certificates
	for name, c := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"its own supervisor":            {own.client(), true},
		"another formation's":           {other.client(), false},
		"no certificate":                {&tls.Config{RootCAs: own.authority, ServerName: tlsName, MinVersion: tls.VersionTLS13}, false},
		"the child's key as a client's": {reversed, false},
	} {
		if err := meet(t, own.server(), c.client); (err == nil) != c.ok {
			t.Errorf("%s: %v, want let in %v", name, err, c.ok)
		}
	}
	stranger := other.server()
	if err := meet(t, stranger, own.client()); err == nil {
		t.Error("the supervisor believed another formation's child")
	}
}

// meet shakes hands and sends a byte; it returns the server's verdict.
func meet(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := tls.Dial("unix", l.Addr().String(), client)
		if err == nil {
			_, _ = conn.Write([]byte{1})
			_, _ = conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Server(raw, server)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return err
}

func FuzzParseTLS(f *testing.F) {
	text, err := generateTLS()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:900])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parseTLS(text); err == nil && (p.authority == nil || p.child.Leaf == nil || p.manager.Leaf == nil) {
			t.Error("accepted without keys")
		}
	})
}
