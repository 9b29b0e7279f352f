package overlord

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/manifest"
)

// scorer ranks agents for a message without any model: by the words that they
// share, by the fields that these words belong to, and by what labelled
// examples taught. It is pure, and its answer is always the same.
type scorer struct {
	agents   []profile
	idf      map[string]float64 // a word counts the more the fewer agents have it
	known    vocabulary         // of the agents and the examples
	learned  *learned           // nil without examples
	fallback string             // answers what nobody is for
}

// profile is what an agent is found by.
type profile struct {
	id     string
	words  map[string]float64
	fields []float64 // how much each of allFields is the agent's, 0 to 1
}

// Weights of the places a word can stand in: what an author lists as a keyword
// is meant for routing, prose is not always.
const (
	weightKeyword     = 3.0
	weightName        = 2.0
	weightField       = 2.0
	weightTool        = 1.5
	weightDescription = 1.0
	weightCapability  = 1.0
	weightRole        = 0.5
	weightToolText    = 0.5
)

const (
	// byField is how much a word of a field counts beside one of the agent's own.
	byField = 2.0
	// A field is wholly an agent's when this share of what its author wrote lies
	// in it; below the least share it is chance. Most fields of work are none of
	// ours, and then the few words that happen to stand in one must not count
	// like the agent's own.
	wholeField = 0.5
	leastField = 0.05
	// What the agent that answered last has ahead of others. A word that only
	// one field has weighs 7 to 8: a short message, or one that goes on from the
	// last, needs more than one such word to leave the agent.
	stay        = 1.5
	stayGoingOn = 6.0
	stayShort   = 8.0
	shortWords  = 5
	// Small words alone decide only when the best score is this often the others'.
	leastBySmallWords = 2
	// temperature turns sums of weights into shares; with it a share tells about
	// how often such a decision is right (see TestScorer_KnowsHowSureItIs).
	temperature = 3
	// Tools beyond these, and text beyond that many bytes, don't count.
	maxTools    = 200
	maxToolText = 300
)

// roleWords are what an agent of a role is asked to do, whatever its field.
var roleWords = map[string]string{
	"coordinator": "coordinate organize organise plan project delegate overview",
	"researcher":  "research investigate sources literature evidence background compare",
	"executor":    "execute run perform carry send create",
}

// newScorer reads what the agents say of themselves, their tools, if tools is
// not nil, and the formation's examples.
func newScorer(f *manifest.Formation, tools func(agentID string) []chat.ToolSpec) *scorer {
	s := &scorer{idf: make(map[string]float64), fallback: defaultAgent(f.Agents)}
	for i := range f.Agents {
		var specs []chat.ToolSpec
		if tools != nil {
			specs = tools(f.Agents[i].ID)
		}
		s.agents = append(s.agents, newProfile(&f.Agents[i], specs))
	}
	have := make(map[string]int)
	for _, a := range s.agents {
		for word := range a.words {
			have[word]++
		}
	}
	for word, n := range have {
		s.idf[word] = math.Log(1 + float64(len(s.agents))/float64(n))
	}
	s.learned = learn(f.Overlord.Routing.Examples, s.agents)
	s.known = newVocabulary(s.idf, s.learned)
	return s
}

// defaultAgent returns who answers what nobody is for: the first generalist,
// else the first agent of the manifest.
func defaultAgent(agents []manifest.Agent) string {
	for i := range agents {
		if agents[i].Role == "generalist" {
			return agents[i].ID
		}
	}
	return agents[0].ID
}

func newProfile(a *manifest.Agent, tools []chat.ToolSpec) profile {
	w := make(map[string]float64)
	note(w, weightDescription, a.Description)
	note(w, weightCapability, a.SystemBehavior.Capabilities...)
	note(w, weightName, a.ID, a.Name)
	note(w, weightField, a.Specialization.Domain, a.Specialization.Subdomain)
	note(w, weightKeyword, a.Specialization.Keywords...)
	note(w, weightRole, roleWords[a.Role])
	p := profile{id: a.ID, words: w, fields: about(w)}
	does := make(map[string]float64)
	for _, t := range tools[:min(len(tools), maxTools)] {
		note(does, weightTool, t.Name)
		note(does, weightToolText, t.Description[:min(len(t.Description), maxToolText)])
	}
	for n, much := range about(does) { // apart: many tools would make little of what the author wrote
		p.fields[n] = max(p.fields[n], much)
	}
	for word, weight := range does {
		w[word] = max(w[word], weight)
	}
	return p
}

