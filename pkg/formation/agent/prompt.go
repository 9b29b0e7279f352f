package agent

import (
	"strings"

	"github.com/agentformation/service/pkg/manifest"
)

var roleLines = map[string]string{
	"specialist":  "You are a specialist: go deep in your field and say when a question lies outside it.",
	"generalist":  "You are a generalist: handle a broad range of questions.",
	"coordinator": "You are a coordinator: break work into parts and keep the whole in view.",
	"researcher":  "You are a researcher: gather facts, weigh sources and separate what is known from what is likely.",
	"executor":    "You are an executor: carry tasks out and report what was done.",
}

var styleLines = map[string]string{
	"formal": "Write formally.", "casual": "Write casually.", "technical": "Write for a technical reader.",
	"friendly": "Write in a friendly tone.", "professional": "Write professionally.",
}

var lengthLines = map[string]string{
	"concise": "Keep answers short.", "moderate": "Give answers of moderate length.",
	"detailed": "Give detailed answers.", "comprehensive": "Cover the subject comprehensively.",
}

var errorLines = map[string]string{
	"graceful":      "When something fails, say so calmly and offer what still works, without technical detail.",
	"explicit":      "When something fails, say exactly what failed and why.",
	"technical":     "When something fails, give the technical detail: which tool, with which error.",
	"user-friendly": "When something fails, explain it in plain words without technical detail.",
}

var formatLines = map[string]string{
	manifest.FormatMarkdown: "Format answers as Markdown.",
	manifest.FormatText:     "Answer in plain text without markup.",
	manifest.FormatHTML:     "Format answers as an HTML fragment without scripts.",
}

// FormatLine tells a model the response format of a manifest; "" for those that
// it need not know.
func FormatLine(format string) string { return formatLines[format] }

// systemPrompt assembles what the manifest says of an agent, most general
// first, so that providers can cache the common beginning.
func systemPrompt(a *manifest.Agent, soul, format string) string {
	var p prompt
	if soul == "" {
		soul = manifest.DefaultSoul
	}
	p.add(soul)
	p.add("You are " + a.Name + ". " + a.Description)
	p.add(a.SystemMessage)
	p.add(roleLines[a.Role])
	p.add(specialization(a.Specialization))
	b := a.SystemBehavior
	p.list("You can:", b.Capabilities)
	p.list("Keep to these rules:", b.Constraints)
	p.add(strings.Join(nonEmpty(styleLines[b.InteractionStyle], lengthLines[b.ResponseLength],
		errorLines[b.ErrorHandling], formatLines[format]), " "))
	return strings.Join(p.parts, "\n\n")
}

func specialization(s manifest.Specialization) string {
	field := strings.Join(nonEmpty(s.Domain, s.Subdomain), ", ")
	if field == "" {
		return ""
	}
	line := "Your field is " + field
	if s.ExpertiseLevel != "" {
		line += " at " + s.ExpertiseLevel + " level"
	}
	if len(s.Keywords) > 0 {
		line += ": " + strings.Join(s.Keywords, ", ")
	}
	return line + "."
}

// toolGuidance goes with every prompt of an agent that has tools.
const toolGuidance = "You have tools. Call one when the answer depends on what it knows or does, several at once when they do not " +
	"depend on each other. Give real values only: never a placeholder such as {{NAME}}, and no id, name, path or address that " +
	"neither the user nor a tool gave you; look it up first or ask. When a tool returns several records, choose by what was asked, " +
	"not the first. When a call fails, read the error before you try again, and never report a failed call as done."

// systemPrompt is that of the run: what never changes, then what is known in
// this turn, then the day.
func (r *run) systemPrompt() string {
	p := prompt{parts: []string{r.agent.system}}
	if len(r.specs) > 0 {
		p.add(toolGuidance)
	}
	for _, section := range r.task.Context {
		p.add(section)
	}
	p.add("Today is " + r.agent.cfg.Now().UTC().Format("Monday, 2 January 2006") + " (UTC).")
	return strings.Join(p.parts, "\n\n")
}

type prompt struct{ parts []string }

func (p *prompt) add(part string) {
	if part = strings.TrimSpace(part); part != "" {
		p.parts = append(p.parts, part)
	}
}

func (p *prompt) list(head string, items []string) {
	if len(items) > 0 {
		p.add(head + "\n- " + strings.Join(items, "\n- "))
	}
}

func nonEmpty(parts ...string) []string {
	out := parts[:0:0]
	for _, s := range parts {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}
