package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Excerpt is the line that a fault stands in, without what may be secret.
type Excerpt struct {
	Text  string // the line; what may be secret is ***
	Col   int    // of the offending text, from 1, in characters of Text
	Width int    // of the offending text in characters, at least 1
}

// Excerpts shows the lines of one formation's files. It reads each file at
// most once and none outside the formation's directory.
type Excerpts struct {
	root    *os.Root
	sources map[string]*source // nil for a file that can't be shown
	secrets map[lineOf][]part
}

// lineOf names a line of a file, from 0.
type lineOf struct {
	file string
	line int
}

const (
	maxLinesAbove  = 2000 // how far the block of a line is looked for
	maxShownLength = 4096 // of a line in bytes; nobody reads a longer one
)

// OpenExcerpts opens what Load was given. Close frees it.
func OpenExcerpts(dir string) (*Excerpts, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open formation: %w", err)
	}
	if !info.IsDir() {
		dir = filepath.Dir(dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open formation: %w", err)
	}
	return &Excerpts{root: root, sources: map[string]*source{}, secrets: map[lineOf][]part{}}, nil
}

// Close closes the formation's directory.
func (x *Excerpts) Close() error { return x.root.Close() }

// Of returns the line that f stands in, false when there is none to show: the
// fault is about a whole file, or the file is no text.
func (x *Excerpts) Of(f Fault) (Excerpt, bool) {
	src, known := x.sources[f.File]
	if !known {
		// The reader knows how to meet a hostile file: it counts, and never waits.
		if data, wrong := newBundle(x.root).read(f.File); wrong == nil {
			src, _ = newSource(f.File, data)
		}
		x.sources[f.File] = src
	}
	if f.Line == 1 && f.Col == 1 && f.Text == "" && !strings.HasPrefix(string(f.Rule), "yaml.") {
		return Excerpt{}, false // something is missing in the whole file
	}
	if src == nil || f.Line < 1 || f.Line > len(src.lines) || len(src.lines[f.Line-1]) > maxShownLength {
		return Excerpt{}, false
	}
	line := []rune(src.lines[f.Line-1])
	col := near(line, min(max(f.Col-1, 0), len(line)), f.Text)
	at := lineOf{f.File, f.Line - 1}
	hidden, known := x.secrets[at]
	if !known {
		hidden = src.secretParts(at.line)
		x.secrets[at] = hidden
	}
	width := offending(line[col:], f.Text)
	if f.Text == "***" {
		hidden = append(slices.Clone(hidden), part{col, col + width})
	}
	return masked(line, part{col, col + width}, hidden), true
}

// near returns where text stands around col: the YAML scanner miscounts behind
// a tab.
func near(line []rune, col int, text string) int {
	if !slices.Contains(line, '\t') {
		return col
	}
	const most = 3
	for _, at := range []int{col, col + 1, col - 1, col + 2, col - 2, col + most, col - most} {
		if at >= 0 && at < len(line) && text != "" && strings.HasPrefix(string(line[at:]), text) {
			return at
		}
	}
	return col
}

// part is a part of a line, in characters from 0.
type part struct{ from, to int }

// masked writes the line with *** for each hidden part and finds the offending
// part again.
func masked(line []rune, offending part, hidden []part) Excerpt {
	const mask = "***"
	hidden = append(slices.Clone(hidden), part{len(line), len(line)})
	slices.SortStableFunc(hidden, func(a, b part) int { return a.from - b.from })
	var b strings.Builder
	at, from, to := 0, -1, -1
	// here is where a character of the line is written.
	here := func(i int) int { return utf8.RuneCountInString(b.String()) + i - at }
	for _, h := range hidden {
		if h.to <= at && h.from < len(line) {
			continue
		}
		h.from = max(h.from, at)
		if from < 0 && offending.from < h.from {
			from = here(offending.from)
		}
		if to < 0 && offending.to <= h.from {
			to = here(offending.to)
		}
		b.WriteString(string(line[at:h.from]))
		at = h.from
		if h.from == h.to {
			continue
		}
		if from < 0 && offending.from < h.to {
			from = here(at)
		}
		b.WriteString(mask)
		at = h.to
		if to < 0 && offending.to <= h.to {
			to = here(at)
		}
	}
	if from < 0 { // behind the last character
		from = here(len(line))
	}
	return Excerpt{Text: b.String(), Col: from + 1, Width: max(to-from, 1)}
}

