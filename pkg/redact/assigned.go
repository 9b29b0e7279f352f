package redact

import "bytes"

// secretNames are the ends of the names whose values are secret, in lower case
// without separators, by their last letter.
var secretNames = func() (t [256][]string) {
	for _, known := range []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "secretkey",
		"privatekey", "accountkey", "adminkey", "clientkey", "encryptionkey", "signingkey", "sessionkey",
		"authorization", "credential", "credentials", "connectionstring", "cookie", "sas", "sig",
	} {
		last := known[len(known)-1]
		t[last] = append(t[last], known)
	}
	return t
}()

// maxName is the longest name that is compared.
const maxName = 64

// assigned finds the value that a secret name is given at i, with = or : and
// whatever quotes.
func (s *scanner) assigned(i int) int {
	if !s.secretName(i) {
		return i
	}
	from, quote, slashes := s.opened(i + 1)
	if quote == 0 {
		return s.plain(i, from)
	}
	to := s.closing(from, quote, slashes)
	if to == from || s.harmless(from) {
		return from
	}
	s.add(from, to, "password")
	return to
}

// opened returns where a value begins behind i and the quote that it is in,
// with the number of backslashes before; no quote is 0.
func (s *scanner) opened(i int) (from int, quote byte, slashes int) {
	for n := 0; n < 2 && s.at(i) == ' '; n++ {
		i++
	}
	from = i
	for s.at(i) == '\\' {
		i++
	}
	if c := s.at(i); c == '"' || c == '\'' {
		return i + 1, c, i - from
	}
	return from, 0, 0
}

// plain takes a value without quotes, which begins at from. Behind a colon, it
// may as well be prose.
func (s *scanner) plain(sign, from int) int {
	to := from
	for to < len(s.p) && !is(s.p[to], stop) {
		to++
	}
	shortest, prose := 1, s.p[sign] == ':' || from > sign+1
	if prose {
		shortest = 6
	}
	if to-from < shortest || prose && !s.mixed(from, to) || s.harmless(from) || s.numeric(from, to) || s.at(sign+1) == '=' {
		return from
	}
	s.add(from, to, "password")
	return to
}

// secretName tells whether the word that ends at i, perhaps in quotes, is the
// name of a secret.
func (s *scanner) secretName(i int) bool {
	end := i
	for end > 0 && bytes.IndexByte([]byte(`"' \`), s.p[end-1]) >= 0 {
		end--
	}
	if i-end > 4 || end == 0 || secretNames[s.p[end-1]|0x20] == nil {
		return false
	}
	var buf [maxName]byte
	n := len(buf)
	for from := end; from > 0 && is(s.p[from-1], name) && n > 0; from-- {
		if c := s.p[from-1]; is(c, letter|digit) {
			n--
			buf[n] = c | 0x20
		}
	}
	for _, known := range secretNames[s.p[end-1]|0x20] {
		if len(buf)-n >= len(known) && string(buf[len(buf)-len(known):]) == known {
			// Three letters are the end of too many words.
			return len(known) > 3 || len(buf)-n == len(known)
		}
	}
	return false
}

// closing returns where the string ends that was opened with a quote behind a
// number of backslashes: at such a quote with as many, or where there are fewer.
func (s *scanner) closing(from int, quote byte, slashes int) int {
	for i := from; i < len(s.p); i++ {
		before := i
		for s.at(i) == '\\' {
			i++
		}
		if n := i - before; s.at(i) == quote && (n <= slashes || slashes == 0 && n%2 == 0) {
			return before
		}
	}
	return len(s.p)
}

// harmless tells what stands for a secret and is none.
func (s *scanner) harmless(i int) bool {
	for _, t := range []string{"${{", "[redacted", "***", "•", "<", "{", "["} {
		if s.has(i, t) {
			return true
		}
	}
	return false
}

func (s *scanner) numeric(from, to int) bool {
	for _, c := range s.p[from:to] {
		if !is(c, digit|dot|dash) {
			return false
		}
	}
	return true
}
