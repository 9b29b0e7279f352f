package document

import (
	"bytes"
	"strconv"
)

// lexer cuts the content of a page, or a table of characters, into tokens. It
// takes whatever comes: what is malformed becomes some token or none.
type lexer struct {
	b   []byte
	pos int
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenNumber
	tokenString
	tokenName
	tokenOperator
	tokenOpen  // [
	tokenClose // ]
)

type token struct {
	kind   tokenKind
	number float64
	text   string  // of a string, a name or an operator
	list   []token // of an array, when an operand
}

func isSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == 0
}

func isDelimiter(c byte) bool { return bytes.IndexByte([]byte("()<>[]{}/%"), c) >= 0 }

// next returns the next token; dictionaries and braces are passed over as if
// their brackets were space.
func (l *lexer) next() token {
	for l.pos < len(l.b) {
		c := l.b[l.pos]
		switch {
		case isSpace(c):
			l.pos++
		case c == '%':
			l.comment()
		case c == '(':
			l.pos++
			return token{kind: tokenString, text: l.literal()}
		case c == '<' && l.pos+1 < len(l.b) && l.b[l.pos+1] == '<', c == '>', c == '{', c == '}', c == ')':
			l.pos++
			if c == '<' {
				l.pos++
			}
		case c == '<':
			l.pos++
			return token{kind: tokenString, text: l.hex()}
		case c == '/':
			l.pos++
			return token{kind: tokenName, text: l.name()}
		case c == '[':
			l.pos++
			return token{kind: tokenOpen}
		case c == ']':
			l.pos++
			return token{kind: tokenClose}
		default:
			return l.word()
		}
	}
	return token{}
}

func (l *lexer) comment() {
	for l.pos < len(l.b) && l.b[l.pos] != '\n' && l.b[l.pos] != '\r' {
		l.pos++
	}
}

// word reads a number or an operator.
func (l *lexer) word() token {
	from := l.pos
	for l.pos < len(l.b) && !isSpace(l.b[l.pos]) && !isDelimiter(l.b[l.pos]) {
		l.pos++
	}
	word := string(l.b[from:l.pos])
	if c := word[0]; c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.' {
		if f, err := strconv.ParseFloat(word, 64); err == nil {
			return token{kind: tokenNumber, number: f}
		}
		return token{kind: tokenNumber}
	}
	return token{kind: tokenOperator, text: word}
}

func (l *lexer) name() string {
	from := l.pos
	for l.pos < len(l.b) && !isSpace(l.b[l.pos]) && !isDelimiter(l.b[l.pos]) {
		l.pos++
	}
	raw := l.b[from:l.pos]
	if bytes.IndexByte(raw, '#') < 0 {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] == '#' && i+2 < len(raw) {
			if n, err := strconv.ParseUint(string(raw[i+1:i+3]), 16, 8); err == nil {
				out = append(out, byte(n))
				i += 2
				continue
			}
		}
		out = append(out, raw[i])
	}
	return string(out)
}

// literal reads a string up to its closing parenthesis.
func (l *lexer) literal() string {
	var out []byte
	depth := 1
	for l.pos < len(l.b) {
		c := l.b[l.pos]
		l.pos++
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return string(out)
			}
		case '\\':
			out = l.escape(out)
			continue
		}
		out = append(out, c)
	}
	return string(out)
}

func (l *lexer) escape(out []byte) []byte {
	if l.pos >= len(l.b) {
		return out
	}
	c := l.b[l.pos]
	l.pos++
	switch c {
	case 'n':
		return append(out, '\n')
	case 'r':
		return append(out, '\r')
	case 't':
		return append(out, '\t')
	case 'b', 'f':
		return append(out, ' ')
	case '\r':
		if l.pos < len(l.b) && l.b[l.pos] == '\n' {
			l.pos++
		}
		return out
	case '\n':
		return out
	}
	if c < '0' || c > '7' {
		return append(out, c)
	}
	n := int(c - '0')
	for range 2 {
		if l.pos >= len(l.b) || l.b[l.pos] < '0' || l.b[l.pos] > '7' {
			break
		}
		n = n*8 + int(l.b[l.pos]-'0')
		l.pos++
	}
	return append(out, byte(n))
}

func (l *lexer) hex() string {
	var out []byte
	half, high := false, byte(0)
	for l.pos < len(l.b) {
		c := l.b[l.pos]
		l.pos++
		if c == '>' {
			break
		}
		v, ok := hexValue(c)
		if !ok {
			continue
		}
		if half {
			out = append(out, high<<4|v)
		}
		half, high = !half, v
	}
	if half {
		out = append(out, high<<4)
	}
	return string(out)
}

func hexValue(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	default:
		return 0, false
	}
}

// skipImage passes over the bytes of an image that stands in the content, up to
// and with its operator EI.
func (l *lexer) skipImage() {
	for at := l.pos; ; {
		i := bytes.Index(l.b[at:], []byte("EI"))
		if i < 0 {
			l.pos = len(l.b)
			return
		}
		at += i + 2
		before, after := at-3, at
		if before >= 0 && isSpace(l.b[before]) && (after >= len(l.b) || isSpace(l.b[after])) {
			l.pos = at
			return
		}
	}
}

// The operands that one operator may have (a table of characters has hundreds), and the items of an array.
const (
	maxOperands = 1024
	maxItems    = 1 << 16
)

// operators calls do for each operator with its operands, until do fails.
func (l *lexer) operators(do func(op string, args []token) error) error {
	var args, list []token
	inList := false
	for {
		t := l.next()
		switch t.kind {
		case tokenEnd:
			return nil
		case tokenOpen:
			inList, list = true, nil
			continue
		case tokenClose:
			inList = false
			t = token{kind: tokenOpen, list: list}
		case tokenOperator:
			if inList && t.text != "BT" && t.text != "ET" {
				continue // null, true or what should not be there
			}
			inList = false
			if t.text == "ID" {
				l.skipImage()
			}
			if err := do(t.text, args); err != nil {
				return err
			}
			args = args[:0]
			continue
		default:
		}
		if inList {
			if len(list) < maxItems {
				list = append(list, t)
			}
		} else if len(args) < maxOperands {
			args = append(args, t)
		}
	}
}
