package secretfile_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
)

// signedToken is a token of size bytes before its signature, which holds.
func signedToken(t *testing.T, key secretfile.Key, size int) []byte {
	t.Helper()
	raw, err := base64.URLEncoding.DecodeString(key.Encode())
	if err != nil {
		t.Fatal(err)
	}
	token := make([]byte, size, size+sha256.Size)
	if size > 0 {
		token[0] = 0x80
	}
	mac := hmac.New(sha256.New, raw[:16])
	mac.Write(token)
	return []byte(base64.URLEncoding.EncodeToString(mac.Sum(token)))
}

// FuzzOpen signs whatever content comes, so that the fuzzer gets past the
// signature, and also opens the content as it is.
func FuzzOpen(f *testing.F) {
	key := secretfile.GenerateKey()
	f.Add([]byte(`{"A":"1"}`))
	f.Add([]byte{0x80})
	f.Add([]byte(`{"A":{"B":1}}`))
	f.Add(make([]byte, 41))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, data := range [][]byte{content, signContent(t, key, content)} {
			path := filepath.Join(dir, "secrets.enc")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			values, err := secretfile.Open(path, key)
			if (values == nil) == (err == nil) {
				t.Fatalf("values %v, error %v", values, err)
			}
			if err == nil {
				roundTrip(t, filepath.Join(dir, "again.enc"), values)
			}
		}
	})
}

func signContent(t *testing.T, key secretfile.Key, content []byte) []byte {
	t.Helper()
	raw, err := base64.URLEncoding.DecodeString(key.Encode())
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, raw[:16])
	mac.Write(content)
	return []byte(base64.URLEncoding.EncodeToString(mac.Sum(slices.Clip(content))))
}

func roundTrip(t *testing.T, path string, values map[string]string) {
	t.Helper()
	key := secretfile.GenerateKey()
	if err := secretfile.Save(path, key, values); err != nil {
		t.Fatalf("save what was opened: %v", err)
	}
	again, err := secretfile.Open(path, key)
	if err != nil || len(again) != len(values) {
		t.Fatalf("opened %d of %d values: %v", len(again), len(values), err)
	}
}
