package httpx

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest in a body.
const maxDepth = 64

// manyKeys is the number of keys from which an object's duplicates are looked
// up in a map: comparing pairs is faster below and quadratic above.
const manyKeys = 32

// field is one member of the outermost object.
type field struct {
	key []byte // decoded
	raw []byte // the value as written, without space around it
}

// scanner checks JSON (RFC 8259) and finds the members of the outermost
// object in one pass. Unlike encoding/json it refuses duplicate keys, invalid
// UTF-8 and deep nesting: parts of the service that read the same body must
// not disagree about what it says.
type scanner struct {
	in     []byte
	pos    int
	depth  int
	fields []field
	keys   [][]byte // decoded keys of the open objects, innermost last
}

// syntaxError says where and why a body is no acceptable JSON.
type syntaxError struct {
	offset int
	msg    string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.msg, e.offset) }

func (s *scanner) fail(format string, args ...any) error {
	return &syntaxError{s.pos, fmt.Sprintf(format, args...)}
}

// A scanner without a body has no identity.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

// release gives the scanner back; its fields are gone then.
func (s *scanner) release() {
	const most = 1024 // an unusual body does not stay in memory
	if cap(s.fields) > most || cap(s.keys) > most {
		return
	}
	clear(s.fields)
	clear(s.keys[:cap(s.keys)])
	*s = scanner{fields: s.fields[:0], keys: s.keys[:0]}
	scanners.Put(s)
}

// scan checks in and collects the members of the object that it is. ok is
// false when in is valid JSON of another type.
func (s *scanner) scan(in []byte) (ok bool, err error) {
	s.in = in
	s.space()
	ok = s.peek() == '{'
	if err := s.value(); err != nil {
		return false, err
	}
	s.space()
	if s.pos != len(s.in) {
		return false, s.fail("unexpected data after the JSON value")
	}
	return ok, nil
}

func (s *scanner) peek() byte {
	if s.pos < len(s.in) {
		return s.in[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.in) {
		switch s.in[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) value() error {
	if s.pos == len(s.in) {
		return s.fail("unexpected end of JSON")
	}
	switch c := s.in[s.pos]; {
	case c == '{', c == '[':
		return s.nested(c == '{')
	case c == '"':
		return s.str()
	case c == '-' || (c >= '0' && c <= '9'):
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	default:
		return s.fail("unexpected character %q", rune(c))
	}
}

func (s *scanner) nested(object bool) (err error) {
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested deeper than %d levels", maxDepth)
	}
	if object {
		err = s.object()
	} else {
		err = s.array()
	}
	s.depth--
	return err
}

func (s *scanner) object() error {
	s.pos++
	first := len(s.keys)
	var seen map[string]struct{}
	for more := s.begin('}'); more; {
		s.space()
		at := s.pos
		key, err := s.key()
		if err != nil {
			return err
		}
		start := s.pos
		if seen, err = s.once(key, first, seen); err != nil {
			return &syntaxError{at, err.Error()}
		}
		if err := s.value(); err != nil {
			return err
		}
		if s.depth == 1 {
			s.fields = append(s.fields, field{key, s.in[start:s.pos]})
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	s.keys = s.keys[:first]
	return nil
}

// key reads `"key":` and the space around it.
func (s *scanner) key() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("expected a key in double quotes")
	}
	start := s.pos
	if err := s.str(); err != nil {
		return nil, err
	}
	key := s.in[start+1 : s.pos-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		var decoded string
		if err := json.Unmarshal(s.in[start:s.pos], &decoded); err != nil {
			return nil, s.fail("bad key")
		}
		key = []byte(decoded)
	}
	s.space()
	if s.peek() != ':' {
		return nil, s.fail("expected ':' after a key")
	}
	s.pos++
	s.space()
	return key, nil
}

// once records key as one of the object whose keys begin at first, and refuses
// it when it is there already.
func (s *scanner) once(key []byte, first int, seen map[string]struct{}) (map[string]struct{}, error) {
	dup := false
	if seen != nil {
		_, dup = seen[string(key)]
		seen[string(key)] = struct{}{}
	} else {
		for _, k := range s.keys[first:] {
			dup = dup || bytes.Equal(k, key)
		}
		s.keys = append(s.keys, key)
		if len(s.keys)-first == manyKeys {
			seen = make(map[string]struct{}, 2*manyKeys)
			for _, k := range s.keys[first:] {
				seen[string(k)] = struct{}{}
			}
		}
	}
	if dup {
		return seen, fmt.Errorf("key %q appears twice", clip(key))
	}
	return seen, nil
}

func (s *scanner) array() error {
	s.pos++
	for more := s.begin(']'); more; {
		s.space()
		if err := s.value(); err != nil {
			return err
		}
		var err error
		if more, err = s.next(']'); err != nil {
			return err
		}
	}
	return nil
}

// begin tells whether a container has a first element; an empty one is passed.
func (s *scanner) begin(end byte) bool {
	s.space()
	if s.peek() == end {
		s.pos++
		return false
	}
	return true
}

// next passes the comma before a further element or the end of the container.
func (s *scanner) next(end byte) (bool, error) {
	s.space()
	switch {
	case s.pos == len(s.in):
		return false, s.fail("unexpected end of JSON")
	case s.in[s.pos] == ',':
		s.pos++
		return true, nil
	case s.in[s.pos] == end:
		s.pos++
		return false, nil
	default:
		return false, s.fail("expected ',' or %q", rune(end))
	}
}

func (s *scanner) str() error {
	start := s.pos + 1
	ascii := true
	for s.pos++; s.pos < len(s.in); s.pos++ {
		switch c := s.in[s.pos]; {
		case c == '"':
			if !ascii && !utf8.Valid(s.in[start:s.pos]) {
				return s.fail("string is not valid UTF-8")
			}
			s.pos++
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c < 0x20:
			return s.fail("control character in a string")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return s.fail("unexpected end of JSON")
}

// escape passes an escape sequence and stays on its last byte.
func (s *scanner) escape() error {
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return nil
	case 'u':
		for range 4 {
			s.pos++
			if c := s.peek(); (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return s.fail("bad \\u escape")
			}
		}
		return nil
	default:
		return s.fail("bad escape")
	}
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.pos++
	}
	switch {
	case s.peek() == '0':
		s.pos++
	case !s.digits():
		return s.fail("bad number")
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return s.fail("bad number")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return s.fail("bad number")
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) word(w string) error {
	if len(s.in)-s.pos < len(w) || string(s.in[s.pos:s.pos+len(w)]) != w {
		return s.fail("unexpected word")
	}
	s.pos += len(w)
	return nil
}

// clip shortens what a client wrote before it is quoted back.
func clip(b []byte) string {
	const most = 64
	if len(b) <= most {
		return string(b)
	}
	return string(bytes.ToValidUTF8(b[:most], nil)) + "…"
}
