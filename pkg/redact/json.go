package redact

// replaceJSON puts the marks into a JSON text: into strings between whole
// escapes, and in the place of a whole number. What a secret would take of the
// quotes and brackets stays.
func replaceJSON(p []byte, spans []span) []byte {
	out := make([]byte, 0, len(p)+32)
	rest := cursor(spans)
	for i := 0; i < len(p); {
		switch c := p[i]; {
		case c == '"':
			end := stringEnd(p, i+1)
			out = appendString(append(out, '"'), p[:end], i+1, &rest)
			if i = end; i < len(p) {
				out = append(out, '"')
				i++
			}
		case isBare(c):
			end := i + 1
			for end < len(p) && isBare(p[end]) {
				end++
			}
			if s, ok := rest.touching(i, end); ok {
				out = append(append(append(out, '"'), s.mark()...), '"')
			} else {
				out = append(out, p[i:end]...)
			}
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return out
}

// appendString appends the inside of a string that begins at from and ends
// with p.
func appendString(out, p []byte, from int, rest *cursor) []byte {
	last := -1 // where the span begins whose mark was written last
	for i := from; i < len(p); {
		end := min(i+escapeSize(p[i:]), len(p))
		if s, ok := rest.touching(i, end); !ok {
			out = append(out, p[i:end]...)
		} else if s.from != last {
			out, last = append(out, s.mark()...), s.from
		}
		i = end
	}
	return out
}

// escapeSize returns the size of the character of a JSON string that p begins
// with: 1 when it is no escape.
func escapeSize(p []byte) int {
	switch {
	case p[0] != '\\':
		return 1
	case len(p) > 1 && p[1] == 'u':
		return 6
	default:
		return 2
	}
}

// stringEnd returns where the string ends whose inside begins at i: at its
// quote or the end of the text.
func stringEnd(p []byte, i int) int {
	for i < len(p) && p[i] != '"' {
		i += escapeSize(p[i:])
	}
	return min(i, len(p))
}

// cursor walks over spans in the order of the text.
type cursor []span

// touching returns the span that has a part of [from,to). What it is asked
// next lies behind.
func (c *cursor) touching(from, to int) (span, bool) {
	for len(*c) > 0 && (*c)[0].to <= from {
		*c = (*c)[1:]
	}
	if len(*c) > 0 && (*c)[0].from < to {
		return (*c)[0], true
	}
	return span{}, false
}

// isBare tells what numbers and literals consist of.
func isBare(c byte) bool { return is(c, word) || c == '+' || c == '-' || c == '.' }
