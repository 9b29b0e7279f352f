package tokenizer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

func parseNormalizer(raw json.RawMessage) (normalizer, error) {
	if absent(raw) {
		return func(s string) string { return s }, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "BertNormalizer":
		return parseBert(raw)
	case "NFC":
		return norm.NFC.String, nil
	case "NFD":
		return norm.NFD.String, nil
	case "NFKC":
		return norm.NFKC.String, nil
	case "NFKD":
		return norm.NFKD.String, nil
	case "Lowercase":
		return lower, nil
	case "StripAccents":
		return func(s string) string { return without(s, unicode.Mn) }, nil
	case "Strip":
		return parseStrip(raw)
	case "Prepend":
		return parsePrepend(raw)
	case "Replace":
		return parseReplace(raw)
	case "Precompiled":
		return parseCharsMap(raw)
	case "Sequence":
		return parseNormalizers(raw)
	}
	return nil, unsupported(kind, "BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled or a Sequence of these")
}

func parseNormalizers(raw json.RawMessage) (normalizer, error) {
	var seq struct {
		Parts []json.RawMessage `json:"normalizers"`
	}
	if err := json.Unmarshal(raw, &seq); err != nil {
		return nil, err
	}
	var all []normalizer
	for _, part := range seq.Parts {
		n, err := parseNormalizer(part)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return func(s string) string {
		for _, n := range all {
			s = clipped(n(s))
		}
		return s
	}, nil
}

func parseBert(raw json.RawMessage) (normalizer, error) {
	b := struct {
		Clean   bool  `json:"clean_text"`
		Chinese bool  `json:"handle_chinese_chars"`
		Strip   *bool `json:"strip_accents"`
		Lower   bool  `json:"lowercase"`
	}{Clean: true, Chinese: true, Lower: true}
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, err
	}
	strip := b.Lower // what null means
	if b.Strip != nil {
		strip = *b.Strip
	}
	return func(s string) string {
		if ascii(s) && !b.Clean && !b.Lower {
			return s
		}
		if b.Clean {
			s = strings.Map(clean, s)
		}
		if b.Chinese {
			s = spaceChinese(s)
		}
		if strip && !ascii(s) {
			s = without(norm.NFD.String(s), unicode.Mn)
		}
		if b.Lower {
			s = lower(s)
		}
		return s
	}, nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// clean drops what can't be seen and makes every white space a blank.
func clean(r rune) rune {
	switch {
	case r == '\t' || r == '\n' || r == '\r' || unicode.IsSpace(r):
		return ' '
	case r == 0 || r == 0xFFFD || unicode.Is(unicode.C, r):
		return -1
	case r >= 0x80 && !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z):
		return -1 // not assigned
	}
	return r
}

// chinese are the blocks of characters that each are a word, as BERT lists them.
var chinese = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x3400, Hi: 0x4DBF, Stride: 1}, {Lo: 0x4E00, Hi: 0x9FFF, Stride: 1}, {Lo: 0xF900, Hi: 0xFAFF, Stride: 1}},
	R32: []unicode.Range32{
		{Lo: 0x20000, Hi: 0x2A6DF, Stride: 1},
		{Lo: 0x2A700, Hi: 0x2B73F, Stride: 1},
		{Lo: 0x2B740, Hi: 0x2B81F, Stride: 1},
		{Lo: 0x2B920, Hi: 0x2CEAF, Stride: 1},
		{Lo: 0x2F800, Hi: 0x2FA1F, Stride: 1},
	},
}

func spaceChinese(s string) string {
	if ascii(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.Is(chinese, r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// lower is the lower case of each character by itself; only the dotted capital
// I becomes two.
func lower(s string) string {
	return strings.Map(unicode.ToLower, strings.ReplaceAll(s, "\u0130", "i\u0307"))
}

func without(s string, table *unicode.RangeTable) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(table, r) {
			return -1
		}
		return r
	}, s)
}

func parseStrip(raw json.RawMessage) (normalizer, error) {
	p := struct {
		Left  bool `json:"strip_left"`
		Right bool `json:"strip_right"`
	}{Left: true, Right: true}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	return func(s string) string {
		if p.Left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if p.Right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}, nil
}

func parsePrepend(raw json.RawMessage) (normalizer, error) {
	var p struct {
		Prepend string `json:"prepend"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	if err := checkContent(p.Prepend); err != nil {
		return nil, fmt.Errorf("prepend: %w", err)
	}
	return func(s string) string {
		if s == "" {
			return s
		}
		return p.Prepend + s
	}, nil
}

func parseReplace(raw json.RawMessage) (normalizer, error) {
	var p struct {
		Pattern struct {
			String *string `json:"String"`
			Regex  *string `json:"Regex"`
		} `json:"pattern"`
		Content string `json:"content"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	if err := checkContent(p.Content); err != nil {
		return nil, fmt.Errorf("replace: %w", err)
	}
	if p.Pattern.String != nil && *p.Pattern.String != "" {
		return func(s string) string { return strings.ReplaceAll(s, *p.Pattern.String, p.Content) }, nil
	}
	if p.Pattern.Regex == nil || *p.Pattern.Regex == "" {
		return nil, fmt.Errorf("replace: neither a String nor a Regex to look for")
	}
	re, err := regexp.Compile(*p.Pattern.Regex)
	if err != nil {
		return nil, fmt.Errorf("replace: %w", err)
	}
	return func(s string) string { return re.ReplaceAllLiteralString(s, p.Content) }, nil
}
