// Package clarify tells what a message means to a question that waits for its
// answer: one of the options offered, an answer in the user's own words, a
// refusal to go on, or something new that has nothing to do with it. It asks
// nobody and keeps nothing; when words alone can't tell, its verdict is a
// guess that says so, and the overlord may ask a model.
//
// Only the overlord and the tests import it.
package clarify

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Verdict is what a message is to a question.
type Verdict string

// The verdicts.
const (
	Choice Verdict = "choice" // one of the options
	Text   Verdict = "text"   // an answer in the user's own words
	Cancel Verdict = "cancel" // the user doesn't want to go on
	New    Verdict = "new"    // another request
	Blank  Verdict = "blank"  // nothing was said, and no offered option was chosen
)

// Reply is a message as it was understood.
type Reply struct {
	Verdict Verdict
	Option  int // of a Choice: its index in the question's Options
	// Sure is false when the verdict is a guess.
	Sure bool
}

// maxMention is the longest message, in bytes, that is searched for the names
// of options. A longer one is more than a choice.
const maxMention = 200

// Read returns what a message, or a click in a widget, means to a question. A
// click counts only on the question's own widget and an option offered there.
func Read(q chat.Question, message string, click *chat.UIReply) Reply {
	if i, ok := clicked(q, message, click); ok {
		return Reply{Verdict: Choice, Option: i, Sure: true}
	}
	said := fold(message)
	if said == "" {
		return Reply{Verdict: Blank, Sure: true}
	}
	if i, ok := named(q.Options, said); ok {
		return Reply{Verdict: Choice, Option: i, Sure: true}
	}
	if cancelWords[said] {
		return Reply{Verdict: Cancel, Sure: true}
	}
	if r, ok := agreed(q.Options, said); ok {
		return r
	}
	if i, ok := mentioned(q.Options, said); ok {
		return Reply{Verdict: Choice, Option: i}
	}
	if len(q.Options) > 0 {
		return Reply{Verdict: New}
	}
	if asks(message) {
		return Reply{Verdict: New}
	}
	return Reply{Verdict: Text, Sure: true}
}

// callback is a click as chat channels send it: widget and index.
var callback = regexp.MustCompile(`^(ui_[0-9A-Za-z_]+)#(\d{1,3})$`)

func clicked(q chat.Question, message string, click *chat.UIReply) (int, bool) {
	if q.ID == "" {
		return 0, false
	}
	if click != nil && click.ID == q.ID {
		if click.Index != nil {
			return *click.Index, *click.Index >= 0 && *click.Index < len(q.Options)
		}
		i := slices.IndexFunc(q.Options, func(o chat.Option) bool { return o.Value == click.Value })
		return i, i >= 0
	}
	m := callback.FindStringSubmatch(strings.TrimSpace(message))
	if m == nil || m[1] != q.ID {
		return 0, false
	}
	i, err := strconv.Atoi(m[2])
	return i, err == nil && i < len(q.Options)
}

// named finds the option that a message is the name or the number of.
func named(options []chat.Option, said string) (int, bool) {
	for _, name := range []func(chat.Option) string{
		func(o chat.Option) string { return o.Value }, func(o chat.Option) string { return o.Label },
	} {
		if i := slices.IndexFunc(options, func(o chat.Option) bool { return fold(name(o)) == said }); i >= 0 {
			return i, true
		}
	}
	word := said
	for _, lead := range []string{"number ", "option ", "no. ", "the ", "#"} {
		word = strings.TrimPrefix(word, lead)
	}
	word = strings.TrimSuffix(word, " one")
	n, err := strconv.Atoi(word)
	if err != nil {
		n = ordinals[word]
		if word == "last" {
			n = len(options)
		}
	}
	return n - 1, n >= 1 && n <= len(options)
}

// agreed reads a yes or a no, when there is an option that means it.
func agreed(options []chat.Option, said string) (Reply, bool) {
	for _, words := range []map[string]bool{yesWords, noWords} {
		i := slices.IndexFunc(options, func(o chat.Option) bool { return words[fold(o.Value)] })
		if i < 0 {
			continue
		}
		if words[said] {
			return Reply{Verdict: Choice, Option: i, Sure: true}, true
		}
		// "no, ask the other one": the first word is a guess at the rest.
		if first, _, more := strings.Cut(said, " "); more && words[strings.TrimRight(first, ",.!;:")] {
			return Reply{Verdict: Choice, Option: i}, true
		}
	}
	return Reply{}, false
}

// mentioned finds the one option whose name a short message holds.
func mentioned(options []chat.Option, said string) (int, bool) {
	if len(said) > maxMention {
		return 0, false
	}
	text, found := " "+words(said)+" ", -1
	for i, o := range options {
		for _, name := range []string{words(fold(o.Value)), words(fold(o.Label))} {
			if len(name) < 3 || !strings.Contains(text, " "+name+" ") || found == i {
				continue
			}
			if found >= 0 {
				return 0, false
			}
			found = i
		}
	}
	return found, found >= 0
}

// asks tells whether a message is a question of its own rather than an answer.
func asks(message string) bool {
	message = strings.TrimSpace(message)
	return strings.HasSuffix(message, "?") && strings.Count(message, " ") >= 2
}

// fold makes a message comparable: lower case, single spaces, without the
// punctuation around it.
func fold(s string) string {
	s = strings.Join(strings.Fields(strings.ToLower(strings.ReplaceAll(s, "’", "'"))), " ")
	s = strings.TrimLeft(s, "\"'([<*_` ")
	return strings.TrimRight(s, "\"')]>*_`.,!;: ")
}

// words leaves letters and digits, with single spaces between.
func words(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), " ")
}
