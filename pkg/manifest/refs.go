package manifest

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of placeholders.
const (
	KindSecret = "secrets"          // ${{ secrets.NAME }}: resolved when the formation loads
	KindEnv    = "env"              // ${{ env.NAME }}: an allowed variable of the environment
	KindUser   = "user.credentials" // ${{ user.credentials.NAME }}: resolved per user on demand
)

// Ref is one placeholder in a file.
type Ref struct {
	Kind string
	Name string
	File string
	Line int
	Col  int
	Key  string // dotted path of the value that holds it
}

// String returns the place and the placeholder, for messages.
func (r Ref) String() string {
	return fmt.Sprintf("%s:%d:%d: ${{ %s.%s }}", r.File, r.Line, r.Col, r.Kind, r.Name)
}

// Sensitive tells that the value is a secret: by its kind or, of a variable of the
// environment, by its name or that of the key where it stands.
func (r Ref) Sensitive() bool {
	return r.Kind != KindEnv || isSensitive(r.Name) || isSensitive(r.Key)
}

// Resolver returns the value of a placeholder, false when there is none.
type Resolver func(kind, name string) (string, bool)

// UnresolvedError lists the placeholders that a Resolver knew nothing of.
type UnresolvedError struct {
	Refs []Ref // Kind and Name only
}

// Error names the placeholders, never a value.
func (e *UnresolvedError) Error() string {
	names := make([]string, len(e.Refs))
	for i, r := range e.Refs {
		names[i] = "${{ " + r.Kind + "." + r.Name + " }}"
	}
	return "no value for " + strings.Join(names, ", ")
}

var errPlaceholder = errors.New("malformed placeholder; write ${{ secrets.NAME }}, ${{ env.NAME }} or ${{ user.credentials.NAME }}")

// Expand replaces every placeholder in s with its value. Values are not
// expanded again. Unknown placeholders give an *UnresolvedError that lists all
// of them.
func Expand(s string, resolve Resolver) (string, error) {
	var b strings.Builder
	var missing []Ref
	for {
		at := strings.Index(s, "${{")
		if at < 0 {
			break
		}
		kind, name, size, err := cutPlaceholder(s[at:])
		if err != nil {
			return "", err
		}
		value, ok := resolve(kind, name)
		if !ok {
			missing = append(missing, Ref{Kind: kind, Name: name})
		}
		b.WriteString(s[:at])
		b.WriteString(value)
		s = s[at+size:]
	}
	if missing != nil {
		return "", &UnresolvedError{Refs: missing}
	}
	b.WriteString(s)
	return b.String(), nil
}

// HasPlaceholder tells whether s holds a placeholder.
func HasPlaceholder(s string) bool { return strings.Contains(s, "${{") }

// cutPlaceholder reads the placeholder that s starts with and returns how many
// bytes it takes.
func cutPlaceholder(s string) (kind, name string, size int, err error) {
	end := strings.Index(s, "}}")
	if end < 0 {
		return "", "", 0, errPlaceholder
	}
	inner := strings.Trim(s[len("${{"):end], " \t\r\n")
	for _, kind := range []string{KindSecret, KindEnv, KindUser} {
		name, ok := strings.CutPrefix(inner, kind+".")
		if ok && isPlaceholderName(name, kind == KindUser) {
			return kind, name, end + len("}}"), nil
		}
	}
	return "", "", 0, errPlaceholder
}

func isPlaceholderName(name string, dashes bool) bool {
	for _, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', dashes && c == '-':
		default:
			return false
		}
	}
	return name != ""
}
