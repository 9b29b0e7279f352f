package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/notify"
	"github.com/agentformation/service/test/testports"
)

// timed notes when each attempt begins, by the clock of its bubble.
type timed struct {
	http.RoundTripper
	mu sync.Mutex
	at []time.Time
}

func (r *timed) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.at = append(r.at, time.Now())
	r.mu.Unlock()
	return r.RoundTripper.RoundTrip(req)
}

// pauses returns those between the attempts so far.
func (r *timed) pauses() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []time.Duration
	for i := 1; i < len(r.at); i++ {
		all = append(all, r.at[i].Sub(r.at[i-1]))
	}
	return all
}

// once connects anew each time: an idle connection would keep a bubble's clock
// from moving.
func once() *timed { return &timed{RoundTripper: &http.Transport{DisableKeepAlives: true}} }

// pass lets d go by in a bubble, with all that it brings about.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func near(got, want, margin time.Duration) bool { return got >= want-margin && got <= want+margin }

func TestRun_RetriesThreeTimesWithGrowingPauses(t *testing.T) {
	t.Parallel()
	r := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n < 4 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var log safeLog
		trips := once()
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: r.URL, Secret: secret, Client: &http.Client{Transport: trips}})
		end := running(t, n)
		n.Send(crash(1))
		pass(2 * time.Minute)
		pauses := trips.pauses()
		if len(pauses) != 3 {
			t.Fatalf("pauses: %v, want three", pauses)
		}
		for i, want := range []time.Duration{time.Second, 5 * time.Second, 25 * time.Second} {
			if !near(pauses[i], want, want/10) {
				t.Errorf("pause %d is %v, want %v and a tenth at the most", i, pauses[i], want)
			}
		}
		for i := range 4 { // each is signed anew, at its own time
			d := <-r.got
			if got, want := d.header.Get("X-SVC-Timestamp"), strconv.FormatInt(trips.at[i].Unix(), 10); got != want {
				t.Errorf("attempt %d was signed at %s, want %s", i, got, want)
			}
			if err := verify(d, secret, "SVC", trips.at[i]); err != nil {
				t.Error(err)
			}
		}
		lines := log.lines(t)
		if len(lines) != 1 || lines[0]["error"] != "post notice: the receiver answered 500 Internal Server Error" || lines[0]["formation"] != "f1" {
			t.Errorf("log: %v, want one line", lines)
		}
		n.Send(crash(2)) // the receiver is well again
		pass(time.Second)
		if len(trips.pauses()) != 4 || len(log.lines(t)) != 1 {
			t.Errorf("%d attempts in all, log %v", len(trips.pauses())+1, log.lines(t))
		}
		end()
	})
}

func TestRun_ARetryThatIsTakenEndsTheTrying(t *testing.T) {
	t.Parallel()
	r := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n < 2 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var log safeLog
		trips := once()
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: r.URL, Client: &http.Client{Transport: trips}})
		end := running(t, n)
		n.Send(crash(1))
		pass(2 * time.Minute)
		if len(trips.pauses()) != 2 || len(log.lines(t)) != 0 {
			t.Errorf("pauses %v, log %v", trips.pauses(), log.lines(t))
		}
		end()
	})
}

// silent is a receiver that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestRun_AnAttemptHasTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log safeLog
		trips := &timed{RoundTripper: silent{}}
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: "http://127.0.0.1/", Client: &http.Client{Transport: trips}})
		end := running(t, n)
		n.Send(crash(1))
		pass(3 * time.Minute)
		pauses := trips.pauses()
		if len(pauses) != 3 || !near(pauses[0], 11*time.Second, 100*time.Millisecond) || len(log.lines(t)) != 1 {
			t.Errorf("attempts after %v, log %v", pauses, log.lines(t))
		}
		end()
	})
}

func TestSend_AFullQueueDropsAndLogsAndNeverBlocks(t *testing.T) {
	t.Parallel()
	const room = 256
	synctest.Test(t, func(t *testing.T) {
		var log safeLog
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: "http://127.0.0.1/T0KEN", Client: &http.Client{Transport: silent{}}})
		end := running(t, n)
		n.Send(crash(0))
		synctest.Wait() // it is on its way: the queue is empty, and Run busy
		began := time.Now()
		for i := range room + 3 {
			n.Send(crash(i + 1))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("Send took %v", took)
		}
		lines := log.lines(t)
		if len(lines) != 3 {
			t.Fatalf("%d lines, want one for each that is dropped: %v", len(lines), lines)
		}
		for i, line := range lines {
			if line["formation"] != "f"+strconv.Itoa(room+1+i) || line["event"] != "crashed" || line["level"] != "error" {
				t.Errorf("line %d: %v", i, line)
			}
		}
		end()
	})
}

