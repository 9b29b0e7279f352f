package overlord

import (
	"maps"
	"slices"
	"strings"
)

// leastKnown is how many letters a word needs to be found by others than itself:
// short words have too many neighbours.
const leastKnown = 5

// vocabulary is what a team's words are recognised by when they are written
// otherwise: misspelt, or with an ending that stem does not know.
type vocabulary struct {
	words map[string]bool
	like  map[shape][]string // in order
	// longest bounds the work that a message without spaces can make, in bytes.
	longest int
}

// shape is what a misspelt word has in common with what was meant.
type shape struct {
	first  byte
	length int
}

// newVocabulary holds the words of the agents and what examples taught, which
// may be nil.
func newVocabulary(own map[string]float64, taught *learned) vocabulary {
	v := vocabulary{words: make(map[string]bool), like: make(map[shape][]string)}
	for word := range own {
		v.words[word] = true
	}
	if taught != nil {
		for key := range taught.weights {
			if !strings.HasPrefix(key, markSmall) && !strings.HasPrefix(key, markField) {
				v.words[key] = true
			}
		}
	}
	for _, word := range slices.Sorted(maps.Keys(v.words)) {
		if len(word) >= leastKnown {
			s := shape{word[0], len(word)}
			v.like[s] = append(v.like[s], word)
			v.longest = max(v.longest, len(word))
		}
	}
	return v
}

// read replaces words of a message that nobody knows by the known ones that they
// stand for.
func (v vocabulary) read(m heardWords) heardWords {
	own := false // m has its own copy of the words
	for i, word := range m.subjects {
		if len(word.fields) > 0 || v.words[word.stem] {
			continue
		}
		meant := v.meant(word.stem)
		if meant == "" || slices.ContainsFunc(m.subjects, func(s subject) bool { return s.stem == meant }) {
			continue
		}
		if !own {
			m.subjects, m.features, own = slices.Clone(m.subjects), slices.Clone(m.features), true
		}
		m.subjects[i].stem, m.subjects[i].fields = meant, allFields().of[meant]
		at := slices.IndexFunc(m.features, func(f feature) bool { return f.key == word.stem })
		m.features[at].key = meant
	}
	return m
}

// meant returns the known word that a word is misspelt for, else the longest
// one that it begins with, else "".
func (v vocabulary) meant(word string) string {
	if len(word) < leastKnown {
		return ""
	}
	for length := len(word) - 1; length <= len(word)+1; length++ {
		for _, known := range v.like[shape{word[0], length}] {
			if slip(word, known) {
				return known
			}
		}
	}
	for end := min(len(word)-1, v.longest); end >= leastKnown; end-- {
		if v.words[word[:end]] {
			return word[:end]
		}
	}
	return ""
}

// slip tells that two words differ by one letter too many or by two that are
// swapped. One letter that is another is no slip: it makes other words too often.
func slip(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	n := 0
	for n < len(a) && a[n] == b[n] {
		n++
	}
	if len(a) < len(b) {
		return a[n:] == b[n+1:]
	}
	return n+1 < len(a) && a[n] == b[n+1] && a[n+1] == b[n] && a[n+2:] == b[n+2:]
}
