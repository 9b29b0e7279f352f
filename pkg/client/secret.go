package client

import "fmt"

// hidden is what a Secret shows instead of itself.
const hidden = "***"

// Secret is a key in memory. It never prints: every verb of fmt and every
// encoder gets "***". Convert it to a string to use it.
type Secret string

// String returns "***".
func (Secret) String() string { return hidden }

// GoString returns "***".
func (Secret) GoString() string { return hidden }

// Format writes "***" for every verb.
func (Secret) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(hidden)) }

// MarshalText returns "***", for JSON and YAML.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
