package provider

import (
	"unicode/utf16"
	"unicode/utf8"
)

// joiner makes whole runes of text that arrives in pieces: some servers cut an
// emoji between two deltas, as bytes or as the halves of a surrogate pair.
type joiner struct {
	held []byte // the incomplete end of the last piece
}

// next returns the text that is complete with piece.
func (j *joiner) next(piece []byte) string {
	if len(j.held) == 0 && utf8.Valid(piece) {
		return string(piece)
	}
	text, tail := repair(append(j.held, piece...), false)
	j.held = append(j.held[:0:0], tail...)
	return text
}

// rest returns what is left at the end of the text.
func (j *joiner) rest() string {
	text, _ := repair(j.held, true)
	j.held = nil
	return text
}

// repair returns b as valid UTF-8: halves of surrogate pairs are joined, what
// is no text becomes U+FFFD. Unless b is final, an incomplete end is returned
// as tail instead.
func repair(b []byte, final bool) (text string, tail []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	out := make([]byte, 0, len(b)+utf8.UTFMax)
	for len(b) > 0 {
		if r, size := utf8.DecodeRune(b); r != utf8.RuneError || size > 1 {
			out = append(out, b[:size]...)
			b = b[size:]
			continue
		}
		r, size, open := broken(b)
		if open && !final {
			return string(out), b
		}
		out = utf8.AppendRune(out, r)
		b = b[size:]
	}
	return string(out), nil
}

// broken reads the bytes at the start of b that are not valid UTF-8; open means
// that more bytes may make them valid.
func broken(b []byte) (r rune, size int, open bool) {
	high, ok := half(b)
	switch {
	case !ok:
		return utf8.RuneError, 1, !utf8.FullRune(b)
	case high >= 0xDC00: // a low half without its high one
		return utf8.RuneError, 3, false
	case len(b) == 3:
		return utf8.RuneError, 3, true
	}
	low, ok := half(b[3:])
	if joined := utf16.DecodeRune(high, low); ok && joined != utf8.RuneError {
		return joined, 6, false
	}
	return utf8.RuneError, 3, false
}

// half decodes one half of a surrogate pair that was written as if it were a rune.
func half(b []byte) (rune, bool) {
	if len(b) < 3 || b[0] != 0xED || b[1] < 0xA0 || b[1] > 0xBF || b[2] < 0x80 || b[2] > 0xBF {
		return 0, false
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F), true
}
