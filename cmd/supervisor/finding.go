package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/redact"
)

// finding is one fault or warning, with the names that the management API has
// for them.
type finding struct {
	Severity   string `json:"severity"`
	File       string `json:"file"`
	Line       int    `json:"line"`
	Column     int    `json:"column"`
	Field      string `json:"field"`
	Message    string `json:"msg"`
	Text       string `json:"text"`
	Suggestion string `json:"suggestion"`
	Rule       string `json:"error"`

	fault manifest.Fault
}

// findings is everything that a check found.
type findings struct {
	list             []finding
	faults, warnings int
	strict           bool
	subject          *subject
	secrets          *redact.Redactor // knows shapes only
}

func (r *findings) add(severity string, f manifest.Fault) {
	if severity == severityError {
		r.faults++
	} else {
		r.warnings++
	}
	r.list = append(r.list, finding{
		Severity: severity, File: filepath.Join(r.subject.base, filepath.FromSlash(f.File)), Line: f.Line, Column: f.Col,
		Field: f.Key, Message: r.secrets.String(f.Message), Text: r.secrets.String(f.Text), Suggestion: f.Suggestion,
		Rule: string(f.Rule), fault: f,
	})
}

// sort orders by file, the first found first, then by place. What says that
// more is not listed stays at the end.
func (r *findings) sort() {
	order := map[string]int{}
	for _, f := range r.list {
		if _, seen := order[f.File]; !seen {
			order[f.File] = len(order)
		}
	}
	slices.SortStableFunc(r.list, func(a, b finding) int {
		if end := cmp.Compare(a.Rule, "") - cmp.Compare(b.Rule, ""); end != 0 {
			return -end
		}
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

func (r *findings) failed() bool { return r.faults > 0 || r.strict && r.warnings > 0 }

// count says how much was found.
func (r *findings) count() string {
	var parts []string
	if r.faults > 0 {
		parts = append(parts, count(r.faults, "fault"))
	}
	if r.warnings > 0 {
		parts = append(parts, count(r.warnings, "warning"))
	}
	return strings.Join(parts, " and ")
}

// printChecked prints what was found, as compilers do.
func (a *app) printChecked(r *findings) error {
	if a.json() {
		return a.printJSON(append([]finding{}, r.list...)) // never null
	}
	if len(r.list) == 0 {
		return nil
	}
	lines, err := manifest.OpenExcerpts(r.subject.load)
	if err != nil {
		return err
	}
	for _, f := range r.list {
		e, shown := lines.Of(f.fault)
		text := a.headline(f, !shown)
		if shown {
			text += a.underlined(f, withoutShapes(r.secrets, e))
		}
		if _, err := fmt.Fprint(a.out, text); err != nil {
			return errors.Join(err, lines.Close())
		}
	}
	return lines.Close()
}

// headline is the place and what is wrong.
func (a *app) headline(f finding, whole bool) string {
	at := f.File
	if f.Line > 0 {
		at += fmt.Sprintf(":%d:%d", f.Line, f.Column)
	}
	c := red
	if f.Severity == severityWarning {
		c = yellow
	}
	text := printable(f.Message)
	if f.Field != "" {
		text = printable(f.Field) + ": " + text
	}
	if f.Suggestion != "" && whole {
		text += "; " + didYouMean(f)
	}
	if f.Rule != "" {
		text += " " + a.paint(dim, "["+f.Rule+"]")
	}
	return a.paint(bold, printable(at)+":") + " " + a.paint(c, f.Severity+":") + " " + text + "\n"
}

func didYouMean(f finding) string { return fmt.Sprintf("did you mean %q?", printable(f.Suggestion)) }

// withoutShapes takes out of a line what looks like a secret wherever it stands.
func withoutShapes(secrets *redact.Redactor, e manifest.Excerpt) manifest.Excerpt {
	clean := secrets.String(e.Text)
	if clean == e.Text {
		return e
	}
	before := secrets.String(string([]rune(e.Text)[:e.Col-1]))
	if !strings.HasPrefix(clean, before) {
		before = clean[:len(clean)-len(strings.TrimLeft(clean, " \t"))]
	}
	return manifest.Excerpt{Text: clean, Col: utf8.RuneCountInString(before) + 1, Width: 1}
}

// The most of a line that is shown, in characters, and how much of that stands
// before the offending text at least.
const (
	shownWidth  = 110
	shownBefore = 40
)

// underlined shows a line and marks what is wrong in it.
func (a *app) underlined(f finding, e manifest.Excerpt) string {
	line := []rune(e.Text)
	from := min(e.Col-1, len(line))
	to := min(from+e.Width, len(line))
	start, end := 0, len(line)
	if end > shownWidth {
		start = max(0, min(from-shownBefore, end-shownWidth))
		end = min(end, start+shownWidth)
	}
	to = min(to, end)
	before, wrong, after := screen(line[start:from]), screen(line[from:to]), screen(line[to:end])
	if start > 0 {
		before = "…" + before
	}
	if end < len(line) {
		after += "…"
	}
	c := red
	if f.Severity == severityWarning {
		c = yellow
	}
	number := strconv.Itoa(f.Line)
	mark := strings.Repeat("^", max(uniseg.StringWidth(wrong), 1))
	if f.Suggestion != "" {
		mark += " " + didYouMean(f)
	}
	gutter := func(n string) string { return a.paint(dim, fmt.Sprintf("%5s | ", n)) }
	return gutter(number) + strings.TrimRight(before+wrong+after, " ") + "\n" +
		gutter("") + strings.Repeat(" ", uniseg.StringWidth(before)) + a.paint(c, mark) + "\n"
}

// screen makes text for a terminal, where a tab has no width of its own.
func screen(text []rune) string { return printable(strings.ReplaceAll(string(text), "\t", "    ")) }
