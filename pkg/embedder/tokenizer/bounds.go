package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// The bounds of a tokenizer.json, which anybody can publish: far beyond what
// models are trained with, and little enough that no file makes a text cost
// gigabytes or minutes.
const (
	maxNesting = 64      // of the parts within parts
	maxContent = 64      // bytes that a normalizer puts in one place; the longest of Unicode's own are 33
	maxPiece   = 1 << 10 // bytes of a piece of the vocabulary
	maxText    = 1 << 20 // bytes of a text between two normalizers; what lies behind is cut
)

// bounded refuses parts that lie deeper within each other than any do: each
// level is read anew.
func (f *file) bounded() error {
	parts := map[string]json.RawMessage{"normalizer": f.Normalizer, "pre_tokenizer": f.PreTokenizer, "post_processor": f.PostProcessor}
	for name, raw := range parts {
		if nesting(raw) > maxNesting {
			return fmt.Errorf("%s: its parts lie more than %d deep within each other", name, maxNesting)
		}
	}
	return nil
}

// nesting is how deep the brackets of valid JSON go.
func nesting(raw []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

func checkContent(s string) error {
	if len(s) > maxContent {
		return fmt.Errorf("%d bytes stand in the place of one character or word, at most %d are taken", len(s), maxContent)
	}
	return nil
}

func checkPiece(s string) error {
	if len(s) > maxPiece {
		return fmt.Errorf("a piece of the vocabulary has %d bytes, at most %d are taken", len(s), maxPiece)
	}
	return nil
}

// clipped cuts a text that normalizers have made too long.
func clipped(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
