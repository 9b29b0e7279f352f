package overlord

import (
	"strings"
	"unicode"
)

// fold splits a text into lower-case words. The one language whose name is a
// small word is known by its capital.
func fold(text string) []string {
	all := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i, w := range all {
		if all[i] = strings.ToLower(w); w == "Go" && (i > 0 || len(all) == 1) {
			all[i] = "golang"
		}
	}
	return all
}

// words splits a text into lower-case words without their endings and drops
// those that say nothing about a subject.
func words(text string) []string {
	all := fold(text)
	out := all[:0]
	for _, w := range all {
		if !stopWords[w] {
			out = append(out, stem(w))
		}
	}
	return out
}

// endings are cut off, the first that fits; longer ones come first.
var endings = []string{"ments", "ings", "ment", "ions", "ers", "ies", "ied", "ing", "ion", "er", "ed", "es", "ly", "s"}

// stem cuts the plainest English endings off a word, so that its forms meet.
// It is meant to be the same for a word's forms, not to be a word.
func stem(w string) string {
	for _, ending := range endings {
		base, ok := strings.CutSuffix(w, ending)
		if !ok || len(base) < 3 || len(base) < 4 && (ending == "er" || ending == "ers") {
			continue
		}
		if ending == "ies" || ending == "ied" {
			return base + "i"
		}
		if n := len(base); n > 3 && base[n-1] == base[n-2] && !strings.ContainsRune("lsaeiou", rune(base[n-1])) {
			base = base[:n-1]
		}
		return strings.TrimSuffix(base, "e")
	}
	if len(w) > 3 {
		if base, ok := strings.CutSuffix(w, "y"); ok {
			return base + "i"
		}
		return strings.TrimRight(w, "e")
	}
	return w
}

// stopWords say nothing about the subject of a message.
var stopWords = func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(`a about after again all also always am an and another any anybody anyone anything are as ask at
		away be because been before began begin being best better big but by came can come could d day days did didn do does doesn doing
		don done down each else even ever every first for from full gave get gets getting give go goes going good got had has hasn have
		haven having he hello help her here hers hey hi him his how i if im in instead into is isn it its just keep kind know last least
		left less let like ll long look m made make many may me mean might mine more most much must my need never new next no none not
		nothing now of off often ok on once one only or other our ours out over own per please put quite rather re really s same say see
		seem set shall she should since so some somebody someone something soon still such sure t take tell than thank thanks that the
		their them then there these they thing things this those three to today too try two under until up upon us use used using ve very
		want was way we well went were what when where which while who whom whose why will with within without won work works would yes
		yet you your yours agent answer answers question questions`) {
		m[w] = true
	}
	return m
}()
