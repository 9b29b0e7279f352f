package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/redact"
)

func TestString_FindsShapes(t *testing.T) {
	t.Parallel()
	r := redact.New()
	jwt := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
	for in, want := range map[string]string{
		// Keys of vendors, and ours.
		"Incorrect API key provided: sk-proj-abcdefgh12345678.": "Incorrect API key provided: [redacted:key].",
		"key=AIzaSyA1234567890abcdefghijklmnopqrstuv":           "key=[redacted:key]",
		"clone with ghp_abcdefghij0123456789":                   "clone with [redacted:key]",
		"github_pat_11ABCDEFG0123456789_abc":                    "[redacted:key]",
		"id AKIAIOSFODNN7EXAMPLE, more":                         "id [redacted:key], more",
		"(svc_sk_0123456789abcdef0123456789abcdef)":             "([redacted:key])",
		"fma_0123456789abcdefghijABCDEFGHIJ":                    "[redacted:key]",
		"xoxb-123456789012-abcdefghij":                          "[redacted:key]",
		"--api-key=abc":                                         "--api-key=[redacted:password]",
		"--sk-abcdefgh123456789":                                "--[redacted:key]",
		// Tokens.
		"Authorization: Bearer abcdef123456":      "Authorization: Bearer [redacted:token]",
		"authorization: Basic dXNlcjpwYXNzd29yZA": "authorization: Basic [redacted:token]",
		"token " + jwt + " expired":               "token [redacted:token] expired",
		// Passwords and what is named like them.
		"password=hunter2 user=bob":                "password=[redacted:password] user=bob",
		`{"password":"two words","user":"bob"}`:    `{"password":"[redacted:password]","user":"bob"}`,
		`{"clientSecret" : "x\"y"}`:                `{"clientSecret" : "[redacted:password]"}`,
		`body {\"api_key\":\"k\",\"n\":1}`:         `body {\"api_key\":\"[redacted:password]\",\"n\":1}`,
		"DB_PASSWORD: s3cr3t!":                     "DB_PASSWORD: [redacted:password]",
		"?access_token=abc&page=2":                 "?access_token=[redacted:password]&page=2",
		"aws_secret_access_key = wJalrXUtnFEMI/K7": "aws_secret_access_key = [redacted:password]",
		"AccountName=a;AccountKey=Zm9v==;Suffix=b": "AccountName=a;AccountKey=[redacted:password];Suffix=b",
		"sig=abc%2Fdef&se=2026":                    "sig=[redacted:password]&se=2026",
		"pwd='a b'":                                "pwd='[redacted:password]'",
		"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----": "-----BEGIN RSA PRIVATE KEY-----[redacted:private key]-----END RSA PRIVATE KEY-----",
		// Addresses.
		"dial postgres://bob:pa/s@s@db:5432/x?sslmode=on": "dial postgres://[redacted:credentials]@db:5432/x?sslmode=on",
		"mongodb+srv://u:p@cluster/db":                    "mongodb+srv://[redacted:credentials]@cluster/db",
		"https://token@host/path@v1":                      "https://[redacted:credentials]@host/path@v1",
		"mail to ada.lovelace+x@mail.example.org.":        "mail to [redacted:email].",
		// Numbers of people.
		"call +1 (555) 123-4567 now":  "call [redacted:phone] now",
		"call (555) 123-4567":         "call [redacted:phone]",
		"call 555-234-5678, please":   "call [redacted:phone], please",
		"+4930123456789":              "[redacted:phone]",
		"ssn 123-45-6789":             "ssn [redacted:ssn]",
		"card 4111 1111 1111 1111 ok": "card [redacted:card] ok",
		"378282246310005":             "[redacted:card]",
		"4111-1111-1111-1111":         "[redacted:card]",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q\n got %q\nwant %q", in, got, want)
		}
		if again := r.String(r.String(in)); again != want {
			t.Errorf("%q: a second time it is %q", in, again)
		}
	}
}

