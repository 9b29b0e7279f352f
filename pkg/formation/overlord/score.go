package overlord

import (
	"math"
	"strings"
	"unicode"

	"github.com/agentformation/service/pkg/manifest"
)

// scorer ranks agents by the words they share with a message: a small BM25
// without length normalisation, in which a word counts the more the fewer
// agents have it, and words of keywords and names count more than words of
// the description. It is pure and needs no model.
type scorer struct {
	agents []scoredAgent
	idf    map[string]float64
	first  string
}

type scoredAgent struct {
	id      string
	weights map[string]float64
}

// Weights of the places a word can stand in: what an author lists as a keyword
// is meant for routing, prose is not always.
const (
	weightKeyword     = 3.0
	weightName        = 2.0
	weightField       = 2.0
	weightDescription = 1.0
	weightCapability  = 1.0
)

func newScorer(agents []manifest.Agent) *scorer {
	s := &scorer{idf: make(map[string]float64), first: agents[0].ID}
	for i := range agents {
		a := &agents[i]
		w := make(map[string]float64)
		note(w, weightDescription, a.Description)
		note(w, weightCapability, a.SystemBehavior.Capabilities...)
		note(w, weightName, a.ID, a.Name)
		note(w, weightField, a.Specialization.Domain, a.Specialization.Subdomain)
		note(w, weightKeyword, a.Specialization.Keywords...)
		s.agents = append(s.agents, scoredAgent{id: a.ID, weights: w})
	}
	have := make(map[string]int)
	for _, a := range s.agents {
		for word := range a.weights {
			have[word]++
		}
	}
	for word, n := range have {
		s.idf[word] = math.Log(1 + float64(len(s.agents))/float64(n))
	}
	return s
}

func note(weights map[string]float64, weight float64, texts ...string) {
	for _, text := range texts {
		for _, word := range words(text) {
			weights[word] = max(weights[word], weight)
		}
	}
}

// choose returns the best agent for a message. Equal scores, none included,
// stay with the session's last agent, else go to the first of the manifest.
func (s *scorer) choose(message, lastAgent string) Decision {
	asked := make(map[string]bool)
	for _, word := range words(message) {
		asked[word] = true
	}
	best, bestScore, lastScore := "", 0.0, 0.0
	for _, a := range s.agents {
		score := 0.0
		for word := range asked {
			score += a.weights[word] * s.idf[word]
		}
		if score > bestScore {
			best, bestScore = a.id, score
		}
		if a.id == lastAgent {
			lastScore = score
		}
	}
	switch {
	case best == "" && s.has(lastAgent):
		return Decision{Agent: lastAgent, Method: MethodHistory, Reason: "no words point to another agent"}
	case best == "":
		return Decision{Agent: s.first, Method: MethodDefault, Reason: "no words point to an agent"}
	case lastAgent != "" && lastScore >= bestScore:
		return Decision{Agent: lastAgent, Method: MethodHistory, Reason: "fits as well as any other"}
	}
	return Decision{Agent: best, Method: MethodHeuristic, Reason: "shares the most telling words"}
}

func (s *scorer) has(id string) bool {
	for _, a := range s.agents {
		if a.id == id {
			return true
		}
	}
	return false
}

// words splits a text into lower-case words without their plainest English
// endings and drops those that say nothing about a subject.
func words(text string) []string {
	fields := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	out := fields[:0]
	for _, w := range fields {
		if !stopWords[w] {
			out = append(out, stem(w))
		}
	}
	return out
}

func stem(w string) string {
	for _, ending := range []string{"ing", "ies", "ed", "es", "s"} {
		if base, ok := strings.CutSuffix(w, ending); ok && len(base) >= 3 {
			if ending == "ies" {
				return base + "y"
			}
			return strings.TrimSuffix(base, "e")
		}
	}
	if len(w) > 4 {
		return strings.TrimSuffix(w, "e")
	}
	return w
}

var stopWords = func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(`a an and any are as at be been but by can could did do does for from had has have he
		her here him his how i if in into is it its just let me more my no not of on one or our out please she so some tell
		than that the their them then there these they this to too up us use want was we were what when where which who why
		will with would you your about agent help need`) {
		m[w] = true
	}
	return m
}()
