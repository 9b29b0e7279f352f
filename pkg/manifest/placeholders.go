package manifest

import (
	"strings"
	"unicode/utf8"
)

// placeholders collects the references in a text and reports malformed ones.
// A text with escapes is not searched in the source; the place of each is then
// that of the whole text.
func (b *treeBuilder) placeholders(n *node, key string) {
	first := !n.escaped
	for rest := n.text; ; {
		i := strings.Index(rest, "${{")
		if i < 0 {
			return
		}
		if first {
			b.cursor.seek(b.src, n.at)
			first = false
		}
		at := n.at
		if !n.escaped {
			at = b.cursor.next(b.src, "${{", n.at)
		}
		kind, name, size, err := cutPlaceholder(rest[i:])
		if inner, end := innerPlaceholder(rest[i:]); err != nil && b.variables != nil && end > 0 {
			if wrong := b.variables(inner); wrong != "" {
				b.fault(at, key, RuleVariable, "%s", wrong)
				b.faults[len(b.faults)-1].Text = shorten(inner)
			}
			size = end
		} else if err != nil {
			b.fault(at, key, RulePlaceholder, "%s", err.Error())
			b.faults[len(b.faults)-1].Suggestion = nearPlaceholder(rest[i:])
			size = len("${{")
		} else {
			b.refs = append(b.refs, Ref{Kind: kind, Name: name, File: n.file, Line: at.line, Col: at.col, Key: key})
		}
		rest = rest[i+size:]
	}
}

// innerPlaceholder returns what stands between the braces that s starts with,
// and how many bytes all takes; 0 when they are never closed.
func innerPlaceholder(s string) (inner string, size int) {
	end := strings.Index(s, "}}")
	if end < 0 {
		return "", 0
	}
	return strings.Trim(s[len("${{"):end], " \t\r\n"), end + len("}}")
}

// cursor is a place in a source with its byte offset in the line. It moves
// forward only, so that finding all placeholders of a file reads it once.
type cursor struct {
	at     place
	offset int
}

// seek moves the cursor to p, from where it stands when p is later.
func (c *cursor) seek(s *source, p place) {
	if c.at.line != p.line || c.at.col > p.col {
		*c = cursor{at: place{p.line, 1}}
	}
	if c.at.line < 1 || c.at.line > len(s.lines) {
		return
	}
	line := s.lines[c.at.line-1]
	for c.at.col < p.col && c.offset < len(line) {
		_, size := utf8.DecodeRuneInString(line[c.offset:])
		c.offset += size
		c.at.col++
	}
}

// next moves behind the next text and returns where it begins, the place of
// the value when there is none.
func (c *cursor) next(s *source, text string, value place) place {
	look := *c
	for look.at.line >= 1 && look.at.line <= len(s.lines) {
		rest := s.lines[look.at.line-1][look.offset:]
		if i := strings.Index(rest, text); i >= 0 {
			found := place{look.at.line, look.at.col + utf8.RuneCountInString(rest[:i])}
			*c = cursor{at: place{found.line, found.col + utf8.RuneCountInString(text)}, offset: look.offset + i + len(text)}
			return found
		}
		look = cursor{at: place{look.at.line + 1, 1}}
	}
	return value
}
