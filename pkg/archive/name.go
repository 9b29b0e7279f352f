package archive

import (
	"path"
	"strings"
	"unicode/utf8"
)

// cleanName returns the relative slash path of a tar entry, "." for the top
// directory. Anything that could mean different places to different programs
// is refused rather than repaired.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", invalid("an entry has no name")
	case len(name) > 4*maxPath:
		return "", invalid("an entry's name is %d bytes long; at most %d are allowed", len(name), maxPath)
	case !utf8.ValidString(name):
		return "", invalid("entry %q: the name is not valid UTF-8", name)
	case strings.ContainsRune(name, '\\'):
		return "", invalid("entry %q: backslashes are not allowed; separate directories with /", name)
	case strings.IndexFunc(name, isControl) >= 0:
		return "", invalid("entry %q: control characters are not allowed in names", name)
	case strings.HasPrefix(name, "/"):
		return "", invalid("entry %q: absolute paths are not allowed; name entries relative to the formation", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", invalid("entry %q: .. is not allowed; it would leave the destination", name)
		}
		if len(part) > maxName {
			return "", invalid("entry %q: a name of %d bytes is longer than the %d allowed", name, len(part), maxName)
		}
	}
	clean := path.Clean(name)
	if len(clean) > maxPath {
		return "", invalid("entry %q: the path is %d bytes long; at most %d are allowed", name, len(clean), maxPath)
	}
	if d := strings.Count(clean, "/") + 1; d > maxDepth {
		return "", invalid("entry %q: %d levels deep; at most %d are allowed", name, d, maxDepth)
	}
	return clean, nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// fold maps names that a case-insensitive file system would merge to one key.
// Upper before lower also joins letters with several lower-case forms.
func fold(s string) string { return strings.ToLower(strings.ToUpper(s)) }