func TestString_LeavesWhatIsNoSecret(t *testing.T) {
	t.Parallel()
	r := redact.New()
	r.Add("short", "", "  x  ")
	for _, text := range []string{
		"", "a short text", "hello", `{"level":"info","time":"2026-03-04T12:00:00+02:00","message":"serving"}`,
		"req_aB3-xyz sess_550e8400-e29b-41d4-a716-446655440000 lch_99",
		"127.0.0.1:8271 pid=12345 total_tokens=1234 max_tokens: 4096", `"token":null,"token":12,"password":""`,
		"api_key: ${{ secrets.OPENAI_API_KEY }}", "client_key: not set", "if token == nil", "the password is missing",
		"basic authentication, bearer of news", "github.com/x/y@v1.2.3/file.go:12", "ssh@localhost", "a@b", "@here",
		"4111 1111 1111 1112", "1700000000000", "123-45-67890", "000-12-3456", "1.2.3-4", "2026-03-04", "+02:00",
		"sk-learn-pipeline-of-words", "task-key-12345678901234567890", "eyJ", "file:///a/b@c", "oci://registry/x@sha256:00",
		"123456789012345678901234567890", "x4111111111111111", "4111111111111111.5", "-----BEGIN CERTIFICATE-----", `C:\new\sk`,
		`\`, `\u12`, "://@", "=", ":", "key=", "password", "password=", `password="`, "(", "(555", "+", "+1", "eyJhbGciOiJIUzI1NiJ9",
	} {
		if got := r.String(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// written are ways in which a value reaches a log.
func written(t *testing.T, value string) map[string]string {
	t.Helper()
	js := func(v any, escapeHTML bool) string {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(escapeHTML)
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	logged := func(text string) string {
		var b bytes.Buffer
		log := zerolog.New(redactor(value).Writer(&b))
		log.Error().Err(errors.New(text)).Msg("ask " + text)
		if !json.Valid(b.Bytes()) {
			t.Errorf("no JSON: %s", b.String())
		}
		var fields map[string]string
		if err := json.Unmarshal(b.Bytes(), &fields); err != nil {
			t.Errorf("%s: %v", b.String(), err)
		}
		return b.String() + fields["error"] + fields["message"]
	}
	body := js(map[string]string{"error": "bad key " + value + "!"}, true)
	plain := js(map[string]string{"error": "bad key " + value + "!"}, false)
	r := redactor(value)
	return map[string]string{
		"text": r.String("before " + value + " behind"), "log": logged("before " + value + " behind"),
		"JSON": r.String(body), "JSON without HTML": r.String(plain), "JSON as bytes": string(r.Bytes([]byte(plain))),
		"JSON in a log": logged(body), "plain JSON in a log": logged(plain),
		"query": r.String("/x?k=" + url.QueryEscape(value)), "path": r.String("/x/" + url.PathEscape(value)),
		"twice": r.String(value + value), "values": r.Values(value),
	}
}

func redactor(values ...string) *redact.Redactor {
	r := redact.New()
	r.Add(values...)
	return r
}

func TestAdd_ValuesAreFoundHoweverTheyAreEncoded(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"canary", "hidden-value", `quo"te\back/slash`, "a<b>&c' d%e+f", "täglich-日本", "tab\tand\nline", "back\\nslash",
		"\x01\x02control", "emoji 🎉 value", "line\u2028separator", "trail-newline", "npasswd", "u0041bcd", "123456789",
	} {
		for how, got := range written(t, value) {
			for _, form := range []string{value, url.QueryEscape(value), url.PathEscape(value), strings.Trim(fmt.Sprintf("%q", value), `"`)} {
				if strings.Contains(got, form) {
					t.Errorf("%q as %s shows: %s", value, how, got)
				}
			}
			if !strings.Contains(got, "[redacted") {
				t.Errorf("%q as %s has no mark: %s", value, how, got)
			}
		}
	}
	// Other languages write only ASCII.
	if got := redactor("täglich-🎉").String(`{"error": "t\u00e4glich-\ud83c\udf89"}`); got != `{"error": "[redacted]"}` {
		t.Errorf("got %s", got)
	}
}

func TestAdd_ValuesAreFoundInWhatOthersEncoded(t *testing.T) {
	t.Parallel()
	const value = "p@ss/w0rd!(x)+<é>="
	r := redactor(value, "plainword")
	for how, text := range map[string]string{
		"base64":                      base64.StdEncoding.EncodeToString([]byte(value)),
		"base64 of user and password": base64.StdEncoding.EncodeToString([]byte("bob:" + value)),
		"base64 of more":              base64.StdEncoding.EncodeToString([]byte(`{"password":"` + value + `","n":1}`)),
		"base64 for addresses":        base64.RawURLEncoding.EncodeToString([]byte("a:" + value)),
		"base64 of a plain value":     base64.StdEncoding.EncodeToString([]byte("user:plainword\n")),
		"address of Go":               url.QueryEscape(value),
		"path of Go":                  url.PathEscape(value),
		"address of JavaScript":       "p%40ss%2Fw0rd!(x)%2B%3C%C3%A9%3E%3D",
		"address of Python":           "p%40ss/w0rd%21%28x%29%2B%3C%C3%A9%3E%3D",
		"address with small letters":  "p%40ss%2fw0rd%21%28x%29%2b%3c%c3%a9%3e%3d",
		"all of it":                   "%70%6C%61%69%6E%77%6F%72%64",
		"JSON of .NET":                `p@ss/w0rd!(x)\u002B\u003C\u00E9\u003E=`,
		"JSON of PHP":                 `p@ss\/w0rd!(x)+<\u00e9>=`,
		"JSON with slashes":           `p@ss\/w0rd!(x)+<é>=`,
	} {
		for _, record := range []string{text, "GET /x?k=" + text + "&b=100%", `{"error":"said ` + text + `"}`} {
			got := string(r.Bytes([]byte(record)))
			if !strings.Contains(got, "[redacted]") || strings.Contains(got, text[2:len(text)-4]) {
				t.Errorf("%s shows: %s", how, got)
			}
			if record[0] == '{' && !json.Valid([]byte(got)) {
				t.Errorf("%s is no JSON any more: %s", how, got)
			}
		}
	}
	for _, text := range []string{"100%", "%", "%2", "50%25 and %zz", "a%20b"} {
		if got := r.String(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestAdd_NothingOfOverlappingValuesIsLeft(t *testing.T) {
	t.Parallel()
	r := redactor("abcdef", "abcdef123456", "123456xyz")
	for in, want := range map[string]string{
		"abcdef":             "[redacted]",
		"abcdef123456":       "[redacted]",
		"abcdef123456xyz.":   "[redacted].",
		"abcdef-abcdef12345": "[redacted]-[redacted]12345",
		"abcde abcdefabcdef": "abcde [redacted]",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestAdd_SeveralLinesAreFoundOneByOne(t *testing.T) {
	t.Parallel()
	r := redactor("first-line-of-sixteen\nshort\nsecond-line-of-sixteen\n")
	got := r.String("x first-line-of-sixteen y\nshort\n second-line-of-sixteen")
	if want := "x [redacted] y\nshort\n [redacted]"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestBytes_JSONStaysJSON(t *testing.T) {
	t.Parallel()
	r := redactor("123456", `":"`+"abc", "npasswd")
	for in, want := range map[string]string{
		`{"n":123456,"s":"123456"}`:       `{"n":"[redacted]","s":"[redacted]"}`,
		`{"n":-12.1234561e5}`:             `{"n":"[redacted]"}`,
		`{"a":"abc","b":1}`:               `{"a":"[redacted]","b":1}`,
		`{"a":"line\npasswd"}`:            `{"a":"line[redacted]"}`,
		`{"a":"\u0041bob@example.org\n"}`: `{"a":"\u0041[redacted:email]\n"}`,
		`{"card":4111111111111111}`:       `{"card":"[redacted:card]"}`,
		`{"a":"123456`:                    `{"a":"[redacted]`,
	} {
		got := string(r.Bytes([]byte(in)))
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
		if json.Valid([]byte(in)) != json.Valid([]byte(got)) {
			t.Errorf("%s became %s", in, got)
		}
	}
}

func TestAdd_KeepsTheLatestWithinItsLimit(t *testing.T) {
	t.Parallel()
	r := redact.New()
	for i := range 4 {
		many := make([]string, redact.MaxValues/2)
		for j := range many {
			many[j] = fmt.Sprintf("value-%d-%d", i, j)
		}
		r.Add(many...)
	}
	if got := r.Values("value-0-0 value-3-9999."); got != "value-0-0 [redacted]." {
		t.Errorf("got %s", got)
	}
}

func TestAddPassing_KeepsTheLatestToldAndPushesNoneOut(t *testing.T) {
	t.Parallel()
	r := redactor("the-secret-of-all")
	value := func(i int) string { return fmt.Sprintf("users-secret-%05d", i) }
	for i := range redact.MaxPassing + 500 {
		r.AddPassing(value(i), value(0)) // the first is in use all the time
	}
	for text, want := range map[string]bool{
		"the-secret-of-all": true, value(0): true, value(redact.MaxPassing + 499): true, value(redact.MaxPassing): true, value(1): false,
	} {
		if hidden := r.String(text) == "[redacted]"; hidden != want {
			t.Errorf("%s: hidden %v", text, hidden)
		}
	}
	r.Add("another-secret")
	if got := r.Values(value(0) + " another-secret"); got != "[redacted] [redacted]" {
		t.Error(got)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestWriter_TellsTheWholeRecordAndErrors(t *testing.T) {
	t.Parallel()
	r := redactor("a-long-secret-value")
	text := []byte("a-long-secret-value\n")
	if n, err := r.Writer(io.Discard).Write(text); n != len(text) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	gone := errors.New("gone")
	if n, err := r.Writer(failing{gone}).Write(text); n != 0 || !errors.Is(err, gone) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestRedactor_ManyAtOnce(t *testing.T) {
	t.Parallel()
	r := redact.New()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			secret := fmt.Sprintf("secret-number-%d", i)
			for range 50 {
				r.Add(secret)
				if got := r.String("<" + secret + ">"); got != "<[redacted]>" {
					t.Errorf("got %s", got)
				}
			}
		})
	}
	all.Wait()
}

const line = `{"level":"info","formation":"hello-team","time":"2026-03-04T12:00:00+02:00","request_id":"req_V1StGXR8_Z5jdHi6B-myT",` +
	`"method":"POST","path":"/v1/chat","status":200,"duration_ms":12.34,"bytes":5123,"remote":"127.0.0.1:53412","message":"request served"}` + "\n"

func TestWriter_ATextWithoutSecretsCostsNoAllocation(t *testing.T) {
	w := redactor("a-long-secret-value", "another one").Writer(io.Discard)
	record := []byte(line)
	if n := testing.AllocsPerRun(100, func() { _, _ = w.Write(record) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWriter(b *testing.B) {
	secrets := make([]string, 50)
	for i := range secrets {
		secrets[i] = fmt.Sprintf("secret-%d-%040d", i, i)
	}
	for name, record := range map[string]string{"clean": line, "secret": strings.Replace(line, "served", secrets[7], 1)} {
		b.Run(name, func(b *testing.B) {
			w := redactor(secrets...).Writer(io.Discard)
			p := []byte(record)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Write(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var marks = regexp.MustCompile(`\[redacted(:[a-z ]+)?\]`)

func FuzzBytes(f *testing.F) {
	for _, s := range []string{line, `"password":"x\\\"","a`, "postgres://a:b@c", "+1 (555) 123-4567", "-----BEGIN PRIVATE KEY-----", `{"a":"\u00`, "eyJ.", "4111 1111 1111 1111 1"} {
		f.Add(s, "canary-value")
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		r := redactor(secret)
		got := r.String(text + secret)
		if value := strings.TrimSpace(secret); len(value) >= redact.MinValue {
			for _, between := range marks.Split(got, -1) {
				if strings.Contains(between, value) {
					t.Errorf("%q with %q: %q", text, secret, got)
				}
			}
		}
		record, err := json.Marshal(map[string]string{"message": text, "error": secret + text})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{record, []byte(text)} {
			before := bytes.Clone(p)
			out := r.Bytes(p)
			if !bytes.Equal(p, before) {
				t.Errorf("the input %q was changed", before)
			}
			if len(p) > 0 && p[0] == '{' && json.Valid(p) && !json.Valid(out) {
				t.Errorf("%s became %s", p, out)
			}
		}
	})
}

func TestBytes_GivesCleanTextBack(t *testing.T) {
	t.Parallel()
	p := []byte(line)
	if got := redactor("secret").Bytes(p); &got[0] != &p[0] || cmp.Diff(line, string(got)) != "" {
		t.Error("it was copied or changed")
	}
}
