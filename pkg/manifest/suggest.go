package manifest

import (
	"slices"
	"strings"
)

// nearest returns the candidate that word was probably meant to be, or "": one
// slip per three letters, at most three. The first of equally near ones wins.
func nearest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	for _, c := range candidates {
		if c != word && strings.EqualFold(c, word) {
			return c
		}
	}
	best, bestDistance := "", max(1, min(len(word)/3, 3))
	for _, c := range candidates {
		if c == word {
			continue
		}
		if d := distance(word, c); d >= len(word) {
			continue
		} else if d < bestDistance || (d == bestDistance && best == "") {
			best, bestDistance = c, d
		}
	}
	return best
}

// guess returns what word was probably meant to be among the words of one key
// or the keys of one block: a near one, one that begins with it, or the only
// one that holds it.
func guess(word string, candidates []string) string {
	word = strings.ToLower(strings.TrimSpace(word))
	if to := synonym(word); slices.Contains(candidates, to) {
		return to
	}
	if slices.Contains(candidates, word) {
		return word
	}
	if near := nearest(word, candidates); near != "" || len(word) < 3 {
		return near
	}
	for _, c := range candidates {
		if strings.HasPrefix(c, word) {
			return c
		}
	}
	found := ""
	for _, c := range candidates {
		if strings.Contains(c, word) {
			if found != "" {
				return ""
			}
			found = c
		}
	}
	return found
}

// guess is guess, until as many faults as are ever reported have asked: each
// asking compares with every candidate.
func (d *decoder) guess(word string, candidates []string) string {
	if d.guesses++; d.guesses > maxReported {
		return ""
	}
	return guess(word, candidates)
}

// synonym is a word of other tools for one of ours, or "".
func synonym(word string) string {
	return map[string]string{
		"md": "markdown", "plain": "text", "plaintext": "text", "stdio": "command", "sse": "http", "streamable-http": "http",
		"url": "endpoint", "token": "bearer", "oauth": "oauth2", "apikey": "api_key",
	}[word]
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Nearest returns the candidate that word was probably meant to be, or "". It
// serves the supervisor's own settings file.
func Nearest(word string, candidates []string) string { return nearest(word, candidates) }