// about returns how much each of allFields is what weighted words are about, 0 to 1.
func about(words map[string]float64) []float64 {
	in, all := make([]float64, len(allFields().names)), 0.0
	for word, weight := range words {
		all += weight
		for _, f := range allFields().of[word] {
			if allFields().names[f.field] == word { // who says the name means the field
				f.share *= 3
			}
			in[f.field] += weight * f.share
		}
	}
	all *= math.Log(1 + float64(len(in))) // the share of a word that stands in one field only
	for n := range in {
		if in[n] < leastField*all {
			in[n] = 0
		} else if all > 0 {
			in[n] = min(1, in[n]/(wholeField*all))
		}
	}
	return in
}

func note(weights map[string]float64, weight float64, texts ...string) {
	for _, text := range texts {
		for _, word := range words(text) {
			weights[word] = max(weights[word], weight)
		}
	}
}

// Candidate is an agent that was considered for a message.
type Candidate struct {
	ID      string   `json:"id"`
	Score   float64  `json:"score"` // 0 to 1
	Reasons []string `json:"reasons"`
}

// ranking is the order of all agents for a message.
type ranking struct {
	agents   []Candidate // best first
	offTopic bool        // the message is about something that none is for
	follows  bool        // the session's last agent leads because it is the last
	blind    bool        // nothing in the message points to anybody
}

// best returns the leading agent.
func (r ranking) best() Candidate { return r.agents[0] }

// evidence is what speaks for one agent.
type evidence struct {
	id     string
	total  float64 // of everything but session affinity
	own    []string
	fields []fieldWord
	taught []string // words of the message that examples have
	// subject tells that a word of taught is one about a subject.
	subject bool
}

// fieldWord is a word of a message that lies in a field of an agent.
type fieldWord struct {
	field   int
	written string
}

// rank orders the agents for a message; last is who answered before in this
// session, or "".
func (s *scorer) rank(m heardWords, last string) ranking {
	m = s.known.read(m)
	found := make([]evidence, len(s.agents))
	most := 0.0
	for i := range s.agents {
		found[i] = s.weigh(&s.agents[i], m)
		most = max(most, found[i].total)
	}
	taught := s.learned.scores(m)
	for i := range found {
		if taught != nil {
			found[i].total += taught[i]
			found[i].taught, found[i].subject = s.learned.reasons(i, m)
			most = max(most, found[i].total)
		}
	}
	return s.order(found, m, last, most)
}

// weigh sums what an agent shares with a message.
func (s *scorer) weigh(a *profile, m heardWords) evidence {
	e := evidence{id: a.id}
	for _, word := range m.subjects {
		if w := a.words[word.stem]; w > 0 {
			e.total += w * s.idf[word.stem]
			e.own = append(e.own, word.written)
		}
		for _, in := range word.fields {
			if a.fields[in.field] > 0 {
				e.total += byField * a.fields[in.field] * in.share
				e.fields = append(e.fields, fieldWord{in.field, word.written})
			}
		}
	}
	return e
}

// order turns evidence into shares that make 1 together.
func (s *scorer) order(found []evidence, m heardWords, last string, most float64) ranking {
	ahead := m.affinity()
	if s.learned != nil {
		ahead *= 1 + taughtShare // examples add to what speaks for others
	}
	lead := func(e evidence) float64 {
		if e.id == last {
			return e.total + ahead
		}
		return e.total
	}
	sum := 0.0
	for _, e := range found {
		sum += math.Exp((lead(e) - most) / temperature)
	}
	var r ranking
	for _, e := range found {
		c := Candidate{ID: e.id, Score: math.Round(1e4*math.Exp((lead(e)-most)/temperature)/sum) / 1e4, Reasons: e.reasons()}
		if e.id == last {
			c.Reasons = append(c.Reasons, "answered last in this session")
		}
		r.agents = append(r.agents, c)
	}
	slices.SortStableFunc(r.agents, func(a, b Candidate) int { return cmp.Compare(b.Score, a.Score) })
	known := slices.ContainsFunc(found, func(e evidence) bool { return e.id == last })
	r.blind = silent(found) && (s.learned == nil || known || vague(r.agents))
	switch {
	case known:
		if r.blind {
			r.promote(last)
		}
		strongest := slices.MaxFunc(found, func(a, b evidence) int { return cmp.Compare(a.total, b.total) })
		r.follows = r.best().ID == last && (r.blind || strongest.id != last)
	case r.blind:
		r.offTopic = len(m.subjects) > 0
		r.promote(s.fallback)
	}
	return r
}

