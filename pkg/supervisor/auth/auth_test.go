package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

const (
	testID     = "svc_pk_0123456789abcdef01234567"
	testSecret = "svc_sk_secret"
	emptyHash  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var testNow = time.Unix(1767225600, 0)

func verifier(t testing.TB, change func(*Config)) *Verifier {
	t.Helper()
	cfg := Config{
		Keys: []Key{{ID: testID, Secret: testSecret}, {ID: "second", Secret: "other"}},
		Now:  func() time.Time { return testNow },
	}
	if change != nil {
		change(&cfg)
	}
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sign is written apart from the code under test, as a client would.
func sign(secret, message string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(message))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func authorization(key string, ts int64, signature string) string {
	return fmt.Sprintf("SVC-HMAC key=%s, timestamp=%d, signature=%s", key, ts, signature)
}

// check runs both steps, as the door does.
func check(v *Verifier, r *http.Request, body string) (*Claim, error) {
	c, err := v.Check(r)
	if err != nil {
		return nil, err
	}
	if !c.Verified() {
		if err := c.Finish(sha256.Sum256([]byte(body)), int64(len(body))); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func TestCheck_KnownSignature(t *testing.T) {
	t.Parallel()
	// Computed with: printf '1767225600;GET;/rpc/formations' | openssl dgst -sha256 -hmac svc_sk_secret -binary | base64
	const want = "uTkwYkYd69JlOTh7hEec2dX/jmSfpo+bW6hpbj9a0e8="
	// ... with ';e3b0c442...' appended.
	const wantBody = "ROCAs9yK2mdHCSLVRsSDb3zY4JPQFRfRFy1rX7CIq9M="
	v := verifier(t, nil)
	r := httptest.NewRequest(http.MethodGet, "/rpc/formations?status=running", http.NoBody)
	r.Header.Set("Authorization", authorization(testID, testNow.Unix(), want))
	if c, err := check(v, r, ""); err != nil || c.KeyID != testID {
		t.Errorf("authorization form: %v", err)
	}
	r = httptest.NewRequest(http.MethodGet, "/rpc/formations", http.NoBody)
	r.Header.Set("X-SVC-Key-ID", testID)
	r.Header.Set("X-SVC-Timestamp", fmt.Sprint(testNow.Unix()))
	r.Header.Set("X-SVC-Signature", wantBody)
	if c, err := check(v, r, ""); err != nil || c.KeyID != testID {
		t.Errorf("three-header form: %v", err)
	}
}

func TestCheck_AuthorizationForm(t *testing.T) {
	t.Parallel()
	now := testNow.Unix()
	good := sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formations", now))
	at := func(ts int64) string {
		return authorization(testID, ts, sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formations", ts)))
	}
	for name, tc := range map[string]struct{ header, want string }{
		"right":                         {authorization(testID, now, good), ""},
		"second key":                    {authorization("second", now, sign("other", fmt.Sprintf("%d;POST;/rpc/formations", now))), ""},
		"no spaces after commas":        {fmt.Sprintf("SVC-HMAC key=%s,timestamp=%d,signature=%s", testID, now, good), ""},
		"many spaces":                   {fmt.Sprintf("SVC-HMAC   key=%s  ,   timestamp=%d ,signature=%s ", testID, now, good), ""},
		"another order":                 {fmt.Sprintf("SVC-HMAC signature=%s, timestamp=%d, key=%s", good, now, testID), ""},
		"oldest that is allowed":        {at(now - 300), ""},
		"newest that is allowed":        {at(now + 300), ""},
		"too old":                       {at(now - 301), msgExpired},
		"too new":                       {at(now + 301), msgExpired},
		"smallest number":               {at(-1 << 63), msgExpired},
		"largest number":                {at(1<<63 - 1), msgExpired},
		"missing":                       {"", msgMissing},
		"bearer":                        {"Bearer abc", msgFormat},
		"scheme alone":                  {"SVC-HMAC ", msgFormat},
		"other prefix":                  {strings.Replace(authorization(testID, now, good), "SVC", "XYZ", 1), msgFormat},
		"no key":                        {fmt.Sprintf("SVC-HMAC timestamp=%d, signature=%s", now, good), msgFormat},
		"empty key":                     {fmt.Sprintf("SVC-HMAC key=, timestamp=%d, signature=%s", now, good), msgFormat},
		"key twice":                     {authorization(testID, now, good) + ", key=x", msgFormat},
		"unknown part":                  {authorization(testID, now, good) + ", extra=x", msgFormat},
		"part without =":                {authorization(testID, now, good) + ", x", msgFormat},
		"timestamp in words":            {fmt.Sprintf("SVC-HMAC key=%s, timestamp=now, signature=%s", testID, good), msgFormat},
		"timestamp with fraction":       {fmt.Sprintf("SVC-HMAC key=%s, timestamp=%d.5, signature=%s", testID, now, good), msgFormat},
		"unknown key":                   {authorization("nobody", now, good), msgKey},
		"signature of another key":      {authorization("second", now, good), msgSignature},
		"signature not base64":          {authorization(testID, now, "!!!"), msgSignature},
		"signature cut":                 {authorization(testID, now, good[:8]), msgSignature},
		"signature in hex":              {authorization(testID, now, hex.EncodeToString([]byte(good))), msgSignature},
		"signature of another path":     {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formation", now))), msgSignature},
		"signature of another method":   {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;GET;/rpc/formations", now))), msgSignature},
		"signature of lower-case verb":  {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;post;/rpc/formations", now))), msgSignature},
		"signature of another second":   {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formations", now+1))), msgSignature},
		"signature of path with query":  {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formations?a=b", now))), msgSignature},
		"signature with empty body sum": {authorization(testID, now, sign(testSecret, fmt.Sprintf("%d;POST;/rpc/formations;", now))), msgSignature},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, "/rpc/formations?a=b", strings.NewReader("body"))
			if tc.header != "" {
				r.Header.Set("Authorization", tc.header)
			}
			_, err := check(verifier(t, nil), r, "body")
			assertRefusal(t, err, tc.want)
		})
	}
}

func assertRefusal(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if err == nil || err.Error() != want || fault.KindOf(err) != fault.Unauthenticated || fault.NameOf(err) != "Unauthorized" {
		t.Errorf("error = %v, want Unauthorized %q", err, want)
	}
}

func TestCheck_ThreeHeaderForm(t *testing.T) {
	t.Parallel()
	now := testNow.Unix()
	sum := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return hex.EncodeToString(h[:])
	}
	msg := func(method, hash string) string {
		return fmt.Sprintf("%d;%s;/rpc/formations/a b;%s", now, method, hash)
	}
	for name, tc := range map[string]struct {
		method, body, message, want string
		drop                        string
		ts                          int64
	}{
		"body":                       {method: "POST", body: "{}", message: msg("POST", sum("{}"))},
		"no body, hash of nothing":   {method: "POST", message: msg("POST", emptyHash)},
		"no body, empty hash":        {method: "GET", message: msg("GET", "")},
		"body, empty hash":           {method: "POST", body: "{}", message: msg("POST", ""), want: msgSignature},
		"body, hash of nothing":      {method: "POST", body: "{}", message: msg("POST", emptyHash), want: msgSignature},
		"body changed":               {method: "POST", body: "{ }", message: msg("POST", sum("{}")), want: msgSignature},
		"hash in upper case":         {method: "POST", body: "{}", message: msg("POST", strings.ToUpper(sum("{}"))), want: msgSignature},
		"no body hash part":          {method: "GET", message: fmt.Sprintf("%d;GET;/rpc/formations/a b", now), want: msgSignature},
		"path as sent, not decoded":  {method: "GET", message: fmt.Sprintf("%d;GET;/rpc/formations/a%%20b;", now), want: msgSignature},
		"no key id":                  {method: "GET", message: msg("GET", ""), drop: "X-SVC-Key-ID", want: msgFormat},
		"no timestamp":               {method: "GET", message: msg("GET", ""), drop: "X-SVC-Timestamp", want: msgFormat},
		"no signature":               {method: "GET", message: msg("GET", ""), drop: "X-SVC-Signature", want: msgFormat},
		"too old, body is not asked": {method: "POST", body: "{}", message: "x", ts: now - 301, want: msgExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var body *strings.Reader
			r := httptest.NewRequest(tc.method, "/rpc/formations/a%20b?q=1", http.NoBody)
			if tc.body != "" {
				body = strings.NewReader(tc.body)
				r = httptest.NewRequest(tc.method, "/rpc/formations/a%20b?q=1", body)
			}
			ts := now
			if tc.ts != 0 {
				ts = tc.ts
			}
			r.Header.Set("X-SVC-Key-ID", testID)
			r.Header.Set("X-SVC-Timestamp", fmt.Sprint(ts))
			r.Header.Set("X-SVC-Signature", sign(testSecret, tc.message))
			r.Header.Del(tc.drop)
			_, err := check(verifier(t, nil), r, tc.body)
			assertRefusal(t, err, tc.want)
		})
	}
}

func TestCheck_AClaimWithABodyIsNotVerifiedByItsHeaders(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/rpc/formations", strings.NewReader("x"))
	r.ContentLength = -1 // a chunked body
	r.Header.Set("X-SVC-Key-ID", testID)
	r.Header.Set("X-SVC-Timestamp", fmt.Sprint(testNow.Unix()))
	r.Header.Set("X-SVC-Signature", sign(testSecret, "anything"))
	c, err := verifier(t, nil).Check(r)
	if err != nil || c.Verified() {
		t.Fatalf("claim = %+v, %v; want an unverified claim", c, err)
	}
	if err := c.Finish(sha256.Sum256([]byte("x")), 1); err == nil || c.Verified() {
		t.Error("a wrong signature was accepted at the end of the body")
	}
}

func TestCheck_RequireBodyHashRejectsTheAuthorizationForm(t *testing.T) {
	t.Parallel()
	v := verifier(t, func(c *Config) { c.RequireBodyHash = true })
	r := httptest.NewRequest(http.MethodGet, "/rpc/formations", http.NoBody)
	r.Header.Set("Authorization", authorization(testID, testNow.Unix(), sign(testSecret, fmt.Sprintf("%d;GET;/rpc/formations", testNow.Unix()))))
	_, err := v.Check(r)
	assertRefusal(t, err, msgFormat)
}

func TestCheck_FollowsTheHeaderPrefix(t *testing.T) {
	t.Parallel()
	v := verifier(t, func(c *Config) { c.HeaderPrefix = "Acme" })
	msg := fmt.Sprintf("%d;GET;/x", testNow.Unix())
	r := httptest.NewRequest(http.MethodGet, "/x", http.NoBody)
	r.Header.Set("Authorization", strings.Replace(authorization(testID, testNow.Unix(), sign(testSecret, msg)), "SVC", "Acme", 1))
	if _, err := check(v, r, ""); err != nil {
		t.Errorf("authorization form: %v", err)
	}
	r = httptest.NewRequest(http.MethodGet, "/x", http.NoBody)
	r.Header.Set("x-acme-key-id", testID)
	r.Header.Set("x-acme-timestamp", fmt.Sprint(testNow.Unix()))
	r.Header.Set("x-acme-signature", sign(testSecret, msg+";"))
	if _, err := check(v, r, ""); err != nil {
		t.Errorf("three-header form: %v", err)
	}
}

func TestCheck_DisabledBelievesEveryone(t *testing.T) {
	t.Parallel()
	c, err := verifier(t, func(c *Config) { c.Disabled = true }).Check(httptest.NewRequest(http.MethodGet, "/x", http.NoBody))
	if err != nil || !c.Verified() || c.KeyID != "" {
		t.Errorf("claim = %+v, %v", c, err)
	}
}

func TestSetKeys_TakesEffectAtOnceAndKeepsTheOldSetOnError(t *testing.T) {
	t.Parallel()
	v := verifier(t, nil)
	request := func(id, secret string) error {
		r := httptest.NewRequest(http.MethodGet, "/x", http.NoBody)
		r.Header.Set("Authorization", authorization(id, testNow.Unix(), sign(secret, fmt.Sprintf("%d;GET;/x", testNow.Unix()))))
		_, err := v.Check(r)
		return err
	}
	if err := v.SetKeys([]Key{{ID: "new", Secret: "s"}}); err != nil {
		t.Fatal(err)
	}
	if err := request("new", "s"); err != nil {
		t.Errorf("new key: %v", err)
	}
	assertRefusal(t, request(testID, testSecret), msgKey)
	for _, bad := range [][]Key{{{ID: "x"}}, {{Secret: "x"}}, {{ID: "a", Secret: "x"}, {ID: "a", Secret: "y"}}} {
		if err := v.SetKeys(bad); err == nil {
			t.Errorf("keys %+v were accepted", bad)
		}
	}
	if err := request("new", "s"); err != nil {
		t.Errorf("after a refused set: %v", err)
	}
}

func TestSetKeys_AnOlderSecretIsBelievedUntilItsEnd(t *testing.T) {
	t.Parallel()
	now := testNow
	v := verifier(t, func(c *Config) { c.Now = func() time.Time { return now } })
	keys := []Key{
		{ID: "ann", Secret: "old", Until: testNow.Add(time.Hour)},
		{ID: "ann", Secret: "new"},
		{ID: "guest", Secret: "g", Until: testNow.Add(time.Hour)},
	}
	if err := v.SetKeys(keys); err != nil {
		t.Fatal(err)
	}
	both := func(id, secret string) error {
		plain := httptest.NewRequest(http.MethodGet, "/x", http.NoBody)
		plain.Header.Set("Authorization", authorization(id, now.Unix(), sign(secret, fmt.Sprintf("%d;GET;/x", now.Unix()))))
		_, err := check(v, plain, "")
		body := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader("body"))
		message := fmt.Sprintf("%d;POST;/x;%x", now.Unix(), sha256.Sum256([]byte("body")))
		for name, value := range map[string]string{
			"X-SVC-Key-ID": id, "X-SVC-Timestamp": strconv.FormatInt(now.Unix(), 10), "X-SVC-Signature": sign(secret, message),
		} {
			body.Header.Set(name, value)
		}
		if _, again := check(v, body, "body"); (err == nil) != (again == nil) {
			t.Errorf("%s with %s: one layout says %v, the other %v", id, secret, err, again)
		}
		return err
	}
	for _, k := range keys {
		if err := both(k.ID, string(k.Secret)); err != nil {
			t.Errorf("%s with %s: %v", k.ID, k.Secret, err)
		}
	}
	assertRefusal(t, both("ann", "g"), msgSignature)
	now = testNow.Add(time.Hour)
	if err := both("ann", "new"); err != nil {
		t.Errorf("the new secret after the overlap: %v", err)
	}
	assertRefusal(t, both("ann", "old"), msgSignature)
	assertRefusal(t, both("guest", "g"), msgKey)
}

func TestSetKeys_BoundsTheSecretsOfAnID(t *testing.T) {
	t.Parallel()
	v := verifier(t, nil)
	keys := []Key{{ID: "a", Secret: "s"}}
	for range MaxSecrets - 1 {
		keys = append(keys, Key{ID: "a", Secret: "s", Until: testNow})
	}
	if err := v.SetKeys(keys); err != nil {
		t.Error(err)
	}
	if err := v.SetKeys(append(keys, keys[1])); err == nil {
		t.Errorf("%d secrets are accepted", MaxSecrets+1)
	}
}

func TestSecret_NeverPrints(t *testing.T) {
	t.Parallel()
	k := Key{ID: "id", Secret: "hunter2"}
	js, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%+v %#v %q %s", k, k, k.Secret, k.Secret), string(js)} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("printed: %s", s)
		}
	}
}

func FuzzParseAuthorization(f *testing.F) {
	f.Add("SVC-HMAC key=a, timestamp=1, signature=b==")
	f.Add("SVC-HMAC key=a,,timestamp=1,signature=")
	f.Add("svc-hmac \xff=,=,")
	f.Fuzz(func(t *testing.T, value string) {
		p, ok := parseAuthorization("SVC-HMAC ", value)
		if !ok {
			return
		}
		again, ok := parseAuthorization("SVC-HMAC ", fmt.Sprintf("SVC-HMAC key=%s, timestamp=%s, signature=%s", p.KeyID, p.Timestamp, p.Signature))
		if !ok || again != p {
			t.Fatalf("%q parsed to %+v and, written again, to %+v", value, p, again)
		}
	})
}

func FuzzCanonical(f *testing.F) {
	f.Add("1", "GET", "/a", "/b")
	f.Add("1;GET", "/a", ";", "")
	f.Fuzz(func(t *testing.T, ts, method, one, two string) {
		// The timestamp is a number and a method a token, so neither holds a
		// semicolon; then different requests never sign the same text.
		if strings.Contains(ts+method, ";") || one == two {
			return
		}
		if Canonical(ts, method, one) == Canonical(ts, method, two) {
			t.Fatalf("%q and %q sign alike", one, two)
		}
	})
}
