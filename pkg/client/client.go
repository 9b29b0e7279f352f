// Package client calls both HTTP APIs: Server is the management API of a
// supervisor (signed requests, deploys with progress, logs), Formation is the
// API of one formation (chat as JSON, as a stream and asynchronous, sessions,
// agents, tools, traces, live events), reached on its own port or through a supervisor's /api/<id>.
//
// It promises that every refusal is an *Error with the name and status of the
// reply, that a logical call keeps one idempotency key over its retries, that
// only GET and DELETE are retried, that replies and stream lines are bounded,
// and that keys never print. The command line, the end-to-end tests and other
// Go programs import it; it imports nothing of either side (reference
// server.md 10).
package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The bounds of one call.
const (
	// PlainTimeout bounds one attempt of a call that answers at once.
	PlainTimeout = 30 * time.Second
	// DeployTimeout bounds the calls that launch a formation.
	DeployTimeout = 10 * time.Minute
	// DevTimeout bounds the launch of a draft, which may take 300 s.
	DevTimeout = 310 * time.Second
	// MaxReply is the largest JSON reply that is read, in bytes.
	MaxReply = 80 << 20
	// DefaultHeaderPrefix is the <P> in X-<P>-* header names.
	DefaultHeaderPrefix = "SVC"
)

// ServerConfig says which supervisor to call and as whom.
type ServerConfig struct {
	// URL is the base address, "http://host:7890", with or without a path
	// that a reverse proxy strips.
	URL       string
	KeyID     string
	SecretKey Secret
	// Layout is the form of the signature; the zero value is ThreeHeaders.
	Layout Layout
	// HeaderPrefix replaces SVC in header names; "" means SVC.
	HeaderPrefix string
	// Retries is how often a GET or DELETE is tried again after 408, 429,
	// 500, 502, 503 and 504. The zero value means never.
	Retries int
	// HTTP is the client to use; nil means one of our own. Redirects are
	// never followed: a signature belongs to one address.
	HTTP *http.Client
	// TLS says whom to trust at https addresses, as TrustCA and TrustOnly make
	// it; nil means the authorities of the system. It has no effect on HTTP.
	TLS *tls.Config
	// Now is the clock of the signatures; nil means time.Now.
	Now func() time.Time
}

// Server is the management API of one supervisor. It is safe for concurrent use.
type Server struct {
	caller *caller
}

// NewServer checks cfg and returns a client; nothing is sent yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	base, err := parseBase(cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.HeaderPrefix = prefixOr(cfg.HeaderPrefix)
	return &Server{caller: &caller{
		base: base, http: httpOr(cfg.HTTP, cfg.TLS), prefix: cfg.HeaderPrefix, retries: cfg.Retries,
		authorize: cfg.sign,
	}}, nil
}

// Close closes the connections that are idle.
func (s *Server) Close() { s.caller.http.CloseIdleConnections() }

// FormationConfig says which formation to call, as whom and for which user.
type FormationConfig struct {
	// URL is the formation's own address, "http://host:8000", or, with ID, the
	// address of its supervisor.
	URL string
	// ID routes the calls over the supervisor's /api/<ID>, or with Draft over
	// its /draft/<ID>.
	ID    string
	Draft bool
	// ClientKey and AdminKey are sent when set; most calls need one of them.
	ClientKey, AdminKey Secret
	// UserID names the user the calls are for; "" leaves it to the formation.
	UserID string
	// IdleTimeout ends a stream in which not one byte came for so long;
	// the zero value means 60 s. A formation sends a comment every second.
	IdleTimeout time.Duration
	// HeaderPrefix, Retries, HTTP and TLS are as in ServerConfig.
	HeaderPrefix string
	Retries      int
	HTTP         *http.Client
	TLS          *tls.Config
}

// Formation is the API of one formation. It is safe for concurrent use.
type Formation struct {
	caller *caller
	idle   time.Duration
	user   string
}

// NewFormation checks cfg and returns a client; nothing is sent yet.
func NewFormation(cfg FormationConfig) (*Formation, error) {
	base, err := parseBase(cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.ID != "" {
		face := "/api/"
		if cfg.Draft {
			face = "/draft/"
		}
		base.RawPath = base.EscapedPath() + face + url.PathEscape(cfg.ID)
		base.Path += face + cfg.ID
	}
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = time.Minute
	}
	cfg.HeaderPrefix = prefixOr(cfg.HeaderPrefix)
	return &Formation{idle: cfg.IdleTimeout, user: cfg.UserID, caller: &caller{
		base: base, http: httpOr(cfg.HTTP, cfg.TLS), prefix: cfg.HeaderPrefix, retries: cfg.Retries,
		authorize: cfg.identify,
	}}, nil
}

// Close closes the connections that are idle.
func (f *Formation) Close() { f.caller.http.CloseIdleConnections() }

// identify sets the key and user headers.
func (cfg FormationConfig) identify(h http.Header, _ *call) {
	for name, value := range map[string]string{
		"Client-Key": string(cfg.ClientKey), "Admin-Key": string(cfg.AdminKey), "User-ID": cfg.UserID,
	} {
		if value != "" {
			h.Set("X-"+cfg.HeaderPrefix+"-"+name, value)
		}
	}
}

func parseBase(raw string) (*url.URL, error) {
	base, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w", raw, errors.Unwrap(err))
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("server address %q: it must be http://host:port or https://host:port", raw)
	}
	if base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("server address %q: it must have no user, query or fragment", base.Redacted())
	}
	base.Path, base.RawPath = strings.TrimRight(base.Path, "/"), strings.TrimRight(base.RawPath, "/")
	return base, nil
}

func prefixOr(prefix string) string {
	if prefix == "" {
		return DefaultHeaderPrefix
	}
	return prefix
}

// httpOr returns a client that follows no redirects. Timeouts belong to the
// calls, because a stream may last for days.
func httpOr(c *http.Client, trust *tls.Config) *http.Client {
	own := http.Client{}
	if c != nil {
		own = *c
	}
	if own.Transport == nil {
		own.Transport = newTransport(trust)
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

func newTransport(trust *tls.Config) http.RoundTripper {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	t := base.Clone()
	t.MaxIdleConnsPerHost = t.MaxIdleConns
	t.ExpectContinueTimeout = expectTimeout
	if trust != nil {
		t.TLSClientConfig = trust.Clone()
	}
	return t
}
