package secretfile

import (
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// MaxKeys is how many keys can be in one place: a key file holds them all
// within MaxKeyFile.
const MaxKeys = 16

// Keys are the keys of one place. The first seals; all of them open, so that
// what was sealed before a rotation stays readable. The text of Keys is that of
// each, with white space or commas between.
type Keys []Key

// ParseKeys reads keys from their text. The fault is SecretsError and never
// repeats the text.
func ParseKeys(text string) (Keys, error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\r' || r == '\t' })
	switch {
	case len(words) == 0:
		return nil, fault.New(fault.Invalid, faultName, "there is no key: it is url-safe base64 of 32 bytes (44 characters)")
	case len(words) > MaxKeys:
		return nil, fault.Errorf(fault.Invalid, faultName, "%d keys are over the limit of %d", len(words), MaxKeys)
	}
	keys := make(Keys, len(words))
	for i, word := range words {
		var err error
		if keys[i], err = ParseKey(word); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// ReadKeys reads the key file at path, as ReadKey does.
func ReadKeys(path string) (Keys, error) {
	raw, err := readLimited(path, MaxKeyFile, 0)
	if err != nil {
		return nil, fmt.Errorf("read secrets key: %w", err)
	}
	keys, err := ParseKeys(string(raw))
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, faultName, "%s: %w", path, err)
	}
	return keys, nil
}

// SaveKeys writes keys to path, readable by the owner of the file or its
// directory alone, replacing the file in one step.
func SaveKeys(path string, keys Keys) error {
	if len(keys) > MaxKeys {
		return fault.Errorf(fault.Invalid, faultName, "%d keys are over the limit of %d", len(keys), MaxKeys)
	}
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k.Encode() + "\n")
	}
	if err := replaceFile(path, []byte(b.String())); err != nil {
		return fmt.Errorf("write secrets key: %w", err)
	}
	return nil
}

// Encode returns the keys' text in one line, for an environment variable.
func (k Keys) Encode() string {
	words := make([]string, len(k))
	for i := range k {
		words[i] = k[i].Encode()
	}
	return strings.Join(words, ",")
}

// Before returns keys with a new first one. Of the old ones, those that were
// first last stay, up to MaxKeys in all.
func (k Keys) Before(first Key) Keys {
	return append(Keys{first}, k[:min(len(k), MaxKeys-1)]...)
}
