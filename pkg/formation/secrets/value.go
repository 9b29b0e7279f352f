package secrets

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
)

// masked is all that a Value shows.
const masked = "***"

// Value is a secret text. Every verb of fmt and every encoder gets "***";
// Reveal is the one way out. The zero Value is empty.
type Value struct {
	text string
}

// NewValue wraps a secret text.
func NewValue(text string) Value { return Value{text} }

// Reveal returns the text itself.
func (v Value) Reveal() string { return v.text }

// Empty tells whether there is no text.
func (v Value) Empty() bool { return v.text == "" }

// Equal compares with text in a time that depends on neither. An empty Value
// equals nothing, so that a key that was never set opens no door.
func (v Value) Equal(text string) bool {
	a, b := sha256.Sum256([]byte(v.text)), sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && v.text != ""
}

// Format writes "***" for every verb, %x and %d included.
func (Value) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(masked)) }

// String returns "***".
func (Value) String() string { return masked }

// GoString returns "***".
func (Value) GoString() string { return masked }

// MarshalJSON returns "***".
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + masked + `"`), nil }

// MarshalText returns "***", for YAML and map keys.
func (Value) MarshalText() ([]byte, error) { return []byte(masked), nil }
