package redact

import "bytes"

// maxGroups is the most groups of digits that are looked at as one number.
const maxGroups = 8

// number finds a card, social security or phone number that begins at i, and
// returns i when there is none.
func (s *scanner) number(i int) int {
	if i > s.edge && !s.opens(s.p[i-1]) {
		return i
	}
	var g groups
	g.read(s, i)
	for n := g.n; n > 0; n-- {
		end := g.end[n-1]
		if !s.closes(end) {
			continue
		}
		if kind := g.kind(n); kind != "" {
			s.add(i, end, kind)
			return end
		}
	}
	return i
}

// opens tells whether a number may begin behind c.
func (s *scanner) opens(c byte) bool { return !is(c, name) && c != '/' && c != '+' && c != '#' }

// closes tells whether a number may end at i: not inside of a word, an id or a
// fraction.
func (s *scanner) closes(i int) bool {
	switch c := s.at(i); {
	case is(c, word):
		return false
	case c == '-' || c == '.' || c == '/' || c == ':':
		return !is(s.at(i+1), word)
	}
	return true
}

// groups are digits with single separators between.
type groups struct {
	n      int
	size   [maxGroups]int
	end    [maxGroups]int
	sep    byte // the separator, 0 before the second group
	digits [20]byte
	total  int
}

// read takes groups with one separator from i on.
func (g *groups) read(s *scanner, i int) {
	for g.n < maxGroups {
		from := i
		for ; is(s.at(i), digit); i++ {
			if g.total == len(g.digits) {
				return
			}
			g.digits[g.total] = s.p[i] - '0'
			g.total++
		}
		g.size[g.n], g.end[g.n] = i-from, i
		g.n++
		sep := s.at(i)
		if sep != ' ' && sep != '-' && sep != '.' || g.sep != 0 && sep != g.sep || !is(s.at(i+1), digit) {
			return
		}
		g.sep = sep
		i++
	}
}

// kind says what the first n groups are, "" for nothing that has to go.
func (g *groups) kind(n int) string {
	total := 0
	for _, size := range g.size[:n] {
		total += size
	}
	d := g.digits[:total]
	switch {
	case g.sep != '.' && (n == 1 || g.size[0] == 4) && isCard(d):
		return "card"
	case n == 3 && g.sep == '-' && g.shape(3, 2, 4):
		if area := int(d[0])*100 + int(d[1])*10 + int(d[2]); area == 0 || area == 666 || area >= 900 {
			return ""
		}
		return "ssn"
	case n == 3 && g.shape(3, 3, 4) && d[0] > 1 && d[3] > 1,
		n == 4 && g.shape(1, 3, 3, 4) && d[0] == 1 && d[1] > 1 && d[4] > 1:
		return "phone"
	}
	return ""
}

func (g *groups) shape(sizes ...int) bool {
	for i, n := range sizes {
		if g.size[i] != n {
			return false
		}
	}
	return true
}

// isCard tells whether digits are of an issuer and pass the check of Luhn.
func isCard(d []byte) bool {
	if len(d) < 13 || len(d) > 19 || !issued(d) {
		return false
	}
	sum := 0
	for i, digit := range d {
		n := int(digit)
		if (len(d)-i)%2 == 0 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return sum%10 == 0
}

// issued tells whether an issuer of cards has numbers that begin so and are so long.
func issued(d []byte) bool {
	four := int(d[0])*1000 + int(d[1])*100 + int(d[2])*10 + int(d[3])
	two := four / 100
	long := len(d) >= 16
	switch {
	case d[0] == 4:
		return len(d) == 13 || len(d) == 16 || len(d) == 19
	case two >= 51 && two <= 55, four >= 2221 && four <= 2720:
		return len(d) == 16
	case two == 34 || two == 37:
		return len(d) == 15
	case two == 36 || two == 38 || four >= 3000 && four <= 3059:
		return len(d) == 14
	case two == 62 || two == 65 || four == 6011 || four >= 6440 && four <= 6499 || four >= 3528 && four <= 3589:
		return long
	}
	return false
}

// international finds a phone number that begins with the + at i.
func (s *scanner) international(i int) int {
	const fewest, most = 8, 15
	if i > s.edge && is(s.p[i-1], word|dot|dash) || !is(s.at(i+1), digit) || s.at(i+1) == '0' {
		return i
	}
	end, total := i+1, 0
	for j := i + 1; is(s.at(j), digit); {
		total++
		j++
		end = j
		for n := 0; n < 2 && bytes.IndexByte([]byte(" -.()"), s.at(j)) >= 0; n++ {
			j++
		}
	}
	if total < fewest || total > most || !s.closes(end) {
		return i
	}
	s.add(i, end, "phone")
	return end
}

// areaCode finds a phone number like (555) 123-4567; i is at the bracket.
func (s *scanner) areaCode(i int) int {
	if s.run(i+1, digit) != i+4 || s.at(i+4) != ')' {
		return i
	}
	from := i + 5
	if s.at(from) == ' ' {
		from++
	}
	if s.run(from, digit) != from+3 || s.at(from+3) != '-' && s.at(from+3) != '.' && s.at(from+3) != ' ' {
		return i
	}
	end := s.run(from+4, digit)
	if end != from+8 || !s.closes(end) {
		return i
	}
	s.add(i, end, "phone")
	return end
}
