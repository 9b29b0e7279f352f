package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

func parseModel(raw json.RawMessage) (vocabulary, error) {
	if absent(raw) {
		return nil, errors.New("there is none")
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "WordPiece":
		return parseWordPiece(raw)
	case "Unigram":
		return parseUnigram(raw)
	}
	return nil, unsupported(kind, "WordPiece and Unigram")
}

// wordPiece takes the longest piece that fits, again and again.
type wordPiece struct {
	vocab   map[string]int64
	rest    map[string]int64 // pieces within a word, without their prefix
	unknown int64
	longest int // characters of a word; longer ones are unknown
	piece   int // bytes of the longest piece
	ids     int // one more than the greatest id
}

func parseWordPiece(raw json.RawMessage) (vocabulary, error) {
	f := struct {
		Vocab   map[string]int64 `json:"vocab"`
		Unknown string           `json:"unk_token"`
		Prefix  string           `json:"continuing_subword_prefix"`
		Longest int              `json:"max_input_chars_per_word"`
	}{Unknown: "[UNK]", Prefix: "##", Longest: 100}
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	w := &wordPiece{vocab: f.Vocab, rest: map[string]int64{}, longest: f.Longest}
	var ok bool
	if w.unknown, ok = f.Vocab[f.Unknown]; !ok {
		return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", f.Unknown)
	}
	for token, id := range f.Vocab {
		if id < 0 || id > math.MaxInt32 {
			return nil, fmt.Errorf("token %q has the id %d", token, id)
		}
		if err := checkPiece(token); err != nil {
			return nil, err
		}
		w.ids = max(w.ids, int(id)+1)
		w.piece = max(w.piece, len(token))
		if rest, ok := strings.CutPrefix(token, f.Prefix); ok {
			w.rest[rest] = id
		}
	}
	return w, nil
}

func (w *wordPiece) size() int { return w.ids }

func (w *wordPiece) tokens(word string, to []int64) []int64 {
	if utf8.RuneCountInString(word) > w.longest {
		return append(to, w.unknown)
	}
	begin, pieces := len(to), w.vocab
	for word != "" {
		id, n := longest(pieces, word, w.piece)
		if n == 0 {
			return append(to[:begin], w.unknown)
		}
		to, word, pieces = append(to, id), word[n:], w.rest
	}
	return to
}

// longest returns the longest piece that word begins with, and its length.
func longest(pieces map[string]int64, word string, most int) (id int64, n int) {
	for n = min(len(word), most); n > 0; n-- {
		if n < len(word) && !utf8.RuneStart(word[n]) {
			continue
		}
		if id, ok := pieces[word[:n]]; ok {
			return id, n
		}
	}
	return 0, 0
}

// unigram takes the pieces whose scores have the greatest sum.
type unigram struct {
	vocab   map[string]int64
	scores  []float64
	unknown int64 // -1: none
	penalty float64
	piece   int // bytes of the longest piece
	bytes   []int64
}

// unknownPenalty is what an unknown character scores below the worst piece.
const unknownPenalty = 10

func parseUnigram(raw json.RawMessage) (vocabulary, error) {
	var f struct {
		Vocab   []scored `json:"vocab"`
		Unknown *int64   `json:"unk_id"`
		Bytes   bool     `json:"byte_fallback"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	u := &unigram{vocab: make(map[string]int64, len(f.Vocab)), unknown: -1}
	for i, p := range f.Vocab {
		if err := checkPiece(p.piece); err != nil {
			return nil, err
		}
		u.vocab[p.piece] = int64(i)
		u.scores = append(u.scores, p.score)
		u.piece = max(u.piece, len(p.piece))
		u.penalty = min(u.penalty, p.score)
	}
	u.penalty -= unknownPenalty
	if f.Unknown == nil || *f.Unknown < 0 || *f.Unknown >= int64(len(f.Vocab)) {
		return nil, errors.New("unk_id names no piece of the vocabulary")
	}
	u.unknown = *f.Unknown
	if f.Bytes {
		for b := range 256 {
			id, ok := u.vocab[fmt.Sprintf("<0x%02X>", b)]
			if !ok {
				return nil, fmt.Errorf("byte_fallback without the piece <0x%02X>", b)
			}
			u.bytes = append(u.bytes, id)
		}
	}
	return u, nil
}

// scored is a pair of piece and score.
type scored struct {
	piece string
	score float64
}

// UnmarshalJSON reads ["piece", -1.5].
func (s *scored) UnmarshalJSON(data []byte) error {
	pair := []any{&s.piece, &s.score}
	if err := json.Unmarshal(data, &pair); err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	if len(pair) != 2 {
		return fmt.Errorf("vocab: %s is no pair of piece and score", data)
	}
	return nil
}

func (u *unigram) size() int { return len(u.scores) }

// step is the best way to reach a byte of the word.
type step struct {
	score float64
	from  int // -1: not reached
	id    int64
}

func (u *unigram) tokens(word string, to []int64) []int64 {
	best := make([]step, len(word)+1)
	for i := range best {
		best[i].from = -1
	}
	best[0].from = 0
	reach := func(from, n int, id int64, score float64) {
		score += best[from].score
		if s := &best[from+n]; s.from < 0 || score > s.score {
			*s = step{score, from, id}
		}
	}
	for i, r := range word {
		width := utf8.RuneLen(r)
		single := false
		for n := width; n <= min(u.piece, len(word)-i); n++ {
			if i+n < len(word) && !utf8.RuneStart(word[i+n]) {
				continue
			}
			if id, ok := u.vocab[word[i:i+n]]; ok {
				reach(i, n, id, u.scores[id])
				single = single || n == width
			}
		}
		if !single {
			reach(i, width, u.unknown, u.penalty)
		}
	}
	return u.collect(word, best, to)
}

// collect walks the best way back. Unknown characters in a row are one token,
// or their bytes.
func (u *unigram) collect(word string, best []step, to []int64) []int64 {
	var way []int // ends of pieces, last first
	for at := len(word); at > 0; at = best[at].from {
		way = append(way, at)
	}
	was := false
	for _, w := range slices.Backward(way) {
		s := best[w]
		is := s.id == u.unknown
		switch {
		case is && u.bytes != nil:
			for _, b := range []byte(word[s.from:w]) {
				to = append(to, u.bytes[b])
			}
		case !is || !was:
			to = append(to, s.id)
		}
		was = is
	}
	return to
}
