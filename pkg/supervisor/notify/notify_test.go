package notify_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/supervisor/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a-secret-of-the-operator"

// delivery is one request that the receiver got.
type delivery struct {
	header http.Header
	body   []byte
}

// receiver is an operator's webhook on a real socket.
type receiver struct {
	*httptest.Server
	got chan delivery
}

// receive starts a receiver; answer (may be nil, which is 204) gets the number
// of the request, from 0 on.
func receive(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, n int)) *receiver {
	t.Helper()
	rec := &receiver{got: make(chan delivery, 1000)}
	var mu sync.Mutex
	n := 0
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		at := n
		n++
		mu.Unlock()
		rec.got <- delivery{r.Header.Clone(), body}
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, r, at)
	}))
	t.Cleanup(rec.Close)
	return rec
}

// next waits for a delivery.
func (r *receiver) next(t *testing.T) delivery {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case d := <-r.got:
		return d
	case <-limit.C:
		t.Fatal("no delivery came")
		return delivery{}
	}
}

// verify does what the reference tells receivers to do (section 11): recompute
// the signature of exactly these bytes, and refuse what is older than 300 s.
func verify(d delivery, key, prefix string, now time.Time) error {
	at, mac, ok := strings.Cut(d.header.Get("X-"+prefix+"-Signature"), ",")
	if !ok || !strings.HasPrefix(at, "t=") || !strings.HasPrefix(mac, "v1=") {
		return fmt.Errorf("signature %q", d.header.Get("X-"+prefix+"-Signature"))
	}
	at = at[len("t="):]
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || d.header.Get("X-"+prefix+"-Timestamp") != at {
		return fmt.Errorf("timestamps %q and %q", at, d.header.Get("X-"+prefix+"-Timestamp"))
	}
	if age := now.Sub(time.Unix(seconds, 0)).Abs(); age > 300*time.Second {
		return fmt.Errorf("it is %v old", age)
	}
	given, err := hex.DecodeString(mac[len("v1="):])
	if err != nil || mac != strings.ToLower(mac) {
		return fmt.Errorf("v1 %q", mac)
	}
	want := hmac.New(sha256.New, []byte(key))
	want.Write([]byte(at + "." + string(d.body)))
	if !hmac.Equal(given, want.Sum(nil)) {
		return fmt.Errorf("the signature does not match %s", d.body)
	}
	return nil
}

// safeLog takes log lines from any goroutine.
type safeLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines are the records so far.
func (l *safeLog) lines(t *testing.T) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []map[string]any
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// running starts Run; the returned function ends it and waits.
func running(t *testing.T, n *notify.Notifier) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { n.Run(ctx) })
	end = func() { cancel(); wg.Wait() }
	t.Cleanup(end)
	return end
}

func notifier(t *testing.T, cfg notify.Config) *notify.Notifier {
	t.Helper()
	n, err := notify.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func crash(i int) notify.Notice {
	return notify.Notice{Event: "crashed", FormationID: "f" + strconv.Itoa(i), Time: time.Unix(1700000000, 0), Message: "it crashed"}
}

func TestNotice_IsSignedAsTheReferenceSays(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"SVC", "ACME"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			r := receive(t, nil)
			cfg := notify.Config{Log: zerolog.Nop(), URL: r.URL + "/hooks/x?y=z", Secret: secret}
			if prefix != "SVC" { // which is the default
				cfg.HeaderPrefix = prefix
			}
			n := notifier(t, cfg)
			running(t, n)
			n.Send(notify.Notice{
				Event: "hung", FormationID: "hello", Time: time.Date(2026, 1, 2, 4, 4, 5, 600, time.FixedZone("", 3600)),
				Message: "it \"hung\" <again> \n€", Detail: map[string]any{"z": 1, "a": map[string]any{"c": []string{"x"}, "b": nil}},
			})
			d := r.next(t)
			if err := verify(d, secret, prefix, time.Now()); err != nil {
				t.Error(err)
			}
			want := `{"detail":{"a":{"b":null,"c":["x"]},"z":1},"event":"hung","formation_id":"hello",` +
				`"message":"it \"hung\" \u003cagain\u003e \n€","time":"2026-01-02T03:04:05.0000006Z"}`
			if diff := cmp.Diff(want, string(d.body)); diff != "" || d.header.Get("Content-Type") != "application/json" {
				t.Errorf("%q, body (-want +got):\n%s", d.header.Get("Content-Type"), diff)
			}
			// The receiver's check is one: each of these is refused.
			forged := delivery{d.header, append(bytes.Clone(d.body), ' ')}
			for name, err := range map[string]error{
				"another body": verify(forged, secret, prefix, time.Now()), "another key": verify(d, "other", prefix, time.Now()),
				"an old one": verify(d, secret, prefix, time.Now().Add(6*time.Minute)),
			} {
				if err == nil {
					t.Errorf("%s passes", name)
				}
			}
		})
	}
}

func TestNotice_WithoutASecretHasNoSignature(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	n := notifier(t, notify.Config{Log: zerolog.Nop(), URL: r.URL})
	running(t, n)
	n.Send(crash(1))
	d := r.next(t)
	if d.header.Get("X-SVC-Signature") != "" || d.header.Get("X-SVC-Timestamp") == "" || !bytes.Contains(d.body, []byte(`"detail":{}`)) {
		t.Errorf("%v %s", d.header, d.body)
	}
}

func TestRun_DeliversInOrderAndWhatWaitsAtTheEnd(t *testing.T) {
	t.Parallel()
	var log safeLog
	r := receive(t, nil)
	synctest.Test(t, func(t *testing.T) { // where the farewell's clock stands still while we wait for the network
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: r.URL, Secret: secret})
		for i := range 50 {
			n.Send(crash(i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n.Run(ctx) // which has nothing but its farewell
		if len(r.got) != 50 {
			t.Fatalf("%d notices came, want 50; log %v", len(r.got), log.lines(t))
		}
		seen := make(map[string]bool)
		for range 50 {
			d := <-r.got
			if err := verify(d, secret, "SVC", time.Now()); err != nil {
				t.Error(err)
			}
			seen[string(d.body)] = true
		}
		if len(seen) != 50 {
			t.Errorf("%d different notices", len(seen))
		}
		n.Send(crash(99)) // nobody takes it any more, and the log says so
	})
	lines := log.lines(t)
	if len(lines) != 1 || lines[0]["formation"] != "f99" || !strings.Contains(fmt.Sprint(lines[0]["message"]), "dropped") {
		t.Errorf("log: %v", lines)
	}
}

func TestNew_RefusesOtherAddressesWithoutQuotingThem(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "hooks.example/T0KEN", "ftp://hooks.example/T0KEN", "http://", "http://h\x7f/T0KEN", "https:///T0KEN", "http://a b/T0KEN"} {
		if _, err := notify.New(notify.Config{URL: address}); err == nil || strings.Contains(err.Error(), "T0KEN") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
