package main

import (
	"cmp"
	"strings"
)

// higher tells whether version a is higher than b, by the rules of semantic
// versions: numbers part by part, and a pre-release before its release. Parts
// that are no numbers are compared as texts, so that dates and words have an
// order too. Everything is higher than "", the version nobody gave.
func higher(a, b string) bool {
	aCore, aPre := splitVersion(a)
	bCore, bPre := splitVersion(b)
	switch c := compareParts(aCore, bCore, "0"); {
	case c != 0:
		return c > 0
	case aPre == "" || bPre == "":
		return aPre == "" && bPre != "" || b == ""
	default:
		return compareParts(aPre, bPre, "") > 0
	}
}

// splitVersion cuts a leading v and the build away and the pre-release off.
func splitVersion(v string) (core, pre string) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	core, pre, _ = strings.Cut(v, "-")
	return core, pre
}

// compareParts compares texts between dots; a part that is missing counts as
// missing says.
func compareParts(a, b, missing string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		if c := comparePart(partOf(as, i, missing), partOf(bs, i, missing)); c != 0 {
			return c
		}
	}
	return 0
}

func partOf(parts []string, i int, missing string) string {
	if i < len(parts) && parts[i] != "" {
		return parts[i]
	}
	return missing
}

// comparePart compares numbers of any length by their value; a number comes
// before a word.
func comparePart(a, b string) int {
	aNumber, bNumber := isNumber(a), isNumber(b)
	switch {
	case aNumber && bNumber:
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case a == "" || b == "":
		return cmp.Compare(len(a), len(b))
	case aNumber != bNumber:
		if aNumber {
			return -1
		}
		return 1
	}
	return cmp.Compare(a, b)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
