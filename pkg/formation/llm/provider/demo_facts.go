package provider

import (
	"fmt"
	"regexp"
	"strings"
)

// factPatterns find what a user says about himself and asks back.
type factPatterns struct {
	statements []statement
	questions  []question
	and        *regexp.Regexp // joins two statements
	my         *regexp.Regexp // "what is my X"
	everything *regexp.Regexp
}

// statement makes a fact of a sentence; with an own subject its first group is
// the value, else the groups are subject and value.
type statement struct {
	re      *regexp.Regexp
	subject string
}

type question struct {
	re      *regexp.Regexp
	subject string
}

func newFactPatterns() factPatterns {
	value := `([^.,;!?\n]{1,80}?)(?:[.,;!?\n]|$)`
	re := func(s string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + s) }
	return factPatterns{
		statements: []statement{
			{re(`(?:my name is|my name's|i am called|i'm called|call me)\s+` + value), "name"},
			{re(`i live in\s+` + value), "home"},
			{re(`i work (?:at|for|as)\s+` + value), "work"},
			{re(`i (?:like|love|enjoy)\s+` + value), "liking"},
			{re(`my ([\pL][\pL' -]{0,40}?) (?:is|are)\s+` + value), ""},
		},
		questions: []question{
			{re(`(?:what(?:'s| is) my name|who am i|know my name|remember my name)\b`), "name"},
			{re(`where do i live\b`), "home"},
			{re(`(?:where do i work|what is my (?:job|work))\b`), "work"},
			{re(`what do i (?:like|love|enjoy)\b`), "liking"},
		},
		and:        re(`and\s+(my|i)\b`),
		my:         re(`(?:what|who|which|when|where)(?:'s| is| are| was)? my ([\pL][\pL' -]{0,40}?)\s*(?:called\s*)?[?.!]*\s*$`),
		everything: re(`(?:what do you (?:know|remember) about me|do you remember me|what did i tell you)\b`),
	}
}

// fact is one thing the user said.
type fact struct{ subject, value string }

// said renders the fact back to the user.
func (f fact) said() string {
	switch f.subject {
	case "name":
		return "your name is " + f.value
	case "home":
		return "you live in " + f.value
	case "work":
		return "you work as or at " + f.value
	case "liking":
		return "you like " + f.value
	default:
		return "your " + f.subject + " is " + f.value
	}
}

// read returns the facts in a message, last ones last.
func (p factPatterns) read(message string) []fact {
	if strings.HasSuffix(strings.TrimSpace(message), "?") {
		return nil
	}
	message = p.and.ReplaceAllString(message, ". $1")
	var facts []fact
	for _, s := range p.statements {
		for _, m := range s.re.FindAllStringSubmatch(message, 8) {
			f := fact{s.subject, strings.TrimSpace(m[len(m)-1])}
			if f.subject == "" {
				f.subject = strings.ToLower(strings.TrimSpace(m[1]))
			}
			if f.subject != "name" || s.subject != "" { // "my name is" was read above
				facts = append(facts, f)
			}
		}
	}
	return facts
}

// recall answers questions about what the user said earlier, and takes note of
// what he says now.
func (d *demo) recall(c conversation) string {
	known := map[string]fact{}
	var order []string
	for _, message := range c.earlier {
		for _, f := range d.facts.read(message) {
			if _, ok := known[f.subject]; !ok {
				order = append(order, f.subject)
			}
			known[f.subject] = f
		}
	}
	if d.facts.everything.MatchString(c.message) {
		return everything(known, order)
	}
	if subject := d.facts.asked(c.message); subject != "" {
		if f, ok := known[subject]; ok {
			return fmt.Sprintf("You told me that %s. (Remembered by the %s from earlier in our conversation.)", f.said(), demoLabel)
		}
		return fmt.Sprintf("You have not told me that yet, and the %s does not guess. Tell me and I will remember it.", demoLabel)
	}
	return noted(d.facts.read(c.message))
}

// asked returns the subject that a question is about, "" when it is none.
func (p factPatterns) asked(message string) string {
	for _, q := range p.questions {
		if q.re.MatchString(message) {
			return q.subject
		}
	}
	if m := p.my.FindStringSubmatch(message); m != nil {
		return strings.ToLower(strings.TrimSpace(m[1]))
	}
	return ""
}

func everything(known map[string]fact, order []string) string {
	if len(known) == 0 {
		return fmt.Sprintf("Nothing yet: you have not told me anything about you. The %s would remember it.", demoLabel)
	}
	lines := make([]string, len(order))
	for i, subject := range order {
		lines[i] = "- " + known[subject].said()
	}
	return fmt.Sprintf("This is what you told the %s:\n\n%s", demoLabel, strings.Join(lines, "\n"))
}

func noted(facts []fact) string {
	if len(facts) == 0 {
		return ""
	}
	said := make([]string, len(facts))
	greeting := "Got it"
	for i, f := range facts {
		said[i] = f.said()
		if f.subject == "name" {
			greeting = "Nice to meet you, " + f.value
		}
	}
	return fmt.Sprintf("%s! I will remember that %s. (Noted by the %s; ask me about it later.)", greeting, strings.Join(said, " and that "), demoLabel)
}
