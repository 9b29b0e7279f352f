package secretfile

import "strings"

// bullet is what a mask shows in the place of characters.
const bullet = "•"

// Mask returns what may be shown of a value (reference runtime.md 2.5): enough
// to tell two keys apart, too little to use one.
func Mask(value string) string {
	const short, middle = 6, 12
	text := []rune(value)
	n := len(text)
	switch {
	case n <= short:
		return strings.Repeat(bullet, 8)
	case n <= middle:
		return string(text[:3]) + strings.Repeat(bullet, 4) + string(text[n-3:])
	}
	// The known beginnings are ASCII, so bytes are characters in them.
	for _, known := range []string{"sk-", "pk-", "ghp_", "ghs_", "pat_", "key-", "tok-", "lin_"} {
		if strings.HasPrefix(value, known) {
			return string(text[:len(known)+2]) + strings.Repeat(bullet, 6) + string(text[n-4:])
		}
	}
	if scheme := schemeOf(value); scheme != "" && n >= len(scheme)+middle {
		return string(text[:len(scheme)+2]) + strings.Repeat(bullet, 7) + string(text[n-4:])
	}
	return string(text[:4]) + strings.Repeat(bullet, 8) + string(text[n-4:])
}

// schemeOf returns the scheme of an address with its "://", "" when value is none.
func schemeOf(value string) string {
	scheme, _, ok := strings.Cut(value, "://")
	if !ok || scheme == "" || strings.ContainsFunc(scheme, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
	}) {
		return ""
	}
	return scheme + "://"
}