// offending returns how many characters of rest are what a fault is about:
// text, in quotes or not, or else one word.
func offending(rest []rune, text string) int {
	s := string(rest)
	if s == "" {
		return 1
	}
	if cut, ok := strings.CutSuffix(text, "…"); ok && strings.HasPrefix(s, cut) {
		return utf8.RuneCountInString(strings.TrimRight(s, " \t"))
	}
	for _, quote := range []string{"", `"`, "'"} {
		if whole := quote + text + quote; text != "" && strings.HasPrefix(s, whole) {
			return utf8.RuneCountInString(whole)
		}
	}
	if q := s[:1]; q == `"` || q == "'" {
		if end := strings.Index(s[1:], q); end >= 0 {
			return utf8.RuneCountInString(s[:end+2])
		}
	}
	if text == "***" { // a secret may have any character
		return max(utf8.RuneCountInString(strings.TrimRight(s, " \t}],")), 1)
	}
	if end := strings.IndexAny(s, " \t,:}]"); end > 0 {
		return utf8.RuneCountInString(s[:end])
	}
	if strings.ContainsAny(s[:1], " \t,:}]") {
		return 1
	}
	return len(rest)
}

var (
	// lineKey matches the key that a line begins with, behind dashes.
	lineKey = lazily(`^(\s*(?:-\s+)*)(?:"([^"]*)"|'([^']*)'|([^\s#'"{\[\]},-][^:#{\[]*?|-[^\s:#{\[][^:#{\[]*?))\s*:(?:\s|$)`)
	// anyKey matches a key anywhere in a line.
	anyKey = lazily(`([\w.-]+)["']?\s*:(?:\s|$|["'{\[])`)
	// harmless are keys that only look like those of secrets.
	harmless = lazily(`(?i)(_tokens|tokens_per_|max_?tokens|keywords?|^authors?$)`)
	// noValue matches what stands where a value does and tells nothing.
	noValue = lazily(`^(true|false|null|~|[|>][-+0-9]*|#.*)?$`)
	// userInfo matches the user and password of an address.
	userInfo = lazily(`://([^/\s"'@]+)@`)
	// reference matches a placeholder, a malformed one too: it names a secret
	// and is none.
	reference = lazily(`\$\{\{\s*[\w.-]*\s*(?:\}\})?`)
)

func isSensitive(key string) bool {
	return sensitive().MatchString(harmless().ReplaceAllString(key, ""))
}

// secretParts returns the parts of line i that may be secret: values of
// sensitive keys or below them, and credentials in addresses. It looks at the
// text, not at the tree, so that it also serves a file that is no YAML.
func (s *source) secretParts(i int) []part {
	line := s.lines[i]
	var out []part
	chars := func(bytes int) int { return utf8.RuneCountInString(line[:bytes]) }
	for _, m := range userInfo().FindAllStringSubmatchIndex(line, -1) {
		out = append(out, part{chars(m[2]), chars(m[3])})
	}
	from := -1
	if s.belowSecret(i) {
		from = len(line) - len(strings.TrimLeft(line, " \t-"))
		if m := lineKey().FindStringIndex(line); m != nil {
			from = m[1]
		}
	}
	for _, m := range anyKey().FindAllStringSubmatchIndex(line, -1) {
		if isSensitive(line[m[2]:m[3]]) && (from < 0 || m[3] < from) {
			from = m[3] + strings.IndexByte(line[m[3]:], ':') + 1
		}
	}
	if from < 0 {
		return out
	}
	hide := func(from, to int) {
		text := line[from:to]
		trimmed := strings.TrimLeft(text, " \t{[")
		from += len(text) - len(trimmed)
		if trimmed = strings.TrimRight(trimmed, " \t}],"); !noValue().MatchString(trimmed) {
			out = append(out, part{chars(from), chars(from + len(trimmed))})
		}
	}
	start := from
	for _, m := range reference().FindAllStringIndex(line[start:], -1) {
		hide(from, start+m[0])
		from = start + m[1]
	}
	hide(from, len(line))
	return out
}

// belowSecret tells whether line i stands in the block of a sensitive key, by
// the indentation of the lines above. What is too deep in a file counts as one.
func (s *source) belowSecret(i int) bool {
	indent := func(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }
	inside := indent(s.lines[i])
	if strings.HasPrefix(s.lines[i][inside:], "- ") {
		inside++ // a list may stand as deep as its key
	}
	for j := i - 1; j >= 0 && inside > 0; j-- {
		if i-j > maxLinesAbove {
			return true
		}
		line := s.lines[j]
		if indent(line) >= inside || !strings.Contains(line, ":") {
			continue
		}
		m := lineKey().FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if at := len(m[1]); at < inside {
			inside = at
			if isSensitive(m[2] + m[3] + m[4]) {
				return true
			}
		}
		if dash := indent(line); strings.HasPrefix(line[dash:], "- ") {
			inside = min(inside, dash+1)
		}
	}
	return false
}
