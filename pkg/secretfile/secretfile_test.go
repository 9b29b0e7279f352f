package secretfile_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fernet/fernet-go"
	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
)

// writeToken encrypts plain with the library itself, as other tools do.
func writeToken(t *testing.T, key secretfile.Key, plain string) string {
	t.Helper()
	raw, err := fernet.DecodeKey(key.Encode())
	if err != nil {
		t.Fatal(err)
	}
	token, err := fernet.EncryptAndSign([]byte(plain), raw)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, token)
}

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.enc")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantFault checks that err is a SecretsError that says each of texts.
func wantFault(t *testing.T, err error, texts ...string) {
	t.Helper()
	if fault.NameOf(err) != "SecretsError" || fault.KindOf(err) != fault.Invalid {
		t.Fatalf("error %v is %v %q, want an invalid SecretsError", err, fault.KindOf(err), fault.NameOf(err))
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func TestSave_IsReadBackByOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets.enc")
	key := secretfile.GenerateKey()
	values := map[string]string{"OPENAI_API_KEY": "sk-<&>\"ü\n", "EMPTY": ""}
	if err := secretfile.Save(path, key, values); err != nil {
		t.Fatal(err)
	}
	got, err := secretfile.Open(path, key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(values, got); diff != "" {
		t.Errorf("values (-saved +opened):\n%s", diff)
	}
}

func TestSave_WritesTheFormatOfExistingBundles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets.enc")
	key := secretfile.GenerateKey()
	if err := secretfile.Save(path, key, map[string]string{"B": "2", "a key": "1&"}); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := fernet.DecodeKey(key.Encode())
	if err != nil {
		t.Fatal(err)
	}
	plain := string(fernet.VerifyAndDecrypt(token, 0, []*fernet.Key{raw}))
	if want := "{\n  \"A_KEY\": \"1&\",\n  \"B\": \"2\"\n}"; plain != want {
		t.Errorf("plain text %q, want %q", plain, want)
	}
}

func TestSave_ReplacesAnOpenFileAndKeepsItPrivate(t *testing.T) {
	t.Parallel()
	key := secretfile.GenerateKey()
	path := writeFile(t, []byte("old"))
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := secretfile.Save(path, key, map[string]string{"A": "1"}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("%d files left, want the one that was replaced: %v", len(entries), entries)
	}
}

func TestSave_LeavesNothingWhenItCannotReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "secrets.enc")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := secretfile.Save(path, secretfile.GenerateKey(), nil); err == nil {
		t.Fatal("a directory was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestOpen_RefusesAWrongKeyAndDamage(t *testing.T) {
	t.Parallel()
	key := secretfile.GenerateKey()
	good := writeToken(t, key, `{"A":"top-secret-value"}`)
	token, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(strings.Clone(string(token)))
	i := len(flipped) / 2
	if flipped[i]++; flipped[i] > 'z' || flipped[i] < 'a' {
		flipped[i] = 'b'
	}
	for name, tc := range map[string]struct {
		path string
		key  secretfile.Key
		want string
	}{
		"wrong key":        {good, secretfile.GenerateKey(), "wrong key"},
		"zero key":         {good, secretfile.Key{}, "no key to open it"},
		"flipped bit":      {writeFile(t, flipped), key, "damaged"},
		"cut":              {writeFile(t, token[:len(token)-24]), key, "no"},
		"empty":            {writeFile(t, nil), key, "0 bytes is no possible length"},
		"no base64":        {writeFile(t, []byte("{}")), key, "not url-safe base64"},
		"plain JSON":       {writeFile(t, []byte(`{"A":"1"}`)), key, "not url-safe base64"},
		"not JSON":         {writeToken(t, key, `{"A":"top-secret-value",}`), key, "bad JSON at byte"},
		"a list":           {writeToken(t, key, `["top-secret-value"]`), key, "no JSON object"},
		"null":             {writeToken(t, key, `null`), key, "no JSON object"},
		"a number":         {writeToken(t, key, `{"A":12345}`), key, `the value of "A" is no string`},
		"a null value":     {writeToken(t, key, `{"A":null}`), key, `the value of "A" is no string`},
		"an unusable name": {writeToken(t, key, `{"--":"top-secret-value"}`), key, `"--" is no name`},
		"the same name":    {writeToken(t, key, `{"a-b":"1","A_B":"2"}`), key, "are the same secret A_B"},
		"a long name":      {writeToken(t, key, `{"`+strings.Repeat("A", 129)+`":"1"}`), key, "limit of 128"},
		"a long value":     {writeToken(t, key, `{"A":"`+strings.Repeat("x", 65537)+`"}`), key, "limit of 65536"},
		"a directory":      {t.TempDir(), key, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values, err := secretfile.Open(tc.path, tc.key)
			if values != nil {
				t.Errorf("values %v beside the error", values)
			}
			wantFault(t, err, tc.want)
			if strings.Contains(err.Error(), "top-secret-value") {
				t.Errorf("error %q shows a value", err)
			}
		})
	}
}

