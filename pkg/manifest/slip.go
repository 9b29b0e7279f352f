package manifest

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// leftover finds what a line up to last holds that no author wrote on purpose and
// that the parser has no word for: marks of a merge conflict or of Markdown, and
// what looks like a space and is none.
func (s *source) leftover(last int) *Fault {
	for i, line := range s.lines[:max(0, min(last, len(s.lines)))] {
		at := place{i + 1, 1}
		switch {
		case strings.HasPrefix(line, "<<<<<<< "), strings.HasPrefix(line, ">>>>>>> "), line == "=======":
			return s.fault(at, RuleYAMLSyntax, "a merge conflict stands here; keep one side and remove the marks")
		case strings.HasPrefix(line, "```"):
			return s.fault(at, RuleYAMLSyntax, "``` belongs to Markdown; remove the line")
		}
		indent := line[:len(line)-len(strings.TrimLeftFunc(line, unicode.IsSpace))]
		if odd := strings.IndexFunc(indent, func(r rune) bool { return r >= utf8.RuneSelf }); odd >= 0 {
			return s.fault(place{i + 1, 1 + utf8.RuneCountInString(indent[:odd])}, RuleYAMLTab,
				"what indents this line looks like a space and is none; use ordinary spaces")
		}
	}
	return nil
}

var (
	// lineValue matches the value of a line: behind dashes and a key.
	lineValue = lazily(`^\s*(?:-\s+)*(?:[^\s:#'"{\[][^:#]*:\s+)?(\S.*)$`)
	// stuckColon matches a key whose value stands right behind the colon.
	stuckColon = lazily(`^\s*(?:-\s+)*[A-Za-z_][\w-]*:[^\s/:]`)
)

// lineHint says what to do about a syntax fault at the character col of line, ""
// when nothing better than the parser's words is known.
func lineHint(line string, col int, message string) string {
	value, from := "", col
	if m := lineValue().FindStringSubmatchIndex(line); m != nil {
		value, from = line[m[2]:], 1+utf8.RuneCountInString(line[:m[2]])
	}
	// The parser took the value for something shorter and met the rest.
	behind := col > from && strings.Contains(message, "not allowed in this context")
	switch {
	case strings.Contains(line, "{{") && !strings.Contains(line, "${{"):
		return "; a placeholder is written with a $: ${{ secrets.NAME }}"
	case strings.Contains(line, "{ ${{"), strings.Contains(line, ": ${{") && strings.Contains(line, "{") && strings.Contains(message, "must be specified"):
		return "; put a ${{ }} inside braces in quotes"
	case strings.Contains(line, `\`) && (strings.Contains(message, "double-quoted") || strings.Contains(message, "escape")):
		return `; a \ in double quotes begins an escape: write \\ or use single quotes`
	case strings.Contains(message, "reserved character"), strings.HasPrefix(value, "%"),
		behind && value != "" && strings.ContainsAny(value[:1], "*&!{[\""):
		return "; put the whole text in quotes"
	case behind && strings.HasPrefix(value, "'"):
		return "; inside single quotes, ' is written ''"
	case stuckColon().MatchString(line) && strings.Contains(message, "non-map value"):
		return "; a space is missing behind the colon"
	}
	return ""
}

// listOf guesses the list that a text was meant to be, and says what is wrong
// with one that was nearly written.
func listOf(n *node, key string) (suggestion, hint string) {
	switch {
	case strings.HasPrefix(n.text, "-"):
		return "", "; write each item in a line of its own, with a space behind the dash"
	case len(n.text) <= 64 && n.text != "" && shown(n, key) == n.text && !strings.ContainsAny(n.text, " ,:/[]{}\n"):
		return "[" + n.text + "]", ""
	}
	return "", ""
}

// nearDuration guesses the duration that a text was meant to be.
func nearDuration(text string) string {
	text = strings.ToLower(strings.ReplaceAll(text, " ", ""))
	number := strings.TrimRightFunc(text, unicode.IsLetter)
	words := []string{"milliseconds", "seconds", "minutes", "hours", "days"}
	short := []string{"ms", "s", "m", "h", "h"}
	word := text[len(number):]
	i := slices.IndexFunc(words, func(w string) bool { return len(word) > 1 && word != "ms" && strings.HasPrefix(w, word) })
	if word == "d" {
		i = len(words) - 1
	}
	if i >= 0 {
		text = number + short[i]
	}
	d, err := time.ParseDuration(text)
	if i == len(words)-1 {
		d *= 24
	}
	if err != nil || d <= 0 || d > maxDuration {
		return ""
	}
	for unit, name := range map[time.Duration]string{time.Hour: "h", time.Minute: "m", time.Second: "s", time.Millisecond: "ms"} {
		larger := map[time.Duration]time.Duration{time.Minute: time.Hour, time.Second: time.Minute, time.Millisecond: time.Second}[unit]
		if d%unit == 0 && (larger == 0 || d%larger != 0) {
			return strconv.FormatInt(int64(d/unit), 10) + name
		}
	}
	return ""
}

// nearPlaceholder guesses the placeholder that s was meant to begin with, from the
// name in it. What is no name may be a secret itself.
func nearPlaceholder(s string) string {
	inner := strings.TrimLeft(s, "${ \t")
	end := strings.IndexFunc(inner, func(r rune) bool {
		return r != '.' && r != '-' && r != '_' && (r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	})
	if end >= 0 {
		if rest := strings.TrimLeft(inner[end:], " \t"); rest != "" && rest[0] != '}' {
			return ""
		}
		inner = inner[:end]
	}
	kind, name, found := strings.Cut(inner, ".")
	switch kind = strings.ToLower(kind); {
	case !found && inner == strings.ToUpper(inner) && strings.Contains(inner, "_"):
		kind, name = KindSecret, inner
	case kind == "secret", kind == KindSecret:
		kind = KindSecret
	case kind == "environment", kind == KindEnv:
		kind = KindEnv
	default:
		return ""
	}
	if name = strings.ReplaceAll(name, "-", "_"); !isPlaceholderName(name, false) {
		return ""
	}
	return "${{ " + kind + "." + name + " }}"
}

// manifestHint tells where a manifest may be when a directory has none under its
// name: names are of the directory's files and directories.
func manifestHint(names []found, hasOne func(dir string) bool) string {
	for _, e := range names {
		switch base, _, _ := strings.Cut(strings.ToLower(e.name), "."); {
		case e.dir && hasOne(e.name):
			return "; there is one in " + e.name
		case !e.dir && e.name == "formation.json":
			return "; name the file formation.json itself, or rename it"
		case !e.dir && (base == "formation" || base == "manifest"):
			return "; rename " + shorten(e.name) + " if it is the manifest"
		}
	}
	return ""
}
