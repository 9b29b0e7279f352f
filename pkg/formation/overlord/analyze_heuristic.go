package overlord

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agentformation/service/pkg/manifest"
)

// heuristicConfidence says that nobody understood the message.
const heuristicConfidence = 0.5

// analyze is the analysis by words alone: what remains when no model is asked
// or none answers in time.
func analyze(f *manifest.Formation, message string, m heardWords) Analysis {
	a := Analysis{Confidence: heuristicConfidence, ThreatType: findThreat(message)}
	a.SecurityThreat = a.ThreatType != ""
	a.ImplicitSubtasks = subtasks(message)
	a.Complexity = complexity(message, len(a.ImplicitSubtasks))
	p := intents()
	a.SchedulerQuery = p.query.MatchString(message)
	a.SchedulingRequest = !a.SchedulerQuery && p.schedule.MatchString(message)
	a.ExplicitApproval = p.approval.MatchString(message)
	a.ExplicitSOP = namedSOP(f.SOPs, message)
	a.RequiredCapabilities = capabilities(m)
	a.Topics = topics(slices.Concat(a.RequiredCapabilities, written(m)))
	if len(a.ImplicitSubtasks) < 2 {
		a.ImplicitSubtasks = nil
	}
	return a
}

// intentPatterns recognise what is asked of the formation itself.
type intentPatterns struct{ schedule, query, approval, item, split *regexp.Regexp }

var intents = sync.OnceValue(func() intentPatterns {
	re := func(s string) *regexp.Regexp { return regexp.MustCompile(`(?i)` + s) }
	const when = `(?:every\s+(?:other\s+)?(?:\d+\s+)?(?:minutes?|hours?|days?|weeks?|months?|mornings?|evenings?|nights?|weekdays?|(?:mon|tues|wednes|thurs|fri|satur|sun)days?)|` +
		`(?:hourly|daily|nightly|weekly|monthly)\b|in\s+(?:\d+|an?|two|three|five|ten|half\s+an)\s+(?:minutes?|hours?|days?|weeks?)|` +
		`(?:tomorrow|tonight|on\s+(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b.{0,20}\bat\s+\d)`
	return intentPatterns{
		schedule: re(`\bremind\s+me\b|\bset\s+(?:up\s+)?(?:a|an)\s+(?:reminder|alarm|timer)\b|\bschedule\s+(?:a|an|the|this|it)\b.{0,60}\b` + when +
			`|^\W*(?:please\s+)?(?:send|run|check|post|tell|give|write|update|report|call|fetch)\b.{0,120}\b` + when),
		query:    re(`\b(?:what|which|list|show|cancel|delete|pause|stop)\b.{0,30}\b(?:my|the|all|any)\s+(?:\w+\s+)?(?:reminders?|scheduled\s+(?:jobs?|tasks?)|scheduler\s+jobs?)\b`),
		approval: re(`\b(?:show|give|tell|send)\s+me\s+(?:the|a|your)\s+plan\b|\bplan\s+first\b|\b(?:ask|check\s+with)\s+me\s+(?:first|before)\b|\bwait\s+for\s+my\s+(?:ok|okay|approval|go)\b|\b(?:before\s+you\s+(?:start|begin|do\s+anything)|don'?t\s+(?:start|do\s+anything)\s+(?:until|before))\b`),
		item:     re(`^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+\S`),
		split:    re(`[.!?;\n]+\s+|[,;]?\s+(?:and\s+)?(?:then|afterwards|after\s+that|finally|next)\s+|,?\s+and\s+|,\s+`),
	}
})

// actionWords are the stems of what one asks somebody to do.
var actionWords = sync.OnceValue(func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(`add analyse analyze arrange assemble assess book build buy calculate call cancel change check clean collect compare
		compile compute configure convert copy correct count create debug delete deploy describe design develop draft draw edit email estimate evaluate
		explain export extract fetch fill filter find fix format forecast gather generate identify implement import improve install investigate list
		merge migrate monitor move notify optimise optimize order organise organize outline paint plan plot post prepare present print process propose
		publish rank read recommend record refactor remove rename replace report research reserve restore review rewrite run save schedule search
		select send share shorten sort split store submit suggest sum summarise summarize test track train translate update upload validate verify
		visualise visualize write`) {
		m[stem(w)] = true
	}
	return m
})

// maxScanned is the part of a message that its steps are counted in.
const maxScanned = 8000

// subtasks returns the parts of a message that each ask for something: items
// of a list, or clauses that begin with what is to be done.
func subtasks(message string) []string {
	message = clip(message, maxScanned)
	var items []string
	for line := range strings.Lines(message) {
		if intents().item.MatchString(line) {
			items = append(items, strings.TrimLeft(strings.TrimSpace(line), "-*•()0123456789. "))
		}
	}
	if len(items) >= 2 {
		return bounded(items)
	}
	for _, clause := range intents().split.Split(message, -1) {
		if asks(clause) {
			items = append(items, strings.Trim(strings.TrimSpace(clause), ".!?,;"))
		}
	}
	return bounded(items)
}

// asks tells whether one of the first words of a clause is something to do.
func asks(clause string) bool {
	seen := 0
	for _, w := range fold(clause) {
		if actionWords()[stem(w)] {
			return true
		}
		if !stopWords[w] || seen > 4 {
			return false
		}
		seen++
	}
	return false
}

// complexity is 1-2 for talk, 3-4 for one action, 5-6 for several, and 7 and
// more for what several agents would share.
func complexity(message string, steps int) float64 {
	count := len(strings.Fields(clip(message, maxScanned)))
	score := 2.0
	switch {
	case steps >= 6:
		score = 8
	case steps >= 2:
		score = 3 + float64(steps)
	case steps == 1 || count > 6:
		score = 3
	case count <= 2 && !strings.Contains(message, "?"):
		score = 1
	}
	switch {
	case count > 250:
		score += 2
	case count > 60:
		score++
	}
	return min(score, 10)
}

// capabilities are the fields that a message is about, at most three.
func capabilities(m heardWords) []string {
	f := allFields()
	mass := make([]float64, len(f.names))
	for _, word := range m.subjects {
		for _, in := range word.fields {
			mass[in.field] += in.share
		}
	}
	var out []string
	for len(out) < 3 {
		most := 0
		for n := range mass {
			if mass[n] > mass[most] {
				most = n
			}
		}
		if mass[most] < 1.5 { // a word of many fields alone
			break
		}
		out = append(out, f.names[most])
		mass[most] = 0
	}
	return out
}

// written returns the words a message is about, as they were written.
func written(m heardWords) []string {
	var out []string
	for _, word := range m.subjects[:min(len(m.subjects), maxTopics)] {
		if len(word.written) > 3 {
			out = append(out, word.written)
		}
	}
	return out
}

// namedSOP returns the procedure that a message asks for by name, or "".
func namedSOP(sops []manifest.SOP, message string) string {
	if len(sops) == 0 {
		return ""
	}
	text := " " + strings.Join(fold(message), " ") + " "
	asked := slices.ContainsFunc([]string{" sop ", " procedure ", " runbook ", " playbook "}, func(w string) bool { return strings.Contains(text, w) })
	for i := range sops {
		for _, name := range []string{sops[i].ID, sops[i].Name} {
			if n := fold(name); len(n) > 0 && asked && strings.Contains(text, " "+strings.Join(n, " ")+" ") {
				return sops[i].ID
			}
		}
	}
	return ""
}
