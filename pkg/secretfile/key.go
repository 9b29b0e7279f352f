package secretfile

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/fernet/fernet-go"

	"github.com/agentformation/service/pkg/fault"
)

// hidden is what a Key shows instead of itself.
const hidden = "***"

// MaxKeyFile is the largest key file that is read, in bytes. A key is 44.
const MaxKeyFile = 1 << 10

// Key is a Fernet key. It never prints: every verb of fmt and every encoder
// gets "***", and as a hidden field of another type it is an address. Encode
// is the one way out. The zero Key opens and encrypts nothing.
type Key struct{ secret *fernet.Key }

// GenerateKey makes a new random key.
func GenerateKey() Key {
	k := Key{secret: new(fernet.Key)}
	rand.Read(k.secret[:]) // never fails: it ends the program instead
	return k
}

// ParseKey reads a key from its text, url-safe base64 of 32 bytes. The fault
// is SecretsError and never repeats the text.
func ParseKey(text string) (Key, error) {
	raw, err := base64.URLEncoding.DecodeString(text)
	if err != nil || len(raw) != len(fernet.Key{}) {
		return Key{}, fault.New(fault.Invalid, faultName,
			"this is no Fernet key: it must be url-safe base64 of 32 bytes (44 characters)")
	}
	return Key{secret: (*fernet.Key)(raw)}, nil
}

// ReadKey reads the key file at path; surrounding white space is ignored. A
// missing file is an error for which errors.Is(err, fs.ErrNotExist) holds.
func ReadKey(path string) (Key, error) {
	raw, err := readLimited(path, MaxKeyFile, 0)
	if err != nil {
		return Key{}, fmt.Errorf("read secrets key: %w", err)
	}
	k, err := ParseKey(string(raw))
	if err != nil {
		return Key{}, fault.Errorf(fault.Invalid, faultName, "%s: %w", path, err)
	}
	return k, nil
}

// SaveKey writes k to path, readable by the owner alone, replacing the file in
// one step.
func SaveKey(path string, k Key) error { return SaveKeys(path, Keys{k}) }

// Encode returns the key's text, for a key file or an environment variable.
// It is "" for the zero Key.
func (k Key) Encode() string {
	if k.secret == nil {
		return ""
	}
	return k.secret.Encode()
}

// String returns "***".
func (Key) String() string { return hidden }

// GoString returns "***".
func (Key) GoString() string { return hidden }

// Format writes "***" for every verb, %x and %d included.
func (Key) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(hidden)) }

// MarshalJSON returns "***".
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// MarshalText returns "***", for YAML and map keys.
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }
