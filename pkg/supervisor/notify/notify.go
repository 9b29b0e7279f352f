// Package notify tells the operator's webhook what happened: a formation that
// crashed or hung, a budget that is used up, a delivery that was given up.
//
// It promises that Send never waits, that a notice is tried four times in all,
// that it is signed with the operator's secret, that one which is given up is in
// the log, and that the secret and the address, which often holds a token, never
// are. pkg/supervisor connects it to deploy.
package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"
)

const (
	queueLen    = 256              // notices that wait; further ones are dropped
	retries     = 3                // after the first attempt
	timeout     = 10 * time.Second // of one attempt
	firstDelay  = time.Second      // before the first retry; then 5 s and 25 s
	delayFactor = 5
	farewell    = 3 * time.Second // for what waits when Run ends
	maxReply    = 64 << 10        // bytes of an answer that are read
)

// Notice is one message.
type Notice struct {
	Event       string // crashed, hung, budget or dead_letter
	FormationID string
	Time        time.Time
	Message     string
	Detail      map[string]any // nil is sent as {}
}

// Config says where notices go.
type Config struct {
	Log zerolog.Logger
	URL string // http or https
	// Secret signs each body when it is not empty.
	Secret string
	// HeaderPrefix is the word in X-<prefix>-Signature, "SVC" when empty.
	HeaderPrefix string
	// Client sends; nil makes one. It does not follow redirects.
	Client *http.Client
	Now    func() time.Time // nil is time.Now
}

// Notifier is safe for concurrent use.
type Notifier struct {
	cfg    Config
	host   string // of URL, for the log
	redact *strings.Replacer
	queue  chan Notice

	mu    sync.RWMutex // guards ended
	ended bool         // Run takes what is in the queue, and nothing after it
}

// New checks cfg. Notices wait until Run.
func New(cfg Config) (*Notifier, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("notify: the webhook must be an http or https address") // the error of Parse would quote it
	}
	if cfg.HeaderPrefix == "" {
		cfg.HeaderPrefix = "SVC"
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Notifier{cfg: cfg, host: u.Host, redact: redactor(u, cfg.Secret), queue: make(chan Notice, queueLen)}, nil
}

// minSecret is how long a part of the address must be, in bytes, to be taken for
// something that must not be told. Anything shorter is in every other text.
const minSecret = 4

// redactor takes out of an error's text what a receiver may have sent back to
// us: one that speaks no HTTP is quoted by the client.
func redactor(u *url.URL, secret string) *strings.Replacer {
	password, _ := u.User.Password()
	var pairs []string
	for _, word := range []string{
		secret, u.String(), u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery, u.User.String(), u.User.Username(), password,
	} { // the longest first: of two that begin at one place the earlier is taken
		if len(word) >= minSecret {
			pairs = append(pairs, word, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}

// Send queues a notice. When the queue is full, because the receiver is down, or
// Run has ended, the notice is dropped and the log says so.
func (n *Notifier) Send(notice Notice) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	why := "too many notices wait for the webhook; this one is dropped"
	if n.ended {
		why = "the webhook gets no further notices; this one is dropped"
	} else {
		select {
		case n.queue <- notice:
			return
		default:
		}
	}
	n.cfg.Log.Error().Str("event", notice.Event).Str("formation", notice.FormationID).Msg(why)
}

// Run delivers notices, one after the other, until ctx ends. What waits then
// gets one attempt each, for 3 s in all.
func (n *Notifier) Run(ctx context.Context) {
	defer n.cfg.Client.CloseIdleConnections()
	for {
		select {
		case notice := <-n.queue:
			n.deliver(ctx, notice)
			continue
		case <-ctx.Done():
		}
		break
	}
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	for {
		select {
		case notice := <-n.queue:
			n.report(notice, n.post(ctx, notice))
		default:
			return
		}
	}
}

// deliver tries until the receiver has it. When ctx ends in between, one last
// attempt is left to Run.
func (n *Notifier) deliver(ctx context.Context, notice Notice) {
	delays := &backoff.ExponentialBackOff{
		InitialInterval: firstDelay, Multiplier: delayFactor, RandomizationFactor: 0.1, MaxInterval: time.Minute,
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, n.post(ctx, notice) },
		backoff.WithBackOff(delays), backoff.WithMaxTries(retries+1), backoff.WithMaxElapsedTime(0))
	if err != nil && ctx.Err() != nil {
		n.Send(notice)
		return
	}
	n.report(notice, err)
}

func (n *Notifier) report(notice Notice, err error) {
	if err == nil {
		return
	}
	n.cfg.Log.Error().Str("error", n.redact.Replace(err.Error())).Str("event", notice.Event).Str("formation", notice.FormationID).Str("host", n.host).
		Msg("the webhook does not take a notice; it is dropped")
}

// post makes one attempt. Its error may quote the receiver.
func (n *Notifier) post(ctx context.Context, notice Notice) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := notice.encode()
	if err != nil {
		return backoff.Permanent(fmt.Errorf("write notice: %w", err))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(errors.New("write notice: the address is not usable"))
	}
	req.Header.Set("Content-Type", "application/json")
	n.sign(req.Header, body)
	res, err := n.cfg.Client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address
		}
		return fmt.Errorf("post notice: %w", err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxReply)) // so that the connection is used again
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("post notice: the receiver answered %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	}
	return nil
}

// encode is compact JSON with sorted keys: those of a map are.
func (n Notice) encode() ([]byte, error) {
	detail := n.Detail
	if detail == nil {
		detail = map[string]any{}
	}
	return json.Marshal(map[string]any{
		"event": n.Event, "formation_id": n.FormationID, "time": n.Time.UTC().Format(time.RFC3339Nano),
		"message": n.Message, "detail": detail,
	})
}

// sign sets the headers of server.md section 11 for exactly these bytes.
func (n *Notifier) sign(h http.Header, body []byte) {
	at := strconv.FormatInt(n.cfg.Now().Unix(), 10)
	h.Set("X-"+n.cfg.HeaderPrefix+"-Timestamp", at)
	if n.cfg.Secret == "" {
		return
	}
	mac := hmac.New(sha256.New, []byte(n.cfg.Secret))
	mac.Write([]byte(at + "."))
	mac.Write(body)
	h.Set("X-"+n.cfg.HeaderPrefix+"-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
}
