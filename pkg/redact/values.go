package redact

import (
	"bytes"
	"net/url"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// minLine is the shortest line in bytes of a value with several lines that is
// recognised without the others: logs show such values line by line.
const minLine = 16

// values finds known values. All are looked up by their first MinValue bytes,
// which roll through one integer; a small table of bits turns away nearly
// every place of an ordinary text.
type values struct {
	bits    *[1 << (tableBits - 6)]uint64 // nil when there are no values
	byStart map[uint64][][]byte
}

const (
	tableBits = 16
	startMask = 1<<(8*MinValue) - 1
)

func newValues(known []string) *values {
	v := &values{bits: new([1 << (tableBits - 6)]uint64), byStart: make(map[uint64][][]byte)}
	seen := make(map[string]bool, len(known))
	for _, text := range known {
		for _, form := range forms(text) {
			if !seen[form] {
				seen[form] = true
				v.add(form)
			}
		}
	}
	return v
}

func (v *values) add(form string) {
	if len(form) < MinValue {
		return
	}
	var start uint64
	for i := range MinValue {
		start = start<<8 | uint64(form[i])
	}
	v.byStart[start] = append(v.byStart[start], []byte(form))
	slot := slotOf(start)
	v.bits[slot>>6] |= 1 << (slot & 63)
}

func slotOf(start uint64) uint64 { return start * 0x9e3779b97f4a7c15 >> (64 - tableBits) }

// find appends the place of every known value in p, also of those that overlap.
func (v *values) find(p []byte, spans []span) []span {
	if v.bits == nil || len(p) < MinValue {
		return spans
	}
	var start uint64
	for i, c := range p {
		start = (start<<8 | uint64(c)) & startMask
		slot := slotOf(start)
		if v.bits[slot>>6]&(1<<(slot&63)) == 0 || i < MinValue-1 {
			continue
		}
		from := i - MinValue + 1
		for _, form := range v.byStart[start] {
			if bytes.HasPrefix(p[from:], form) {
				spans = append(spans, span{from: from, to: from + len(form)})
			}
		}
	}
	return spans
}

// parts returns what of a value is secret by itself: the whole, and the longer
// lines when it has several.
func parts(value string) []string {
	value = strings.TrimSpace(value)
	if len(value) < MinValue {
		return nil
	}
	all := []string{value}
	if strings.ContainsRune(value, '\n') {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minLine {
				all = append(all, line)
			}
		}
	}
	return all
}

// forms returns how a value is written: as it is, in JSON as encoders differ,
// in JSON that is quoted in JSON, and in an address.
func forms(value string) []string {
	if !strings.ContainsFunc(value, isEncoded) {
		return []string{value}
	}
	all := []string{value, url.QueryEscape(value), url.PathEscape(value)}
	for _, more := range []func(rune) bool{none, html, notASCII} {
		once := escapeJSON(value, more)
		all = append(all, once, escapeJSON(once, none), escapeJSON(once, html))
	}
	return all
}

// isEncoded tells whether some encoder writes r as something else.
func isEncoded(r rune) bool {
	return r >= utf8.RuneSelf || !is(byte(r), name) && r != '~'
}

// The characters that encoders write as \u escapes beside those that JSON
// demands: none of them, those with a meaning in HTML and JavaScript, all but
// ASCII.
func none(rune) bool       { return false }
func html(r rune) bool     { return strings.ContainsRune("<>&\u2028\u2029", r) }
func notASCII(r rune) bool { return r > 0x7e }

func escapeJSON(s string, more func(rune) bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			b.WriteString(`\ufffd`)
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20:
			if at := strings.IndexRune("\b\f\n\r\t", r); at >= 0 {
				b.WriteByte('\\')
				b.WriteByte("bfnrt"[at])
			} else {
				writeEscape(&b, r)
			}
		case more(r):
			if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
				writeEscape(&b, hi)
				r = lo
			}
			writeEscape(&b, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func writeEscape(b *strings.Builder, r rune) {
	const hex = "0123456789abcdef"
	b.WriteString(`\u`)
	for shift := 12; shift >= 0; shift -= 4 {
		b.WriteByte(hex[r>>shift&15])
	}
}
