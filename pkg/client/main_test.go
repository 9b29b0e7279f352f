package client_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	keyID     = "svc_pk_a"
	secretKey = "svc_sk_0123"
)

// newServer returns a management client of a server that is h.
func newServer(t *testing.T, h http.HandlerFunc, change ...func(*client.ServerConfig)) *client.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg := client.ServerConfig{
		URL: srv.URL, KeyID: keyID, SecretKey: secretKey,
		Now: func() time.Time { return time.Unix(1700000000, 0) },
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := client.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// newFormation returns a client of a formation that is h.
func newFormation(t *testing.T, h http.HandlerFunc, change ...func(*client.FormationConfig)) *client.Formation {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg := client.FormationConfig{URL: srv.URL, ClientKey: "fmc_1", UserID: "ada"}
	for _, f := range change {
		f(&cfg)
	}
	f, err := client.NewFormation(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// answer writes a JSON reply.
func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write([]byte(body))
}

// events begins a stream.
func events(w http.ResponseWriter, frames ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, f := range frames {
		w.Write([]byte(f + "\n\n"))
		w.(http.Flusher).Flush()
	}
}

// wantError checks the status and name of err and returns it.
func wantError(t *testing.T, err error, status int, name string) client.Error {
	t.Helper()
	e, ok := err.(*client.Error) //nolint:errorlint // the promise is the type itself
	if !ok || e.Status != status || e.Name != name {
		t.Fatalf("error %#v (%v), want status %d, name %q", err, err, status, name)
	}
	return *e
}
