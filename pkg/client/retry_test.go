package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// script answers each request with the next of its statuses, the last one for
// all that follow. It stands for the network, so that time can be virtual.
type script struct {
	statuses   []int
	retryAfter string
	message    string          // of FormationUnavailable; "" for another error
	at         []time.Duration // since start, one per request
	keys       []string
	signatures []string
	start      time.Time
	err        error
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.at = append(s.at, time.Since(s.start))
	s.keys = append(s.keys, r.Header.Get("X-SVC-Idempotency-Key"))
	s.signatures = append(s.signatures, r.Header.Get("X-SVC-Signature"))
	if s.err != nil {
		return nil, s.err
	}
	status := s.statuses[min(len(s.at), len(s.statuses))-1]
	body := `{"success":true,"data":{}}`
	if status >= 300 {
		body = `{"success":false,"error":"Busy","message":"try later","code":503}`
	}
	if s.message != "" {
		body = `{"success":false,"error":"FormationUnavailable","message":"` + s.message + `","code":503}`
	}
	h := http.Header{}
	if s.retryAfter != "" {
		h.Set("Retry-After", s.retryAfter)
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func (s *script) client(t *testing.T, retries int) *client.Server {
	t.Helper()
	c, err := client.NewServer(client.ServerConfig{
		URL: "http://supervisor", KeyID: keyID, SecretKey: secretKey, Retries: retries,
		HTTP: &http.Client{Transport: s},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRetry_WaitsTwiceAsLongEachTimeWithOneKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{408, 429, 500, 502, 503, 504, 503, 503, 200}}
		if _, err := s.client(t, 8).List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if len(s.at) != 9 {
			t.Fatalf("%d attempts, want 9", len(s.at))
		}
		for i, want := range []float64{0.5, 1, 2, 4, 8, 16, 30, 30} {
			if wait := (s.at[i+1] - s.at[i]).Seconds(); wait < want || wait > want*1.1 {
				t.Errorf("wait %d was %gs, want %gs and up to a tenth", i+1, wait, want)
			}
			if s.keys[i+1] != s.keys[0] || s.keys[0] == "" {
				t.Errorf("attempt %d has the key %q, the first had %q", i+2, s.keys[i+1], s.keys[0])
			}
		}
		if s.signatures[0] == s.signatures[5] {
			t.Error("an attempt half a minute later has the first one's signature")
		}
	})
}

func TestRetry_EndsWithTheLastError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{503}}
		_, err := s.client(t, 2).Get(t.Context(), "hello")
		e := wantError(t, err, 503, "Busy")
		if e.Message != "try later" || len(s.at) != 3 {
			t.Errorf("message %q after %d attempts", e.Message, len(s.at))
		}
	})
}

func TestRetry_OnlyWhereItIsSafeAndUseful(t *testing.T) {
	t.Parallel()
	list := func(ctx context.Context, s *client.Server) error { _, err := s.List(ctx, ""); return err }
	remove := func(ctx context.Context, s *client.Server) error { return s.Delete(ctx, "x") }
	stop := func(ctx context.Context, s *client.Server) error { return s.Stop(ctx, "x") }
	for name, tc := range map[string]struct {
		script  *script
		retries int
		call    func(context.Context, *client.Server) error
		want    int
	}{
		"no retries":        {&script{statuses: []int{503}}, 0, list, 1},
		"GET":               {&script{statuses: []int{503}}, 1, list, 2},
		"DELETE":            {&script{statuses: []int{503}}, 1, remove, 2},
		"POST":              {&script{statuses: []int{503}}, 3, stop, 1},
		"not found":         {&script{statuses: []int{404}}, 3, list, 1},
		"conflict":          {&script{statuses: []int{409}}, 3, list, 1},
		"unauthorised":      {&script{statuses: []int{401}}, 3, list, 1},
		"asked to wait 60s": {&script{statuses: []int{503}, retryAfter: "60"}, 3, list, 1},
		"no connection":     {&script{err: errors.New("refused")}, 3, list, 1},
		"a redirect":        {&script{statuses: []int{302}}, 3, list, 1},
		"stopped":           {&script{statuses: []int{503}, message: "Formation 'x' is stopped"}, 3, list, 1},
		"crashed":           {&script{statuses: []int{503}, message: "Formation 'x' is crashed"}, 3, list, 1},
		"restarting":        {&script{statuses: []int{503}, message: "Formation 'x' is restarting"}, 3, list, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if err := tc.call(t.Context(), tc.script.client(t, tc.retries)); err == nil {
					t.Error("no error")
				}
				if len(tc.script.at) != tc.want {
					t.Errorf("%d attempts, want %d", len(tc.script.at), tc.want)
				}
			})
		})
	}
}

