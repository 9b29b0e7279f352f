package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// The limits of one file. The parser behind us recurses per key and copies
// per entry, so its input is bounded before it sees it.
const (
	maxFileBytes = 1 << 20
	maxDepth     = 64
	maxTokens    = 30_000  // about 10,000 keys
	maxMarks     = 150_000 // characters and line ends that may end a token
	maxKeyChars  = 256     // of one key
	maxPathBytes = 8 << 20 // the parser keeps a path per value; their sum
	maxNodes     = 100_000 // values with aliases expanded
	textPerNode  = 160     // bytes of a text that count as one value more: 16 MB in all
)

// source is the text of one file.
type source struct {
	name  string
	text  string
	lines []string // without line ends; what people count
}

// place is a position in a source, both parts from 1.
type place struct{ line, col int }

// newSource checks that data is text the parser may see. It drops a byte order
// mark and turns line ends into \n.
func newSource(name string, data []byte) (*source, *Fault) {
	s := &source{name: name}
	if len(data) > maxFileBytes {
		return nil, s.fault(place{}, RuleFileSize, "the file has more than 1 MiB")
	}
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return nil, s.fault(place{1, 1}, RuleFileEncoding, "the file is UTF-16; save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	s.text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
	s.lines = strings.Split(s.text, "\n")
	for i, line := range s.lines {
		if at, what := badRune(line); at >= 0 {
			return nil, s.fault(place{i + 1, 1 + utf8.RuneCountInString(line[:at])}, RuleFileEncoding, what)
		}
	}
	return s, nil
}

// badRune finds the first byte of line that is no text, -1 when all is.
func badRune(line string) (at int, what string) {
	for i, r := range line {
		switch {
		case r == utf8.RuneError && strings.IndexByte(line[i:], 0xef) != 0:
			return i, "the file is not valid UTF-8"
		case r < ' ' && r != '\t', r == 0x7f, r == '\ufeff':
			return i, fmt.Sprintf("control character U+%04X; remove it", r)
		}
	}
	return -1, ""
}

func (s *source) fault(p place, rule RuleID, message string) *Fault {
	return &Fault{File: s.name, Line: p.line, Col: p.col, Message: message, Rule: rule}
}

// parse returns the syntax tree, nil for an empty document. A panic of the
// parser becomes a fault.
func (s *source) parse() (root ast.Node, f *Fault) {
	defer func() {
		if r := recover(); r != nil {
			root, f = nil, s.fault(place{1, 1}, RuleYAMLSyntax, "the file is not well-formed YAML")
		}
	}()
	tokens, f := s.scan()
	if f != nil {
		return nil, f
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, s.syntaxFault(err)
	}
	var docs []*ast.DocumentNode
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); doc.Body != nil && !directive {
			docs = append(docs, doc)
		}
	}
	switch len(docs) {
	case 0:
		return nil, nil
	case 1:
		return docs[0].Body, nil
	}
	return nil, s.fault(placeOf(docs[1].Body.GetToken()), RuleYAMLDocuments, "a second document starts here; write one per file")
}

// scan cuts the text into tokens and checks them against the limits. The
// scanner makes all tokens at once, so marks are counted before.
func (s *source) scan() (token.Tokens, *Fault) {
	const tooMany = "the file has too many values; split it with $include"
	if marks(s.text) > maxMarks {
		return nil, s.fault(place{1, 1}, RuleYAMLSize, tooMany)
	}
	var sc scanner.Scanner
	sc.Init(s.text)
	var tokens token.Tokens
	for {
		some, err := sc.Scan()
		tokens.Add(some...)
		if err != nil || len(tokens) > maxTokens { // the end, or an invalid token which the parser reports
			break
		}
	}
	if len(tokens) > maxTokens {
		return nil, s.fault(placeOf(tokens[maxTokens]), RuleYAMLSize, tooMany)
	}
	var n nesting
	for i, t := range tokens {
		isKey := i+1 < len(tokens) && tokens[i+1].Type == token.MappingValueType
		if f := n.add(t, isKey); f != nil {
			return nil, s.fault(placeOf(t), f.Rule, f.Message)
		}
	}
	return tokens, nil
}

// marks counts what may separate tokens; there are at most twice as many tokens.
func marks(text string) int {
	n := 0
	for i := range len(text) {
		switch text[i] {
		case '\n', '[', ']', '{', '}', ',', '"', '\'', '&', '*', '!', '#', '|', '>', '%', '@', '`':
			n++
		case '-', '?', ':':
			if i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\n' || text[i+1] == '\t' {
				n++
			}
		}
	}
	return n
}

// syntaxFault turns the parser's error into a fault. The parser's messages
// hold no values of the file.
func (s *source) syntaxFault(err error) *Fault {
	var at interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if !errors.As(err, &at) {
		return s.fault(place{1, 1}, RuleYAMLSyntax, "the file is not well-formed YAML")
	}
	p := s.within(placeOf(at.GetToken()))
	if p.line > 0 && p.line <= len(s.lines) {
		line := s.lines[p.line-1]
		indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if tab := strings.IndexByte(indent, '\t'); tab >= 0 {
			return s.fault(place{p.line, tab + 1}, RuleYAMLTab, "a tab indents this line; use spaces")
		}
	}
	if f := s.leftover(p.line + 1); f != nil {
		return f
	}
	hint := ""
	if p.line > 0 && p.line <= len(s.lines) {
		hint = lineHint(s.lines[p.line-1], p.col, at.GetMessage())
	}
	if hint == "" {
		hint = syntaxHint(at.GetMessage())
	}
	return s.fault(p, RuleYAMLSyntax, "not well-formed YAML: "+at.GetMessage()+hint)
}

// within puts a place that lies behind the end of its line where it is: the
// parser counts columns on behind a quoted text of several lines. One column
// past the end is the place of a value that is absent.
func (s *source) within(p place) place {
	for p.line > 0 && p.line < len(s.lines) {
		n := utf8.RuneCountInString(s.lines[p.line-1])
		if p.col <= n+2 {
			return p
		}
		p.line, p.col = p.line+1, p.col-n-1
	}
	if p.line > 0 && p.line <= len(s.lines) {
		p.col = min(p.col, utf8.RuneCountInString(s.lines[p.line-1])+1)
	}
	return p
}

func syntaxHint(message string) string {
	switch {
	case strings.Contains(message, "pre-defined"), strings.Contains(message, "not allowed in this context"):
		return "; check the indentation, and quote a value that contains \": \""
	case strings.Contains(message, "non-map value"):
		return "; expected `key: value` here"
	case strings.Contains(message, "unexpected key name"):
		return "; a `:` is missing, or the indentation is wrong"
	case strings.Contains(message, "end character of"):
		return "; a quote is not closed"
	}
	return ""
}

func placeOf(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{1, 1}
	}
	return place{max(t.Position.Line, 1), max(t.Position.Column, 1)}
}
