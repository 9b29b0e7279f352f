package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// component is what every part of tokenizer.json has: its type. Sequences hold
// more of the same.
type component struct {
	Type string `json:"type"`
}

func kindOf(raw json.RawMessage) (string, error) {
	var c component
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	return c.Type, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func parseSplitter(raw json.RawMessage) (splitter, error) {
	if absent(raw) {
		return func(s string, _ bool) []string { return whole(s) }, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "BertPreTokenizer":
		return func(s string, _ bool) []string { return fields(s, isPunctuation) }, nil
	case "WhitespaceSplit":
		return func(s string, _ bool) []string { return strings.FieldsFunc(s, unicode.IsSpace) }, nil
	case "Whitespace":
		return func(s string, _ bool) []string { return wordsAndSigns(s) }, nil
	case "Metaspace":
		return parseMetaspace(raw)
	case "Sequence":
		var seq struct {
			Parts []json.RawMessage `json:"pretokenizers"`
		}
		if err := json.Unmarshal(raw, &seq); err != nil {
			return nil, err
		}
		return sequence(seq.Parts)
	}
	return nil, unsupported(kind, "BertPreTokenizer, Whitespace, WhitespaceSplit, Metaspace or a Sequence of these")
}

func unsupported(kind, known string) error {
	return fmt.Errorf("%q is not supported; known are %s", kind, known)
}

func whole(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

func sequence(parts []json.RawMessage) (splitter, error) {
	var all []splitter
	for _, raw := range parts {
		s, err := parseSplitter(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return func(s string, first bool) []string {
		words := whole(s)
		for _, split := range all {
			var next []string
			for i, w := range words {
				next = append(next, split(w, first && i == 0)...)
			}
			words = next
		}
		return words
	}, nil
}

// fields cuts at white space and makes each separator a word of its own.
func fields(s string, separator func(rune) bool) []string {
	var out []string
	begin := -1
	end := func(at int) {
		if begin >= 0 {
			out = append(out, s[begin:at])
			begin = -1
		}
	}
	for i, r := range s {
		switch {
		case unicode.IsSpace(r):
			end(i)
		case separator(r):
			end(i)
			out = append(out, s[i:i+utf8.RuneLen(r)])
		case begin < 0:
			begin = i
		}
	}
	end(len(s))
	return out
}

// isPunctuation is BERT's idea of it: ASCII that is no letter or digit, and
// whatever Unicode calls punctuation.
func isPunctuation(r rune) bool {
	if r < 0x80 {
		return r > ' ' && r != 0x7f && !isWord(r) || r == '_'
	}
	return unicode.IsPunct(r)
}

// isWord is \w.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) || unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Nl, r) ||
		unicode.Is(unicode.Pc, r) || r == 0x200C || r == 0x200D
}

// wordsAndSigns is \w+|[^\w\s]+.
func wordsAndSigns(s string) []string {
	const space, word, sign = 0, 1, 2
	var out []string
	begin, was := 0, space
	for i, r := range s {
		is := sign
		if unicode.IsSpace(r) {
			is = space
		} else if isWord(r) {
			is = word
		}
		if is != was {
			if was != space {
				out = append(out, s[begin:i])
			}
			begin, was = i, is
		}
	}
	if was != space {
		out = append(out, s[begin:])
	}
	return out
}

func parseMetaspace(raw json.RawMessage) (splitter, error) {
	m := struct {
		Replacement string `json:"replacement"`
		Prefix      *bool  `json:"add_prefix_space"` // the older way to say Scheme
		Scheme      string `json:"prepend_scheme"`
		Split       *bool  `json:"split"`
	}{Replacement: "▁"}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m.Scheme == "" {
		m.Scheme = "always"
		if m.Prefix != nil && !*m.Prefix {
			m.Scheme = "never"
		}
	}
	if utf8.RuneCountInString(m.Replacement) != 1 {
		return nil, fmt.Errorf("metaspace: replacement %q is not one character", m.Replacement)
	}
	if m.Scheme != "always" && m.Scheme != "first" && m.Scheme != "never" {
		return nil, fmt.Errorf("metaspace: prepend_scheme %q is not always, first or never", m.Scheme)
	}
	return func(s string, first bool) []string {
		s = strings.ReplaceAll(s, " ", m.Replacement)
		if (m.Scheme == "always" || m.Scheme == "first" && first) && !strings.HasPrefix(s, m.Replacement) {
			s = m.Replacement + s
		}
		if m.Split != nil && !*m.Split {
			return whole(s)
		}
		return before(s, m.Replacement)
	}, nil
}

// before cuts s in front of each mark.
func before(s, mark string) []string {
	var out []string
	for s != "" {
		skip := 0
		if strings.HasPrefix(s, mark) {
			skip = len(mark)
		}
		i := strings.Index(s[skip:], mark)
		if i < 0 {
			return append(out, s)
		}
		out = append(out, s[:skip+i])
		s = s[skip+i:]
	}
	return out
}

// alone tells whether s[from:to] stands between characters that make no words.
func alone(s string, from, to int, first bool) bool {
	left, n := utf8.DecodeLastRuneInString(s[:from])
	right, m := utf8.DecodeRuneInString(s[to:])
	return (n == 0 && first || n > 0 && !isWord(left)) && (m == 0 || !isWord(right))
}
