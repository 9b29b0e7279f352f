package secretfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Normalize returns the one form of a secret's name: upper case, every other
// character than A-Z, 0-9 and _ as _, runs of _ collapsed, none at the ends.
// It is "" when nothing usable is left.
func Normalize(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	gap := false
	for _, r := range name {
		switch {
		case 'a' <= r && r <= 'z':
			r -= 'a' - 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		default:
			gap = true
			continue
		}
		if gap && b.Len() > 0 {
			b.WriteByte('_')
		}
		gap = false
		b.WriteRune(r)
	}
	return b.String()
}

// normalizeAll returns values under their normalized names, within the limits.
func normalizeAll(values map[string]string) (map[string]string, error) {
	if len(values) > MaxValues {
		return nil, fmt.Errorf("%d secrets are over the limit of %d", len(values), MaxValues)
	}
	normal := make(map[string]string, len(values))
	from := make(map[string]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := Normalize(name)
		switch {
		case key == "":
			return nil, fmt.Errorf("%q is no name of a secret: use letters, digits and _", shorten(name))
		case len(key) > MaxName:
			return nil, fmt.Errorf("the name %q is over the limit of %d characters", shorten(name), MaxName)
		case len(values[name]) > MaxValue:
			return nil, fmt.Errorf("the value of %q has %d bytes, over the limit of %d",
				shorten(name), len(values[name]), MaxValue)
		case !utf8.ValidString(values[name]):
			return nil, fmt.Errorf("the value of %q is not UTF-8 text", shorten(name))
		}
		if other, taken := from[key]; taken {
			return nil, fmt.Errorf("the names %q and %q are the same secret %s", shorten(other), shorten(name), key)
		}
		from[key], normal[key] = name, values[name]
	}
	return normal, nil
}

// shorten keeps a name from outside readable in an error text.
func shorten(name string) string {
	const limit = 40
	if len(name) <= limit {
		return name
	}
	return name[:limit] + "..."
}
