// Package tokenizer turns text into the numbers a sentence embedder was trained
// on, as its tokenizer.json describes: normalizer, pre-tokenizer, WordPiece or
// Unigram model, special tokens.
//
// It refuses at Parse whatever it would get wrong, and never fails after that:
// the same words must give the same numbers as they did in training, or the
// vectors are worth nothing. Byte-pair models are refused. The model room
// imports it.
package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Tokenizer is safe for concurrent use.
type Tokenizer struct {
	normalize normalizer
	split     splitter
	model     vocabulary
	added     []addedToken // longest first
	prefix    []special
	suffix    []special
	kind      int64 // the token type of the text itself
}

// Encoding is a text in tokens, the special ones included; both slices have the
// same length.
type Encoding struct {
	IDs   []int64
	Types []int64
	// Cut tells that the text was longer than the limit.
	Cut bool
}

// normalizer changes the characters of a text.
type normalizer func(string) string

// splitter cuts a text into words; first tells whether it is the beginning of
// the whole text.
type splitter func(text string, first bool) []string

// vocabulary appends the tokens of one word.
type vocabulary interface {
	tokens(word string, to []int64) []int64
	size() int
}

// special is a token that stands around the text.
type special struct{ id, kind int64 }

type addedToken struct {
	ID      int64  `json:"id"`
	Content string `json:"content"`
	LStrip  bool   `json:"lstrip"`
	RStrip  bool   `json:"rstrip"`
	Single  bool   `json:"single_word"`
}

// file is tokenizer.json as far as it is read.
type file struct {
	Added         []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

// Parse reads the content of a tokenizer.json. The error names the part that
// is wrong or not supported.
func Parse(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t := &Tokenizer{}
	err := f.bounded()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if t.normalize, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, fmt.Errorf("tokenizer.json: normalizer: %w", err)
	}
	if t.split, err = parseSplitter(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("tokenizer.json: pre_tokenizer: %w", err)
	}
	if t.model, err = parseModel(f.Model); err != nil {
		return nil, fmt.Errorf("tokenizer.json: model: %w", err)
	}
	for _, a := range f.Added {
		if a.Content == "" || a.ID < 0 {
			return nil, fmt.Errorf("tokenizer.json: added_tokens: %q with id %d is no token", a.Content, a.ID)
		}
		t.added = append(t.added, a)
	}
	slices.SortStableFunc(t.added, func(a, b addedToken) int { return len(b.Content) - len(a.Content) })
	if err := t.frame(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("tokenizer.json: post_processor: %w", err)
	}
	return t, nil
}

// Size is one more than the greatest id a token can have.
func (t *Tokenizer) Size() int {
	n := t.model.size()
	for _, a := range t.added {
		n = max(n, int(a.ID)+1)
	}
	for _, s := range slices.Concat(t.prefix, t.suffix) {
		n = max(n, int(s.id)+1)
	}
	return n
}

// Specials is how many tokens stand around every text.
func (t *Tokenizer) Specials() int { return len(t.prefix) + len(t.suffix) }

// Encode returns the tokens of text, at most limit of them: the text is cut at
// its end, the special tokens stay. limit must be above Specials.
func (t *Tokenizer) Encode(text string, limit int) Encoding {
	ids := make([]int64, 0, min(limit, 8+len(text)/3))
	for _, s := range t.prefix {
		ids = append(ids, s.id)
	}
	most := max(limit-len(t.suffix), len(t.prefix))
	cut := false
	t.sections(strings.ToValidUTF8(text, "\uFFFD"), func(words []string, added int64) bool {
		if added >= 0 {
			ids = append(ids, added)
		}
		for _, w := range words {
			ids = t.model.tokens(w, ids)
			if len(ids) > most {
				break
			}
		}
		cut = len(ids) > most
		return !cut
	})
	if cut {
		ids = ids[:most]
	}
	for _, s := range t.suffix {
		ids = append(ids, s.id)
	}
	e := Encoding{IDs: ids, Types: make([]int64, len(ids)), Cut: cut}
	for i := range e.Types {
		e.Types[i] = t.kind
	}
	for i, s := range t.prefix {
		e.Types[i] = s.kind
	}
	for i, s := range t.suffix {
		e.Types[len(ids)-len(t.suffix)+i] = s.kind
	}
	return e
}

// sections calls visit with the words between added tokens (added is -1) and
// with each added token that is written out in the text, until it says no.
func (t *Tokenizer) sections(text string, visit func(words []string, added int64) bool) {
	first := true
	for text != "" {
		from, to, id := t.nextAdded(text, first)
		if from > 0 {
			if !visit(t.split(t.normalize(text[:from]), first), -1) {
				return
			}
		}
		if id >= 0 && !visit(nil, id) {
			return
		}
		text, first = text[to:], false
	}
}

// nextAdded finds the leftmost added token, the longest of those; without one
// both ends are the end of the text.
func (t *Tokenizer) nextAdded(text string, first bool) (from, to int, id int64) {
	from, to, id = len(text), len(text), -1
	for _, a := range t.added {
		i := a.find(text, first)
		if i < 0 || i >= from {
			continue
		}
		from, to, id = i, i+len(a.Content), a.ID
		if a.LStrip {
			from = len(strings.TrimRightFunc(text[:i], unicode.IsSpace))
		}
		if a.RStrip {
			to = len(text) - len(strings.TrimLeftFunc(text[to:], unicode.IsSpace))
		}
	}
	return from, to, id
}

// find returns where the token begins, -1 when it isn't there.
func (a addedToken) find(text string, first bool) int {
	for at := 0; ; {
		i := strings.Index(text[at:], a.Content)
		if i < 0 {
			return -1
		}
		i += at
		if !a.Single || alone(text, i, i+len(a.Content), first) {
			return i
		}
		at = i + len(a.Content)
	}
}
