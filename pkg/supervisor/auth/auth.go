// Package auth decides whether a management request was signed by someone who
// holds a key. It accepts two layouts of an HMAC-SHA256 signature:
//
//	Authorization: SVC-HMAC key=ID, timestamp=T, signature=S   over T;METHOD;path
//	X-SVC-Key-ID, X-SVC-Timestamp, X-SVC-Signature             over T;METHOD;path;body_hash
//
// The second one needs the body, so checking has two steps: Check looks at the
// headers, Claim.Finish at the hash of the body. A claim that is not Verified
// proves nothing. Keys can be replaced while requests are served, and one id may
// have older secrets that are believed until their time. A second request with
// the same signature is legitimate: two equal calls in one second sign equally.
//
// httpapi imports it.
package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// Secret is the shared part of a key. It never prints.
type Secret string

// String returns three asterisks.
func (Secret) String() string { return "***" }

// GoString returns three asterisks.
func (Secret) GoString() string { return "***" }

// MarshalText returns three asterisks, for JSON, YAML and logs.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// MaxSecrets is how many secrets one id may have at a time: each of them is tried.
const MaxSecrets = 8

// Key is one pair of id and secret.
type Key struct {
	ID     string `conf:"id"`
	Secret Secret `conf:"secret"`
	// Until is when the pair stops being believed; zero is never. Of the pairs
	// with one id all but one have it.
	Until time.Time `conf:"valid_until"`
}

// Valid tells whether the pair is believed at a time.
func (k Key) Valid(now time.Time) bool { return k.Until.IsZero() || now.Before(k.Until) }

// Config says which requests are believed.
type Config struct {
	Keys []Key
	// HeaderPrefix is the word in X-<prefix>-* and <prefix>-HMAC, "SVC" when empty.
	HeaderPrefix string
	// Tolerance is how far a timestamp may be off, past or future; 0 means 300 s.
	Tolerance time.Duration
	// RequireBodyHash rejects the Authorization form.
	RequireBodyHash bool
	// Disabled believes everyone (development only).
	Disabled bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Verifier checks signatures. It is safe for concurrent use.
type Verifier struct {
	scheme          string // "SVC-HMAC "
	keyID, stamp    string // canonical header names
	signature       string
	tolerance       time.Duration
	requireBodyHash bool
	disabled        bool
	now             func() time.Time
	keys            atomic.Pointer[map[string][]Key]
}

// New returns a Verifier; it refuses keys without id or secret, and ids that
// occur twice without an end.
func New(cfg Config) (*Verifier, error) {
	prefix := cfg.HeaderPrefix
	if prefix == "" {
		prefix = "SVC"
	}
	v := &Verifier{
		scheme:          prefix + "-HMAC ",
		keyID:           http.CanonicalHeaderKey("X-" + prefix + "-Key-ID"),
		stamp:           http.CanonicalHeaderKey("X-" + prefix + "-Timestamp"),
		signature:       http.CanonicalHeaderKey("X-" + prefix + "-Signature"),
		tolerance:       cfg.Tolerance,
		requireBodyHash: cfg.RequireBodyHash,
		disabled:        cfg.Disabled,
		now:             cfg.Now,
	}
	if v.tolerance <= 0 {
		v.tolerance = 300 * time.Second
	}
	if v.now == nil {
		v.now = time.Now
	}
	return v, v.SetKeys(cfg.Keys)
}

// SetKeys replaces all keys at once. Requests being checked use the old or the
// new set, never a mixture. On error the old set stays.
func (v *Verifier) SetKeys(keys []Key) error {
	set := make(map[string][]Key, len(keys))
	endless := func(k Key) bool { return k.Until.IsZero() }
	for i, k := range keys {
		if k.ID == "" || k.Secret == "" {
			return fmt.Errorf("auth.keys[%d]: id and secret must both be set", i)
		}
		if endless(k) && slices.ContainsFunc(set[k.ID], endless) {
			return fmt.Errorf("auth.keys[%d]: id %s occurs twice; set valid_until of the older one", i, k.ID)
		}
		if set[k.ID] = append(set[k.ID], k); len(set[k.ID]) > MaxSecrets {
			return fmt.Errorf("auth.keys[%d]: id %s has more than %d secrets", i, k.ID, MaxSecrets)
		}
	}
	v.keys.Store(&set)
	return nil
}

// The refusals, verbatim from server.md section 2.
func refuse(message string) error {
	return fault.New(fault.Unauthenticated, "Unauthorized", message)
}

const (
	msgMissing   = "Missing authorization header"
	msgFormat    = "Invalid authorization header format"
	msgKey       = "Invalid key"
	msgExpired   = "Request expired (timestamp too old or in future)"
	msgSignature = "Invalid signature"
)

// Claim is a request that names a known key and a timely timestamp.
type Claim struct {
	// KeyID is who signed, once Verified; "" when authentication is disabled.
	KeyID string

	verified bool
	message  string // what is signed, up to the body hash
	secrets  []Secret
	given    []byte // the signature of the request
}

// Verified tells whether the signature has been found right.
func (c *Claim) Verified() bool { return c.verified }

// Check looks at everything that can be known before the body is read. The
// claim it returns is verified already, unless the layout signs the body and
// there may be one. Every refusal is fault.Unauthenticated "Unauthorized".
func (v *Verifier) Check(r *http.Request) (*Claim, error) {
	if v.disabled {
		return &Claim{verified: true}, nil
	}
	p, err := v.parse(r.Header)
	if err != nil {
		return nil, err
	}
	secrets := v.secretsOf(p.KeyID)
	if len(secrets) == 0 {
		return nil, refuse(msgKey)
	}
	if err := v.timely(p.Timestamp); err != nil {
		return nil, err
	}
	c := &Claim{KeyID: p.KeyID, secrets: secrets}
	if c.given, err = base64.StdEncoding.Strict().DecodeString(p.Signature); err != nil {
		return nil, refuse(msgSignature)
	}
	c.message = Canonical(p.Timestamp, r.Method, r.URL.Path)
	switch {
	case !p.SignsBody:
		c.verified = c.matches(c.message)
		if !c.verified {
			return nil, refuse(msgSignature)
		}
	case r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody:
		return c, c.Finish(sha256.Sum256(nil), 0)
	}
	return c, nil
}

// Finish checks the signature of a layout that covers the body, given the
// body's SHA-256 and size in bytes. A verified claim stays so.
func (c *Claim) Finish(sum [sha256.Size]byte, size int64) error {
	if c.verified {
		return nil
	}
	c.verified = c.matches(c.message + ";" + hex.EncodeToString(sum[:]))
	if !c.verified && size == 0 {
		c.verified = c.matches(c.message + ";")
	}
	if !c.verified {
		return refuse(msgSignature)
	}
	return nil
}

func (c *Claim) matches(message string) bool {
	for _, secret := range c.secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(message))
		if hmac.Equal(mac.Sum(nil), c.given) {
			return true
		}
	}
	return false
}

