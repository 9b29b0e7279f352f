// Package secretfile reads and writes the encrypted secrets of a formation:
// secrets.enc, one Fernet token over a JSON object of names to values, and
// the key file .key beside it (reference server.md 7.3).
//
// It promises that a file is replaced in one step or not at all, that names
// are in one form, and that neither a key nor a value reaches an error text.
// The command line and the formation's secrets room import it.
package secretfile

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/fernet/fernet-go"

	"github.com/agentformation/service/pkg/fault"
)

// The limits of a secrets file. Over one of them, Open and Save answer with a
// SecretsError that names it.
const (
	MaxFile   = 8 << 20  // bytes of secrets.enc
	MaxValue  = 64 << 10 // bytes of one value
	MaxName   = 128      // bytes of one name
	MaxValues = 10_000
)

// faultName is the error name of the management API for all faults here.
const faultName = "SecretsError"

// The parts of a Fernet token that are not cipher text: version, time, the
// initialization vector before it, the signature after it.
const (
	tokenOverhead = 1 + 8 + blockSize + 32
	blockSize     = 16
)

// Open decrypts the secrets file at path with one of the keys and returns its
// values under their normalized names. A missing file is an error for which
// errors.Is(err, fs.ErrNotExist) holds; wrong keys, a damaged token and a value
// that is no string are faults SecretsError.
func Open(path string, keys ...Key) (map[string]string, error) {
	plain, err := Unseal(path, keys...)
	if err != nil {
		return nil, err
	}
	values, err := decode(plain)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, faultName, "%s: %w", path, err)
	}
	return values, nil
}

// Save encrypts values under their normalized names and replaces the file at
// path in one step, readable by the owner alone. Two names that normalize to
// the same one are refused.
func Save(path string, key Key, values map[string]string) error {
	normal, err := normalizeAll(values)
	if err != nil {
		return fault.Errorf(fault.Invalid, faultName, "%s: %w", path, err)
	}
	plain, err := encode(normal)
	if err != nil {
		return fmt.Errorf("encode secrets: %w", err)
	}
	return Seal(path, key, plain)
}

// Unseal decrypts the file at path with one of the keys. The errors are those
// of Open.
func Unseal(path string, keys ...Key) ([]byte, error) {
	token, err := readLimited(path, MaxFile, 0)
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	plain, err := decrypt(token, keys)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, faultName, "%s: %w", path, err)
	}
	return plain, nil
}

// Seal encrypts data and replaces the file at path in one step, readable by the
// owner alone.
func Seal(path string, key Key, data []byte) error {
	if key.secret == nil {
		return fault.Errorf(fault.Invalid, faultName, "%s: there is no key to encrypt it", path)
	}
	token, err := fernet.EncryptAndSign(data, key.secret)
	if err != nil {
		return fmt.Errorf("encrypt secrets: %w", err)
	}
	if len(token) > MaxFile {
		return fault.Errorf(fault.Invalid, faultName,
			"%s would be %d bytes, over the limit of %d", path, len(token), MaxFile)
	}
	if err := replaceFile(path, token); err != nil {
		return fmt.Errorf("write secrets: %w", err)
	}
	return nil
}

// decrypt checks the shape first: the library trusts the lengths of a token
// whose signature holds, and a bundle's author has the key to sign a short one.
func decrypt(token []byte, keys []Key) ([]byte, error) {
	raw := make([]byte, base64.URLEncoding.DecodedLen(len(token)))
	n, err := base64.URLEncoding.Decode(raw, token)
	if err != nil {
		return nil, errors.New("this is no Fernet token: not url-safe base64")
	}
	fitting := make([]*fernet.Key, 0, len(keys))
	for _, k := range keys {
		if k.secret != nil {
			fitting = append(fitting, k.secret)
		}
	}
	if len(fitting) == 0 {
		return nil, errors.New("there is no key to open it")
	}
	if cipher := n - tokenOverhead; cipher < blockSize || cipher%blockSize != 0 {
		return nil, fmt.Errorf("this is no Fernet token: %d bytes is no possible length", n)
	}
	plain := fernet.VerifyAndDecrypt(token, 0, fitting)
	if plain == nil {
		return nil, errors.New("the key does not open it: a wrong key, or the file is damaged")
	}
	return plain, nil
}

// decode reads the JSON object. The texts of encoding/json may quote its
// input, so only the position is passed on.
func decode(plain []byte) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(plain, &raw); err != nil {
		return nil, notAnObject(err)
	}
	if raw == nil {
		return nil, notAnObject(nil)
	}
	values := make(map[string]string, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		var value *string
		if err := json.Unmarshal(raw[name], &value); err != nil || value == nil {
			return nil, fmt.Errorf("the value of %q is no string", shorten(name))
		}
		values[name] = *value
	}
	return normalizeAll(values)
}

func notAnObject(err error) error {
	const text = "the decrypted content is no JSON object of names to strings"
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%s: bad JSON at byte %d", text, syntax.Offset)
	}
	return errors.New(text)
}

// encode writes sorted names, two spaces of indent and plain <, > and &.
func encode(values map[string]string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(values); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