// promote puts an agent first; its score becomes the best.
func (r *ranking) promote(id string) {
	i := slices.IndexFunc(r.agents, func(c Candidate) bool { return c.ID == id })
	if i <= 0 {
		return
	}
	c := r.agents[i]
	c.Score = r.agents[0].Score
	r.agents = slices.Insert(slices.Delete(r.agents, i, i+1), 0, c)
}

// vague tells that the first of the agents is hardly ahead of the others.
func vague(agents []Candidate) bool {
	best := agents[0].Score
	return best*float64(len(agents)-1) < leastBySmallWords*(1-best)
}

// silent tells that no word about a subject speaks for anybody.
func silent(found []evidence) bool {
	return !slices.ContainsFunc(found, func(e evidence) bool { return len(e.own)+len(e.fields) > 0 || e.subject })
}

// maxReasons bounds how many words a reason names.
const maxReasons = 5

// reasons tells in words what speaks for an agent.
func (e evidence) reasons() []string {
	out := []string{}
	if len(e.own) > 0 {
		out = append(out, "its own words: "+strings.Join(e.own[:min(len(e.own), maxReasons)], ", "))
	}
	for i, first := range e.fields {
		if slices.ContainsFunc(e.fields[:i], func(f fieldWord) bool { return f.field == first.field }) {
			continue
		}
		list := []string{first.written}
		for _, f := range e.fields[i+1:] {
			if f.field == first.field && len(list) < maxReasons {
				list = append(list, f.written)
			}
		}
		out = append(out, "words of "+allFields().names[first.field]+": "+strings.Join(list, ", "))
	}
	if len(e.taught) > 0 {
		out = append(out, "examples with: "+strings.Join(e.taught[:min(len(e.taught), maxReasons)], ", "))
	}
	return out
}

// heardWords are the words of a message.
type heardWords struct {
	subjects []subject // what it is about, each once
	features []feature // for what examples teach, each once
	all      int       // words, the small ones too
	goesOn   bool      // begins like the next words of a conversation
	turns    bool      // says that it is about something else
}

// subject is a word that says what a message is about.
type subject struct {
	stem    string
	written string // as it stands there first
	fields  []fieldShare
}

// feature is something that examples may teach about.
type feature struct {
	key  string
	text string // for people
	kind featureKind
}

// What the keys of features that are no subjects begin with.
const (
	markField = "#"
	markSmall = "~"
)

type featureKind uint8

const (
	aSubject featureKind = iota
	aField               // many words are of one: that is a hint, and no subject
	aSmallWord
)

// affinity is what the agent that answered last has ahead of others.
func (m heardWords) affinity() float64 {
	switch {
	case m.turns:
		return 0
	case m.all <= shortWords:
		return stayShort
	case m.goesOn:
		return stayGoingOn
	}
	return stay
}

// goingOn begins a message that only makes sense after another.
var goingOn = map[string]bool{
	"and": true, "but": true, "or": true, "now": true, "then": true, "also": true, "so": true, "because": true, "instead": true, "again": true,
	"still": true, "that": true, "it": true, "this": true, "these": true, "those": true, "yes": true, "no": true, "ok": true, "okay": true,
}

// turning begins a message about something else.
var turning = []string{"by the way", "btw", "another question", "different topic", "different question", "something else", "unrelated", "new topic"}

// maxSubjects bounds how many words of a message count; who should answer is
// known before.
const maxSubjects = 400

func listen(message string) heardWords {
	all := fold(message)
	m := heardWords{all: len(all), goesOn: len(all) > 0 && goingOn[all[0]]}
	begin := strings.Join(all[:min(len(all), 5)], " ")
	m.turns = slices.ContainsFunc(turning, func(t string) bool { return strings.HasPrefix(begin, t) || strings.HasPrefix(begin, "and "+t) })
	all = all[:min(len(all), maxSubjects)]
	seen := make(map[string]bool, 2*len(all))
	add := func(f feature) bool {
		if seen[f.key] {
			return false
		}
		seen[f.key] = true
		m.features = append(m.features, f)
		return true
	}
	for _, w := range all {
		if stopWords[w] {
			add(feature{markSmall + w, w, aSmallWord})
			continue
		}
		word := subject{stem: stem(w), written: w}
		if !add(feature{word.stem, w, aSubject}) {
			continue
		}
		word.fields = allFields().of[word.stem]
		m.subjects = append(m.subjects, word)
		for _, in := range word.fields {
			add(feature{allFields().features[in.field], allFields().names[in.field], aField})
		}
	}
	return m
}