// secretsOf returns the secrets of an id that are believed now.
func (v *Verifier) secretsOf(id string) []Secret {
	now := v.now()
	var secrets []Secret
	for _, k := range (*v.keys.Load())[id] {
		if k.Valid(now) {
			secrets = append(secrets, k.Secret)
		}
	}
	return secrets
}

// timely compares without subtracting: a timestamp may be any 64-bit number.
func (v *Verifier) timely(timestamp string) error {
	ts, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return refuse(msgFormat)
	}
	now := v.now()
	if ts < now.Add(-v.tolerance).Unix() || ts > now.Add(v.tolerance).Unix() {
		return refuse(msgExpired)
	}
	return nil
}

// Canonical returns the signed text of the Authorization form; the other form
// appends ";" and the body hash. path is the decoded URL path without query.
func Canonical(timestamp, method, path string) string {
	return timestamp + ";" + method + ";" + path
}

// parsed is what the headers of a request say, unchecked.
type parsed struct {
	KeyID, Timestamp, Signature string
	SignsBody                   bool
}

func (v *Verifier) parse(h http.Header) (parsed, error) {
	p := parsed{KeyID: h.Get(v.keyID), Timestamp: h.Get(v.stamp), Signature: h.Get(v.signature), SignsBody: true}
	if p.KeyID != "" || p.Signature != "" {
		if p.KeyID == "" || p.Timestamp == "" || p.Signature == "" {
			return parsed{}, refuse(msgFormat)
		}
		return p, nil
	}
	value := h.Get("Authorization")
	if value == "" {
		return parsed{}, refuse(msgMissing)
	}
	p, ok := parseAuthorization(v.scheme, value)
	if !ok || v.requireBodyHash {
		return parsed{}, refuse(msgFormat)
	}
	return p, nil
}

// parseAuthorization splits "SVC-HMAC key=ID, timestamp=T, signature=S". Each
// part is split at its first "=", since base64 ends with some.
func parseAuthorization(scheme, value string) (parsed, bool) {
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return parsed{}, false
	}
	var p parsed
	fields := map[string]*string{"key": &p.KeyID, "timestamp": &p.Timestamp, "signature": &p.Signature}
	for part := range strings.SplitSeq(value[len(scheme):], ",") {
		name, val, ok := strings.Cut(strings.TrimSpace(part), "=")
		field := fields[name]
		if !ok || field == nil || *field != "" || val == "" {
			return parsed{}, false
		}
		*field = val
	}
	return p, p.KeyID != "" && p.Timestamp != "" && p.Signature != ""
}