func TestRun_EndsInThreeSecondsWhateverWaits(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"in an attempt": time.Second, "in the pause before a retry": 10*time.Second + 500*time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log safeLog
				n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: "http://127.0.0.1/", Client: &http.Client{Transport: silent{}}})
				end := running(t, n)
				for i := range 100 {
					n.Send(crash(i))
				}
				pass(wait)
				began := time.Now()
				end()
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("Run ended after %v, want 3 s", took)
				}
				if lines := log.lines(t); len(lines) != 100 {
					t.Errorf("%d of 100 lost notices are in the log", len(lines))
				}
			})
		})
	}
}

func TestRun_EndsAtOnceWhenNothingWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := notifier(t, notify.Config{Log: zerolog.Nop(), URL: "http://127.0.0.1/", Client: &http.Client{Transport: silent{}}})
		end := running(t, n)
		pass(time.Hour)
		began := time.Now()
		end()
		if took := time.Since(began); took != 0 {
			t.Errorf("Run ended after %v", took)
		}
	})
}

func TestRun_ANoticeThatIsNoJSONIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log safeLog
		trips := &timed{RoundTripper: silent{}}
		n := notifier(t, notify.Config{Log: zerolog.New(&log), URL: "http://127.0.0.1/", Client: &http.Client{Transport: trips}})
		end := running(t, n)
		n.Send(notify.Notice{Event: "budget", FormationID: "hello", Detail: map[string]any{"x": func() {}}})
		synctest.Wait()
		if lines := log.lines(t); len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["error"]), "write notice") || len(trips.at) != 0 {
			t.Errorf("log %v, %d attempts", lines, len(trips.at))
		}
		end()
	})
}

// parrot is no HTTP server: it sends back what it gets.
func parrot(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				buf := make([]byte, 4096)
				if n, err := c.Read(buf); err == nil {
					_, _ = c.Write(buf[:n])
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestLog_NeverHoldsTheSecretOrTheAddress(t *testing.T) {
	t.Parallel()
	elsewhere := receive(t, nil)
	answers := receive(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Location", elsewhere.URL+r.URL.String())
		w.WriteHeader([]int{302, 307, 400, 410, 429, 500}[n])
		_, _ = io.WriteString(w, r.URL.String()+r.Header.Get("Authorization"))
	})
	secured := receive(t, nil)
	host := func(u string) string { return strings.TrimPrefix(u, "http://") }
	for _, tc := range []struct {
		name, scheme, host string
		want               string // in the log
	}{
		{"302", "http", host(answers.URL), "answered 302 Found"},
		{"307", "http", host(answers.URL), "answered 307 Temporary Redirect"},
		{"400", "http", host(answers.URL), "answered 400 Bad Request"},
		{"410", "http", host(answers.URL), "answered 410 Gone"},
		{"429", "http", host(answers.URL), "answered 429 Too Many Requests"},
		{"500", "http", host(answers.URL), "answered 500 Internal Server Error"},
		{"refused", "http", testports.Refusing(t), "connection refused"},
		{"no HTTP", "http", parrot(t), "malformed HTTP"},
		{"no TLS", "https", host(secured.URL), "HTTP response to HTTPS client"},
	} {
		var log safeLog
		synctest.Test(t, func(t *testing.T) { // where the farewell's clock stands still while we wait for the network
			n := notifier(t, notify.Config{
				Log: zerolog.New(&log), Secret: secret,
				URL: tc.scheme + "://operator:pa55word@" + tc.host + "/services/T0KEN%2Fpart?key=qu3ry",
			})
			n.Send(notify.Notice{Event: "crashed", FormationID: "hello", Message: "a message"})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			n.Run(ctx) // one attempt, without a pause
		})
		lines := log.lines(t)
		if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["error"]), tc.want) || lines[0]["host"] != tc.host {
			t.Errorf("%s: log %v, want %q", tc.name, lines, tc.want)
		}
		text, err := json.Marshal(lines)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{secret, "T0KEN", "qu3ry", "pa55word", "operator", "services", "v1="} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s: the log has %q: %s", tc.name, word, text)
			}
		}
	}
	if len(elsewhere.got) != 0 {
		t.Error("a redirect was followed")
	}
}

// broken fails with a text that has the address in it, as a proxy's may.
type broken struct{}

func (broken) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, errors.New("no way to " + r.URL.String() + " or " + r.URL.RequestURI() + " for " + secret)
}

func TestLog_RedactsWhatAnErrorQuotes(t *testing.T) {
	t.Parallel()
	var log safeLog
	n := notifier(t, notify.Config{
		Log: zerolog.New(&log), Secret: secret, URL: "https://hooks.example/services/T0KEN?key=qu3ry", Client: &http.Client{Transport: broken{}},
	})
	n.Send(crash(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Run(ctx)
	lines := log.lines(t)
	if len(lines) != 1 || lines[0]["error"] != "post notice: no way to *** or *** for ***" {
		t.Errorf("log: %v", lines)
	}
}
