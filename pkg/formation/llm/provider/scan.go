package provider

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON without reflection: replies of a model arrive in hundreds
// of small objects, of which few fields matter. It accepts everything that
// encoding/json accepts and is lax only inside the values it skips; wrong JSON
// sets bad and ends every loop. A value of an unexpected type reads as zero.
type scanner struct {
	b   []byte
	i   int
	bad bool
}

func (s *scanner) fail() { s.bad, s.i = true, len(s.b) }

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// finish fails when anything follows the value that was read.
func (s *scanner) finish() bool {
	if !s.bad && s.peek() != 0 || s.i < len(s.b) {
		s.fail()
	}
	return !s.bad
}

// object calls field for each member; field must read or skip the value. What
// is no object is skipped.
func (s *scanner) object(field func(key []byte)) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	s.i++
	if s.peek() == '}' {
		s.i++
		return
	}
	for !s.bad {
		if s.peek() != '"' {
			s.fail()
			return
		}
		key := s.bytes()
		if s.peek() != ':' {
			s.fail()
			return
		}
		s.i++
		field(key)
		if s.more('}') {
			return
		}
	}
}

// array calls item for each element; item must read or skip it. What is no
// array is skipped.
func (s *scanner) array(item func()) {
	if s.peek() != '[' {
		s.skip()
		return
	}
	s.i++
	if s.peek() == ']' {
		s.i++
		return
	}
	for !s.bad {
		item()
		if s.more(']') {
			return
		}
	}
}

// more passes a comma; it returns true at the closing byte or a fault.
func (s *scanner) more(closing byte) bool {
	switch s.peek() {
	case ',':
		s.i++
		return s.bad
	case closing:
		s.i++
	default:
		s.fail()
	}
	return true
}

// text reads a string; other values are skipped and read as "".
func (s *scanner) text() string {
	text, _ := repair(s.textBytes(), true)
	return text
}

// textBytes is text without the copy: the bytes are valid until the input changes.
func (s *scanner) textBytes() []byte {
	if s.peek() != '"' {
		s.skip()
		return nil
	}
	return s.bytes()
}

// integer reads a number; other values are skipped and read as 0.
func (s *scanner) integer() int {
	raw := s.raw()
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		f, _ := strconv.ParseFloat(string(raw), 64)
		n = int(f)
	}
	return n
}

// raw skips a value and returns its bytes.
func (s *scanner) raw() []byte {
	s.peek()
	from := s.i
	s.skip()
	if s.bad {
		return nil
	}
	return s.b[from:s.i]
}

// skip passes over any value, without recursion.
func (s *scanner) skip() {
	depth := 0
	for !s.bad {
		switch c := s.peek(); {
		case c == '{' || c == '[':
			depth++
			s.i++
			continue
		case c == '}' || c == ']':
			depth--
			s.i++
		case c == '"':
			s.quoted()
		case (c == ',' || c == ':') && depth > 0:
			s.i++
			continue
		case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n':
			s.literal()
		default:
			s.fail()
		}
		if depth <= 0 {
			break
		}
	}
	if depth < 0 {
		s.fail()
	}
}

func (s *scanner) literal() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ',', ']', '}', ':', ' ', '\t', '\r', '\n', '"', '{', '[':
			return
		}
		s.i++
	}
}

// quoted passes over the string at the cursor and returns what is between the
// quotes, and whether it holds escapes.
func (s *scanner) quoted() (raw []byte, escaped bool) {
	rest := s.b[s.i+1:]
	end := bytes.IndexByte(rest, '"')
	if end >= 0 && bytes.IndexByte(rest[:end], '\\') >= 0 {
		escaped = true
		end = closingQuote(rest)
	}
	if end < 0 {
		s.fail()
		return nil, false
	}
	s.i += end + 2
	return rest[:end], escaped
}

// closingQuote finds the first quote that is not escaped, -1 when there is none.
func closingQuote(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return -1
}

// bytes reads the string at the cursor. Half a surrogate pair is kept as three
// bytes that repair joins with its other half.
func (s *scanner) bytes() []byte {
	raw, escaped := s.quoted()
	if !escaped {
		return raw
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		switch c := raw[i]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b', 'f', 'n', 'r', 't':
			out = append(out, "\b\f\n\r\t"[indexOf(c)])
		case 'u':
			var n int
			out, n = appendUnicode(out, raw[i+1:])
			if n == 0 {
				s.fail()
				return nil
			}
			i += n
		default:
			s.fail()
			return nil
		}
	}
	return out
}

func indexOf(c byte) int {
	switch c {
	case 'b':
		return 0
	case 'f':
		return 1
	case 'n':
		return 2
	case 'r':
		return 3
	default:
		return 4
	}
}

// appendUnicode appends the rune whose escape continues with raw and returns
// how much of raw it took, 0 when raw is no escape.
func appendUnicode(out, raw []byte) ([]byte, int) {
	r, ok := hex4(raw)
	if !ok {
		return out, 0
	}
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(out, r), 4
	}
	if len(raw) >= 10 && raw[4] == '\\' && raw[5] == 'u' {
		if low, ok := hex4(raw[6:]); ok {
			if joined := utf16.DecodeRune(r, low); joined != utf8.RuneError {
				return utf8.AppendRune(out, joined), 10
			}
		}
	}
	return append(out, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), 4
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
