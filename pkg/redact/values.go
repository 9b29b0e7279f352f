package redact

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"slices"
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

// newValues makes the table of what is known. Passing values are not looked for in
// base64: the table is made anew for each of them.
func newValues(known, passing []string) *values {
	v := &values{bits: new([1 << (tableBits - 6)]uint64), byStart: make(map[uint64][][]byte)}
	seen := make(map[string]bool, len(known)+len(passing))
	add := func(form string) {
		if !seen[form] {
			seen[form] = true
			v.add(form)
		}
	}
	for i, text := range slices.Concat(known, passing) {
		for _, form := range forms(text) {
			add(form)
		}
		if i < len(known) {
			for _, form := range inBase64(text) {
				add(form)
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

// find appends the place of every known value in p, also of those that overlap
// and of those that are written with %XX: what is encoded that way differs from
// one encoder to the next.
func (v *values) find(p []byte, spans []span) []span {
	if v.bits == nil || len(p) < MinValue {
		return spans
	}
	spans = v.written(p, spans)
	if firstPercent(p, 0) == len(p) {
		return spans
	}
	plain, from := unescape(p)
	for _, s := range v.written(plain, nil) {
		spans = append(spans, span{from: from[s.from], to: from[s.to]})
	}
	return spans
}

// firstPercent returns where the first %XX is from i on, the length of p when there
// is none.
func firstPercent(p []byte, i int) int {
	for {
		at := bytes.IndexByte(p[i:], '%')
		if at < 0 || i+at+2 >= len(p) {
			return len(p)
		}
		if i += at; isHex(p[i+1]) && isHex(p[i+2]) {
			return i
		}
		i++
	}
}

// unescape returns p with every %XX as its byte, and where each byte of it, and
// the end, is in p.
func unescape(p []byte) (plain []byte, from []int) {
	plain, from = make([]byte, 0, len(p)), make([]int, 0, len(p)+1)
	for i := 0; i < len(p); {
		next := firstPercent(p, i)
		for ; i < next; i++ {
			plain, from = append(plain, p[i]), append(from, i)
		}
		if i < len(p) {
			plain, from = append(plain, nibble(p[i+1])<<4|nibble(p[i+2])), append(from, i)
			i += 3
		}
	}
	return plain, append(from, len(p))
}

func nibble(c byte) byte {
	if is(c, digit) {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// written appends the place of every known value in p as it is.
func (v *values) written(p []byte, spans []span) []span {
	if len(p) < MinValue {
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

// forms returns how a value is written: as it is, in JSON as encoders differ, in
// JSON that is quoted in JSON, and in an address.
func forms(value string) []string {
	if !strings.ContainsFunc(value, isEncoded) {
		return []string{value}
	}
	// In an address, + may stand for a space; %XX is found without.
	all := []string{value, strings.ReplaceAll(value, " ", "+"), url.QueryEscape(value)}
	for _, more := range []func(rune) bool{none, html, notASCII, careful} {
		once := escapeJSON(value, more)
		all = append(all, once, escapeJSON(once, none), escapeJSON(once, html), upperHex(once), strings.ReplaceAll(once, "/", `\/`))
	}
	return all
}

// upperHex writes the \u escapes of a JSON text with capital letters.
func upperHex(text string) string {
	if !strings.Contains(text, `\u`) {
		return text
	}
	b := []byte(text)
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if i++; i+4 < len(b) && b[i] == 'u' {
			copy(b[i+1:], bytes.ToUpper(b[i+1:i+5]))
		}
	}
	return string(b)
}

// minBase64 is the shortest value in bytes that is looked for in base64.
const minBase64 = 8

// inBase64 returns the characters of base64 that a value alone decides, in both
// alphabets and at each of the three places where it may begin in what was
// encoded: "user:password" is encoded as one.
func inBase64(value string) []string {
	if len(value) < minBase64 {
		return nil
	}
	var all []string
	for before := range 3 {
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := alphabet.EncodeToString([]byte("\x00\x00"[:before] + value))
			text = text[(before*8+5)/6:]
			if (before+len(value))%3 != 0 {
				text = text[:len(text)-1]
			}
			if len(all) == 0 || all[len(all)-1] != text {
				all = append(all, text)
			}
		}
	}
	return all
}

// isEncoded tells whether some encoder writes r as something else.
func isEncoded(r rune) bool {
	return r >= utf8.RuneSelf || !is(byte(r), name) && r != '~'
}

// The characters that encoders write as \u escapes beside those that JSON
// demands: none of them, those with a meaning in HTML and JavaScript, all but
// ASCII, all of these and more.
func none(rune) bool       { return false }
func html(r rune) bool     { return strings.ContainsRune("<>&\u2028\u2029", r) }
func notASCII(r rune) bool { return r > 0x7e }
func careful(r rune) bool  { return notASCII(r) || strings.ContainsRune("<>&'+`", r) }

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