// A bundle holds its own key, so its author can sign any length.
func TestOpen_RefusesASignedTokenThatIsTooShort(t *testing.T) {
	t.Parallel()
	key := secretfile.GenerateKey()
	for _, size := range []int{0, 1, 8, 9, 24, 25, 26, 40, 42} {
		path := writeFile(t, signedToken(t, key, size))
		_, err := secretfile.Open(path, key)
		wantFault(t, err, "no possible length")
	}
}

func TestOpen_DoesNotWaitForAPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets.enc")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := secretfile.Open(path, secretfile.GenerateKey())
	wantFault(t, err, "no regular file")
}

func TestOpen_RefusesAHugeFileUnread(t *testing.T) {
	t.Parallel()
	path := writeFile(t, nil)
	if err := os.Truncate(path, secretfile.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	_, err := secretfile.Open(path, secretfile.GenerateKey())
	wantFault(t, err, "limit of 8388608 bytes")
}

func TestOpen_SaysWhenThereIsNoFile(t *testing.T) {
	t.Parallel()
	_, err := secretfile.Open(filepath.Join(t.TempDir(), "none"), secretfile.GenerateKey())
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestOpen_NormalizesNamesAndIgnoresTheLastNewline(t *testing.T) {
	t.Parallel()
	key := secretfile.GenerateKey()
	path := writeToken(t, key, `{"open ai.key":"1"}`)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := secretfile.Open(path, key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"OPEN_AI_KEY": "1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSave_RefusesWhatOpenWouldRefuse(t *testing.T) {
	t.Parallel()
	many := make(map[string]string, secretfile.MaxValues+1)
	for i := range secretfile.MaxValues + 1 {
		many[fmt.Sprintf("N%d", i)] = ""
	}
	big := make(map[string]string, 200)
	for i := range 200 {
		big[fmt.Sprintf("N%d", i)] = strings.Repeat("x", secretfile.MaxValue)
	}
	for name, tc := range map[string]struct {
		values map[string]string
		want   string
	}{
		"too many":      {many, "limit of 10000"},
		"too much":      {big, "limit of 8388608"},
		"binary":        {map[string]string{"A": "\xff"}, `the value of "A" is not UTF-8`},
		"the same name": {map[string]string{"A": "1", "a": "2"}, "same secret A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "secrets.enc")
			wantFault(t, secretfile.Save(path, secretfile.GenerateKey(), tc.values), tc.want)
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("stat: %v, want no file", err)
			}
		})
	}
}

func TestSave_RefusesTheZeroKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets.enc")
	wantFault(t, secretfile.Save(path, secretfile.Key{}, nil), "no key to encrypt it")
	if got := (secretfile.Key{}).Encode(); got != "" {
		t.Errorf("the zero key is %q", got)
	}
}

func TestReadKey_ReadsWhatSaveKeyWrote(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), ".key")
	key := secretfile.GenerateKey()
	if err := secretfile.SaveKey(path, key); err != nil {
		t.Fatal(err)
	}
	got, err := secretfile.ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Encode() != key.Encode() || len(key.Encode()) != 44 {
		t.Errorf("read %q, wrote %q", got.Encode(), key.Encode())
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
}

func TestReadKey_RefusesWhatIsNoKey(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":           "",
		"short":           "c2hvcnQ=",
		"standard base64": strings.Repeat("+/", 21) + "+=",
		"hex":             strings.Repeat("ab", 32),
		"long":            strings.Repeat("A", 2000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := secretfile.ReadKey(writeFile(t, []byte(text)))
			wantFault(t, err)
			if text != "" && strings.Contains(err.Error(), text) {
				t.Errorf("error %q shows the text", err)
			}
		})
	}
}

func TestKey_NeverPrints(t *testing.T) {
	t.Parallel()
	key := secretfile.GenerateKey()
	holder := struct{ K secretfile.Key }{key}
	private := struct{ k secretfile.Key }{key}
	printed := fmt.Sprintf("%v %+v %#v %s %q %x %d", key, key, key, key, key, key, key) +
		fmt.Sprintf("%v %+v %#v", holder, &holder, holder) +
		fmt.Sprintf("%v %+v %#v", private, &private, private)
	out, err := json.Marshal(map[string]any{"k": key, "p": &key, "m": map[secretfile.Key]int{key: 1}})
	if err != nil {
		t.Fatal(err)
	}
	printed += string(out) + key.String() + key.GoString()
	raw, err := base64.URLEncoding.DecodeString(key.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, trace := range []string{key.Encode(), string(fmt.Append(nil, raw)[1:40]), fmt.Sprintf("%x", raw)} {
		if strings.Contains(printed, trace) {
			t.Errorf("%q of the key is in %q", trace, printed)
		}
	}
	if got := strings.Count(printed, "***"); got != 15 {
		t.Errorf("%d times *** in %q, want 15", got, printed)
	}
}
