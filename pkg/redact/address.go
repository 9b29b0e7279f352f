package redact

import "bytes"

// maxUserinfo is the longest name and password in an address, in bytes.
const maxUserinfo = 1024

// userinfo finds name and password in an address; i is at the colon of "://".
func (s *scanner) userinfo(i int) int {
	if !s.has(i, "://") || s.left(i, word|dot|dash) == i {
		return i
	}
	from := i + len("://")
	at := -1
	ends := "/?#"
	if isDatabase(s.p[s.left(i, letter):i]) {
		ends = "" // people forget to escape their password
	}
	for j := from; j < min(len(s.p), from+maxUserinfo) && !is(s.p[j], space) && bytes.IndexByte([]byte("\"'`<>\\"), s.p[j]) < 0; j++ {
		if bytes.IndexByte([]byte(ends), s.p[j]) >= 0 {
			break
		}
		if s.p[j] == '@' {
			at = j
		}
	}
	if at <= from {
		return i
	}
	s.add(from, at, "credentials")
	return at + 1
}

// isDatabase tells whether addresses with a scheme are those of databases and
// the like, whose passwords stand in them.
func isDatabase(scheme []byte) bool {
	for _, known := range []string{
		"postgres", "postgresql", "mysql", "mariadb", "mongodb", "srv", "redis", "rediss", "amqp", "amqps",
		"mssql", "sqlserver", "oracle", "clickhouse", "cassandra", "bolt", "nats", "ldap", "ldaps", "smtp", "smtps",
	} {
		if bytes.EqualFold(scheme, []byte(known)) {
			return true
		}
	}
	return false
}

// email finds an address around the @ at i.
func (s *scanner) email(i int) int {
	from := i
	for from > s.edge && (is(s.p[from-1], name) || s.p[from-1] == '+' || s.p[from-1] == '%') {
		from--
	}
	for from < i && !is(s.p[from], word) {
		from++
	}
	end := s.run(i+1, letter|digit|dash|dot)
	for end > i && !is(s.p[end-1], letter|digit) {
		end--
	}
	top := end
	for top > i+1 && is(s.p[top-1], letter) {
		top--
	}
	if from == i || end-top < 2 || top < i+3 || s.p[top-1] != '.' || !is(s.p[i+1], letter|digit) {
		return i
	}
	s.add(from, end, "email")
	return end
}
