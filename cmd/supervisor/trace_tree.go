package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentformation/service/pkg/client"
)

// treeRow is a span at its place in the tree.
type treeRow struct {
	branch string // what is drawn before it
	span   shownSpan
}

// shownSpan is a span that tells about itself.
type shownSpan struct{ client.Span }

// treeOf puts each span below its parent. One whose parent is not there stands
// at the root, and no span is left out or shown twice.
func treeOf(spans []client.Span) []treeRow {
	known := map[string]bool{}
	for _, s := range spans {
		known[s.SpanID] = true
	}
	below := map[string][]client.Span{}
	for _, s := range spans {
		parent := ""
		if s.ParentID != nil && known[*s.ParentID] && *s.ParentID != s.SpanID {
			parent = *s.ParentID
		}
		below[parent] = append(below[parent], s)
	}
	b := &treeBuilder{below: below, seen: map[string]bool{}}
	b.add("", "", true)
	for _, s := range spans { // those in a circle have no way from the root
		if !b.seen[s.SpanID] {
			b.seen[s.SpanID] = true
			b.rows = append(b.rows, treeRow{"", shownSpan{s}})
		}
	}
	return b.rows
}

type treeBuilder struct {
	below map[string][]client.Span
	seen  map[string]bool
	rows  []treeRow
}

// add appends what is below a span; indent is drawn before each of its lines.
func (b *treeBuilder) add(parent, indent string, root bool) {
	list := slices.DeleteFunc(slices.Clone(b.below[parent]), func(s client.Span) bool { return b.seen[s.SpanID] })
	for i, s := range list {
		b.seen[s.SpanID] = true
		branch, next := "├─ ", "│  "
		switch {
		case root:
			branch, next = "", ""
		case i == len(list)-1:
			branch, next = "└─ ", "   "
		}
		b.rows = append(b.rows, treeRow{indent + branch, shownSpan{s}})
		b.add(s.SpanID, indent+next, false)
	}
}

// text returns a text attribute, "" when there is none.
func (s *shownSpan) text(name string) string {
	var text string
	if json.Unmarshal(s.Attributes[name], &text) != nil {
		return ""
	}
	return text
}

func (s *shownSpan) flag(name string) bool {
	var on bool
	return json.Unmarshal(s.Attributes[name], &on) == nil && on
}

// label says what a step was about.
func (s *shownSpan) label() string {
	switch s.Kind {
	case "turn":
		return joined("turn", s.text("status"))
	case "routing":
		if s.text("chosen") == "" {
			return "routing"
		}
		return joined("routing → "+s.text("chosen"), s.text("method"))
	case "model":
		purpose := s.text("purpose")
		if agent := s.text("agent_id"); agent != "" {
			purpose = agent
		}
		if s.flag("cached") {
			purpose = joinWords(purpose, "cached")
		}
		return joined("model "+s.Name, purpose)
	case "tool":
		return joined("tool "+s.Name, s.text("agent_id"))
	case s.Name:
		return s.Name
	}
	return s.Kind + " " + s.Name
}

// joined appends a note in brackets.
func joined(text, note string) string {
	if note == "" {
		return text
	}
	return text + " (" + note + ")"
}

func joinWords(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

// state says how a step went, and why when something was wrong.
func (s *shownSpan) state() cell {
	failed, dropped := s.text("error"), s.text("dropped")
	switch {
	case failed != "":
		return cell{"error: " + trouble(failed), red}
	case s.flag("refused"):
		return cell{"refused: " + trouble(s.text("result")), red}
	case s.flag("is_error"):
		return cell{"tool error: " + trouble(s.text("result")), red}
	case dropped != "":
		return cell{trouble(dropped), yellow}
	case s.flag("running"):
		return cell{"running", yellow}
	}
	return cell{s.Status, statusColour(s.Status)}
}

// tokens are those that a model call used; what memory estimates is none.
func (s *shownSpan) tokens() string {
	var t client.Tokens
	if s.Kind != "model" || json.Unmarshal(s.Attributes["tokens"], &t) != nil || t == (client.Tokens{}) {
		return ""
	}
	return fmt.Sprintf("%d → %d", t.Input, t.Output)
}

func (s *shownSpan) cost() string {
	var c *client.Cost
	if json.Unmarshal(s.Attributes["cost"], &c) != nil {
		return ""
	}
	return costText(c)
}
