package client_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// seen is what a test server keeps of a request.
type seen struct {
	Path, RawPath, Query string
	Header               http.Header
}

func record(got *seen, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*got = seen{Path: r.URL.Path, RawPath: r.URL.EscapedPath(), Query: r.URL.RawQuery, Header: r.Header}
		answer(w, http.StatusOK, body)
	}
}

// The signatures were computed with another HMAC (python's) over the messages
// of reference server.md 2 with the secret svc_sk_0123.
func TestServer_SignsBothLayouts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		layout client.Layout
		call   func(*client.Server) error
		want   map[string]string
	}{
		"three headers, no body": {
			client.ThreeHeaders,
			func(s *client.Server) error { _, err := s.List(t.Context(), "running"); return err },
			map[string]string{
				"X-Svc-Key-Id": keyID, "X-Svc-Timestamp": "1700000000",
				"X-Svc-Signature": "SE5p14xAHl7diVUeCPNAIQc+ythWIaPYvkIVyqz7ll8=",
			},
		},
		"three headers, a bundle": {
			client.ThreeHeaders,
			func(s *client.Server) error {
				_, err := s.Deploy(t.Context(), client.DeployRequest{ID: "x-y-z", Bundle: strings.NewReader("bundle")}, nil)
				return err
			},
			map[string]string{"X-Svc-Signature": "4k+JIO4rrQth/sHpEJ5mLcipvJ1WGNWf97SmoTp1cr4="},
		},
		"three headers, a path with escapes": {
			client.ThreeHeaders,
			func(s *client.Server) error { return s.Delete(t.Context(), "a b/c") },
			map[string]string{"X-Svc-Signature": "UppKBOHGABwZCKES+JHsE51zrazCLsb/0RP6smGcyKQ="},
		},
		"authorization": {
			client.Authorization,
			func(s *client.Server) error { _, err := s.List(t.Context(), ""); return err },
			map[string]string{
				"Authorization":   "SVC-HMAC key=" + keyID + ", timestamp=1700000000, signature=gfnuTpz/hzIi4pFKYq/D3b/t/aGbFiwto5VsE4aafL4=",
				"X-Svc-Signature": "",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got seen
			s := newServer(t, record(&got, `{"success":true,"data":{}}`),
				func(c *client.ServerConfig) { c.Layout = tc.layout })
			if err := tc.call(s); err != nil {
				t.Fatal(err)
			}
			for header, want := range tc.want {
				if value := got.Header.Get(header); value != want {
					t.Errorf("%s: %q, want %q", header, value, want)
				}
			}
		})
	}
}

func TestServer_SignsThePathWithoutTheBase(t *testing.T) {
	t.Parallel()
	var got seen
	s := newServer(t, record(&got, `{"success":true,"data":{}}`),
		func(c *client.ServerConfig) { c.URL += "/behind/a proxy/" })
	if err := s.Delete(t.Context(), "a b/c"); err != nil {
		t.Fatal(err)
	}
	if want := "/behind/a%20proxy/rpc/formations/a%20b%2Fc"; got.RawPath != want {
		t.Errorf("path %q, want %q", got.RawPath, want)
	}
	if want := "UppKBOHGABwZCKES+JHsE51zrazCLsb/0RP6smGcyKQ="; got.Header.Get("X-SVC-Signature") != want {
		t.Errorf("signature %q, want that of the relative path", got.Header.Get("X-SVC-Signature"))
	}
}

func TestServer_UsesTheHeaderPrefixEverywhere(t *testing.T) {
	t.Parallel()
	for _, layout := range []client.Layout{client.ThreeHeaders, client.Authorization} {
		var got seen
		s := newServer(t, record(&got, `{"success":true,"data":{}}`), func(c *client.ServerConfig) {
			c.HeaderPrefix, c.Layout = "ACME", layout
		})
		if _, err := s.List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		for name, values := range got.Header {
			if strings.Contains(strings.ToUpper(name+fmt.Sprint(values)), "SVC-") {
				t.Errorf("header %s: %v", name, values)
			}
		}
		if got.Header.Get("X-ACME-Idempotency-Key") == "" {
			t.Errorf("headers %v lack X-ACME-*", got.Header)
		}
	}
}

func TestServer_SendsNoSignatureWithoutAKey(t *testing.T) {
	t.Parallel()
	var got seen
	s := newServer(t, record(&got, `{"success":true,"data":{}}`),
		func(c *client.ServerConfig) { c.KeyID = "" })
	if _, err := s.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if got.Header.Get("X-SVC-Signature")+got.Header.Get("Authorization") != "" {
		t.Errorf("signed without a key: %v", got.Header)
	}
}

func TestFormation_IdentifiesItselfOnEveryRoute(t *testing.T) {
	t.Parallel()
	var got seen
	f := newFormation(t, record(&got, `{"data":{"request_id":"req_1"}}`), func(c *client.FormationConfig) {
		c.ID, c.AdminKey, c.UserID = "hello", "fma_1", "Ädä"
	})
	if _, err := f.Chat(t.Context(), client.ChatRequest{Message: "hi", IdempotencyKey: "once"}); err != nil {
		t.Fatal(err)
	}
	if got.Path != "/api/hello/v1/chat" {
		t.Errorf("path %s", got.Path)
	}
	want := map[string]string{
		"X-SVC-Client-Key": "fmc_1", "X-SVC-Admin-Key": "fma_1", "X-SVC-User-ID": "Ädä",
		"X-SVC-Idempotency-Key": "once", "Content-Type": "application/json", "Authorization": "",
	}
	for header, value := range want {
		if got.Header.Get(header) != value {
			t.Errorf("%s: %q, want %q", header, got.Header.Get(header), value)
		}
	}
}

func TestNew_RefusesAnAddressThatIsNone(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"", "localhost:7890", "127.0.0.1", "ftp://host", "http://", "http://host?x=1", "http://me:secret@host", "http://ho st",
	} {
		_, err := client.NewServer(client.ServerConfig{URL: address})
		if err == nil {
			t.Errorf("%q was taken", address)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("error %q shows the password", err)
		}
		if _, err := client.NewFormation(client.FormationConfig{URL: address}); err == nil {
			t.Errorf("%q was taken for a formation", address)
		}
	}
}

func TestSecret_NeverPrints(t *testing.T) {
	t.Parallel()
	cfg := client.ServerConfig{SecretKey: "svc_sk_hidden"}
	out, err := json.Marshal(cfg.SecretKey)
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %x %q", cfg, cfg, cfg, cfg.SecretKey, cfg.SecretKey, cfg.SecretKey) + string(out)
	printed += cfg.SecretKey.String() + cfg.SecretKey.GoString()
	cfg.URL = "http://127.0.0.1:1"
	s, err := client.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f, err := client.NewFormation(client.FormationConfig{URL: cfg.URL, AdminKey: "hidden"})
	if err != nil {
		t.Fatal(err)
	}
	printed += fmt.Sprintf("%v %+v %#v", s, *s, f)
	if strings.Contains(printed, "hidden") || strings.Contains(printed, fmt.Sprintf("%x", "hidden")) {
		t.Errorf("the key is in %s", printed)
	}
	if diff := cmp.Diff("svc_sk_hidden", string(cfg.SecretKey)); diff != "" {
		t.Error(diff)
	}
}
