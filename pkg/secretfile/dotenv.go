package secretfile

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
)

// ParseEnv reads the text of a .env file: lines NAME=VALUE, with "export "
// before them or not, blank lines, and comments from a # that begins a line or
// follows white space behind a value. A value may stand in double quotes, with
// the escapes \n, \r, \t, \", \$ and \\, or in single quotes, where nothing is
// special; both may span lines. Nothing is replaced: $ is a character. The
// result has normalized names; of a name that is set twice, the last counts.
// The fault is SecretsError and names the line, never its content.
func ParseEnv(text string) (map[string]string, error) {
	if len(text) > MaxFile {
		return nil, fault.Errorf(fault.Invalid, faultName, "%d bytes are over the limit of %d", len(text), MaxFile)
	}
	if !utf8.ValidString(text) {
		return nil, fault.New(fault.Invalid, faultName, "this is not UTF-8 text")
	}
	p := envParser{rest: strings.TrimPrefix(text, "\ufeff"), line: 1}
	values := make(map[string]string)
	for p.rest != "" {
		name, value, err := p.assignment()
		if err != nil {
			return nil, fault.Errorf(fault.Invalid, faultName, "line %d: %w", p.line, err)
		}
		if name != "" {
			values[name] = value
		}
	}
	return values, nil
}

type envParser struct {
	rest string
	line int
}

// assignment reads one line, or several when a quoted value spans them. name is
// "" for a line without one.
func (p *envParser) assignment() (name, value string, err error) {
	line, _, _ := strings.Cut(p.rest, "\n")
	if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
		p.skip(len(line))
		return "", "", nil
	}
	left, _, ok := strings.Cut(line, "=")
	if !ok {
		return "", "", fmt.Errorf("this is no NAME=VALUE")
	}
	written := strings.TrimSpace(left)
	if word, ok := strings.CutPrefix(written, "export"); ok && word != strings.TrimSpace(word) {
		written = strings.TrimSpace(word)
	}
	if name = Normalize(written); name == "" || strings.ContainsAny(written, " \t\"'") {
		return "", "", fmt.Errorf("what stands before = is no name: use letters, digits and _")
	}
	p.rest = strings.TrimLeft(p.rest[len(left)+1:], " \t")
	value, err = p.value()
	return name, value, err
}

// value reads what follows =, with the end of its line.
func (p *envParser) value() (string, error) {
	if p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\'' {
		line, _, _ := strings.Cut(p.rest, "\n")
		p.skip(len(line))
		return plainValue(line), nil
	}
	value, size, err := quoted(p.rest)
	if err != nil {
		return "", err
	}
	last := p.line + strings.Count(p.rest[:size], "\n")
	p.rest, p.line = p.rest[size:], last
	tail, _, _ := strings.Cut(p.rest, "\n")
	if trimmed := strings.TrimSpace(tail); trimmed != "" && trimmed[0] != '#' {
		return "", fmt.Errorf("there is something behind the closing quote")
	}
	p.skip(len(tail))
	return value, nil
}

// skip goes over the rest of a line, n bytes, and its end.
func (p *envParser) skip(n int) {
	if n < len(p.rest) {
		n++
		p.line++
	}
	p.rest = p.rest[n:]
}

// plainValue cuts a comment and white space off a value without quotes.
func plainValue(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(line)
}

// quoted reads the string that s begins with; size includes its quotes.
func quoted(s string) (value string, size int, err error) {
	quote := s[0]
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			return b.String(), i + 1, nil
		case c == '\\' && quote == '"' && i+1 < len(s):
			i++
			if at := strings.IndexByte(`nrt"$\`, s[i]); at >= 0 {
				b.WriteByte("\n\r\t\"$\\"[at])
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, fmt.Errorf("the quote is not closed")
}
