package redact

// class is what a byte means to the scanner, as bits.
type class uint8

const (
	letter class = 1 << iota
	digit
	under   // _
	dash    // - inside of tokens
	dot     // . inside of names and numbers
	trigger // a shape may show itself by it
	space
	stop // ends a value that is not quoted

	word  = letter | digit | under
	token = word | dash
	name  = token | dot
)

var classes = func() (t [256]class) {
	for c := range t {
		switch c := byte(c); {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			t[c] = letter
		case '0' <= c && c <= '9':
			t[c] = digit
		}
	}
	t['_'], t['-'], t['.'] = under, dash|trigger, dot
	for _, c := range []byte(`@:=+(\`) {
		t[c] |= trigger
	}
	for _, c := range []byte(" \t\n\r") {
		t[c] |= space | stop
	}
	for _, c := range []byte("\"'`\\,;&)}]<>|") {
		t[c] |= stop
	}
	return t
}()

func is(c byte, of class) bool { return classes[c]&of != 0 }

// scanner finds shapes in one pass over a text.
type scanner struct {
	p     []byte
	spans []span
	// edge is where the text begins behind the last escape: `\nsk-…` in a JSON
	// string is a line that begins with sk-.
	edge int
}

func (s *scanner) add(from, to int, kind string) { s.spans = append(s.spans, span{from, to, kind}) }

// scan looks at the beginning of each word and at each trigger.
func (s *scanner) scan() {
	p := s.p
	for i := 0; i < len(p); {
		switch c := classes[p[i]]; {
		case c&word != 0:
			end := s.word(i)
			if end == i { // nothing begins here: the rest of the word is none either
				for end++; end < len(p) && is(p[end], word); end++ {
				}
			}
			i = end
		case c&trigger != 0:
			i = max(i+1, s.trigger(i))
		default:
			i++
		}
	}
}

// word looks for what begins at i with a word, and returns where it ends, i
// when there is nothing.
func (s *scanner) word(i int) int {
	if i > s.edge && is(s.p[i-1], dash) && !s.dashes(i) {
		return i // in the middle of an id
	}
	if is(s.p[i], digit) {
		return s.number(i)
	}
	return s.prefixed(i)
}

// dashes tells whether the dashes before i begin a word themselves, as those of
// an option do, and don't join two.
func (s *scanner) dashes(i int) bool {
	for i > s.edge && s.p[i-1] == '-' {
		i--
	}
	return i == s.edge || !is(s.p[i-1], word)
}

// trigger looks for what is around the byte at i and returns where it ends.
func (s *scanner) trigger(i int) int {
	switch s.p[i] {
	case '\\':
		s.edge = s.escape(i)
		return s.edge
	case '@':
		return s.email(i)
	case ':':
		if end := s.userinfo(i); end > i {
			return end
		}
		return s.assigned(i)
	case '=':
		return s.assigned(i)
	case '+':
		return s.international(i)
	case '(':
		return s.areaCode(i)
	case '-':
		return s.privateKey(i)
	}
	return i
}

// escape returns the end of the backslashes at i and of the letter that they
// escape, whatever quoting they come from.
func (s *scanner) escape(i int) int {
	for i < len(s.p) && s.p[i] == '\\' {
		i++
	}
	if i == len(s.p) {
		return i
	}
	switch s.p[i] {
	case 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		for n := 1; n <= 4; n++ {
			if i+n >= len(s.p) || !isHex(s.p[i+n]) {
				return i
			}
		}
		return i + 5
	}
	return i
}

func isHex(c byte) bool { return is(c, digit) || 'a' <= c|0x20 && c|0x20 <= 'f' }

// run returns where the bytes of a class that begin at i end.
func (s *scanner) run(i int, of class) int {
	for i < len(s.p) && is(s.p[i], of) {
		i++
	}
	return i
}

// left returns where the bytes of a class that end at i begin.
func (s *scanner) left(i int, of class) int {
	for i > s.edge && is(s.p[i-1], of) {
		i--
	}
	return i
}

// at returns the byte at i, 0 behind the end.
func (s *scanner) at(i int) byte {
	if i < len(s.p) {
		return s.p[i]
	}
	return 0
}

// has tells whether the text goes on with t at i.
func (s *scanner) has(i int, t string) bool {
	return len(s.p)-i >= len(t) && string(s.p[i:i+len(t)]) == t
}