func TestRetry_HonoursRetryAfterInBothForms(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"seconds", "date"} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{statuses: []int{429, 200}, retryAfter: "7"}
			if form == "date" {
				s.retryAfter = time.Now().Add(7 * time.Second).UTC().Format(http.TimeFormat)
			}
			if _, err := s.client(t, 1).List(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			if wait := s.at[1].Seconds(); wait < 6.9 || wait > 7.8 {
				t.Errorf("%s: waited %gs, want 7s", form, wait)
			}
		})
	}
}

func TestRetry_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{503}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.client(t, 5).List(ctx, "")
		if !errors.Is(err, context.DeadlineExceeded) || len(s.at) != 2 {
			t.Errorf("error %v after %d attempts", err, len(s.at))
		}
	})
}

func TestError_SaysWhatHappened(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   client.Error
	}{
		"supervisor": {
			404, `{"success":false,"error":"FormationNotFound","message":"no formation x","code":404}`,
			client.Error{Status: 404, Name: "FormationNotFound", Message: "no formation x"},
		},
		"formation": {
			422, `{"object":"error","request":{"id":"req_1"},"error":{"code":"VALIDATION_ERROR","message":"no message","data":{"n":1}},"data":{},"code":"VALIDATION_ERROR","message":"copy"}`,
			client.Error{Status: 422, Name: "VALIDATION_ERROR", Message: "no message", RequestID: "req_1", Data: []byte(`{"n":1}`)},
		},
		"a page": {
			502, `<html>bad gateway</html>`,
			client.Error{Status: 502, Name: "BadGateway", Message: "the server answered 502 Bad Gateway"},
		},
		"nothing":   {401, ``, client.Error{Status: 401, Name: "Unauthorized", Message: "the server answered 401 Unauthorized"}},
		"odd types": {400, `{"error":7,"message":"m"}`, client.Error{Status: 400, Name: "BadRequest", Message: "m"}},
		"a redirect": {
			302, ``, client.Error{Status: 302, Name: "Found", Message: "the server answered 302 Found"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/rpc/formations/x" {
					t.Errorf("followed to %s", r.URL)
				}
				w.Header().Set("Location", "/elsewhere")
				answer(w, tc.status, tc.body)
			})
			_, err := s.Get(t.Context(), "x")
			got := wantError(t, err, tc.want.Status, tc.want.Name)
			if diff := cmp.Diff(tc.want, got, cmp.FilterPath(hiddenField, cmp.Ignore())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func hiddenField(p cmp.Path) bool {
	f, ok := p.Last().(cmp.StructField)
	return ok && f.Name() == "cause"
}

func TestError_WhenNothingAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, func(c *client.ServerConfig) { c.URL = "http://127.0.0.1:1" })
	e := wantError(t, s.Ping(t.Context()), 0, client.NameUnreachable)
	if !strings.Contains(e.Message, "http://127.0.0.1:1") || !strings.Contains(e.Message, "refused") || e.Unwrap() == nil {
		t.Errorf("message %q, cause %v", e.Message, e.Unwrap())
	}
}

func TestError_WhenSomethingElseAnswers(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"<html>", `{"success":true}`, `{"data":[]}`, `{"data":{"formations":7}}`, ""} {
		s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, body) })
		_, err := s.List(t.Context(), "")
		wantError(t, err, 200, client.NameBadReply)
		if err := s.Ping(t.Context()); err == nil {
			t.Errorf("%q was a pong", body)
		}
		if _, err := newFormation(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, body) }).Health(t.Context()); err == nil {
			t.Errorf("%q was a health document", body)
		}
	}
}

func TestError_AnIDThatIsNoSegmentIsNotSent(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") })
	for _, id := range []string{"", ".", ".."} {
		wantError(t, s.Delete(t.Context(), id), 400, client.NameInvalidID)
	}
}

func TestError_AReplyWithoutEndIsCutOff(t *testing.T) {
	t.Parallel()
	endless := roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Request: r, Body: io.NopCloser(zeros{})}, nil
	})
	s := newServer(t, nil, func(c *client.ServerConfig) { c.HTTP = &http.Client{Transport: endless} })
	e := wantError(t, s.Ping(t.Context()), 0, client.NameUnreachable)
	if !strings.Contains(e.Message, "over the limit of 83886080 bytes") {
		t.Errorf("message %q", e.Message)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
