package manifest

import (
	"path"
	"slices"
	"strings"
)

var (
	triggerName = lazily(`^[a-zA-Z0-9_-]+$`)
	dataPath    = lazily(`^data\.[a-zA-Z0-9_.]+$`)
	parsePath   = lazily(`^\$?(\.?[A-Za-z0-9_-]+|\.?\[(-?[0-9]+|"[^"]+"|'[^']+')\])(\.-?[A-Za-z0-9_-]+|\.?\[(-?[0-9]+|"[^"]+"|'[^']+')\])*$`)
)

// triggers reads the templates in triggers/. What is wrong with one is told as
// a warning and kept with it: the formation loads, a call of it is refused.
func (l *loader) triggers() {
	for _, e := range l.b.list("triggers") {
		stem, ok := strings.CutSuffix(e.name, ".md")
		if !ok || e.dir {
			continue
		}
		name := path.Join("triggers", e.name)
		if !triggerName().MatchString(stem) {
			l.d.warnings = append(l.d.warnings, Warning{
				File: name, Rule: RuleTriggerName, Suggestion: nearID(stem),
				Message: "the file's name is no name of a trigger, so it is ignored; it has letters, digits, _ and - only",
			})
			continue
		}
		l.trigger(name, stem)
	}
}

func (l *loader) trigger(name, stem string) {
	m, faults := l.b.markdown(name)
	if m == nil {
		l.skip(faults)
		return
	}
	t := Trigger{Name: stem, Body: m.body, File: name}
	if m.front != nil && m.front.kind == kindMap {
		own := &decoder{llm: l.d.llm}
		own.trigger(own.object(m.front, ""), &t)
		l.checkTrigger(own, m.front, &t)
		l.d.warnings = append(l.d.warnings, own.warnings...)
		for _, f := range own.faults {
			if loadFails(f.Rule) {
				l.d.faults = append(l.d.faults, f)
			} else {
				faults = append(faults, f)
			}
		}
	}
	faults = append(faults, t.template(m)...)
	l.f.late = append(l.f.late, m.refs...)
	t.Faults = faults
	for _, f := range faults {
		l.d.warnings = append(l.d.warnings, Warning(f))
	}
	l.f.Triggers = append(l.f.Triggers, t)
}

// loadFails tells the rules whose breach in a trigger fails the load.
func loadFails(r RuleID) bool {
	return slices.Contains([]RuleID{RuleModelID, RuleModelLocal, RuleModelProvider, RuleTransformerURL}, r)
}

// trigger reads the front matter of a template.
func (d *decoder) trigger(o *object, t *Trigger) {
	set(new(string), o.text("name"))
	set(&t.Type, o.text("type"))
	set(&t.Webhook, o.url("webhook"))
	set(&t.Transformer, o.word("transformer"))
	set(&t.Channel, o.word("channel"))
	t.Model = d.modelID(o, "model", CapabilityText)
	p := o.block("parse")
	set(&t.Parse.Message, d.parsePath(p, "message"))
	set(&t.Parse.UserID, d.parsePath(p, "user_id"))
	set(&t.Parse.Files, d.parsePath(p, "files"))
	set(&t.Parse.UIResponse, d.parsePath(p, "ui_response"))
	t.Parse.Context = p.textMap("context", func(_ string, v *node, key string) bool { return d.checkPath(v, key) })
	p.endStrict()
	o.endStrict()
}

// parsePath reads a path into a payload.
func (d *decoder) parsePath(o *object, key string) read[string] {
	r := o.word(key)
	patterned(r.schema, parsePath().String())
	if r.v != nil && !d.checkPath(o.n.get(key), o.key(key)) {
		r.v = nil
	}
	return r
}

func (d *decoder) checkPath(v *node, key string) bool {
	if parsePath().MatchString(v.text) {
		return true
	}
	d.fault(v, key, RuleTriggerPath, "%q is no path into the payload; write it like $.user.id or $.items[0].text", shown(v, key))
	return false
}

// checkTrigger holds a trigger against the formation's transformers and
// channels.
func (l *loader) checkTrigger(own *decoder, front *node, t *Trigger) {
	o := own.object(front, "")
	var channel Channel
	if t.Channel != "" {
		var names []string
		if p := l.f.Proactive; p != nil {
			channel = p.Channels[t.Channel]
			names = sortedKeys(p.Channels)
		}
		if !slices.Contains(names, t.Channel) {
			o.faultAt("channel", "", RuleReference, "proactive.channels has no channel %q", shorten(t.Channel))
			own.faults[len(own.faults)-1].Suggestion = own.guess(t.Channel, names)
			return
		}
	}
	name, key := t.Transformer, "transformer"
	if name == "" {
		name, key = channel.Transformer, "channel"
	}
	if name == "" {
		return
	}
	tr, known := l.transformer(name)
	switch {
	case !known && t.Transformer != "":
		o.faultAt("transformer", "", RuleReference, "no transformer is called %q", shorten(name))
		own.faults[len(own.faults)-1].Suggestion = own.guess(name, l.transformerNames())
	case known && tr.URL == "" && t.Webhook == "" && channel.URL == "":
		o.faultAt(key, "", RuleTransformerURL, "the transformer %q has no endpoint.url, and the trigger names none; write webhook: https://host/path", name)
	}
}

// template finds the data that the body asks for, and what else stands between
// the braces.
func (t *Trigger) template(m *markdown) []Fault {
	var faults []Fault
	seen := map[string]bool{}
	for i, line := range strings.Split(m.body, "\n") {
		count := columns{line: line}
		for offset := 0; ; {
			at := strings.Index(line[offset:], "${{")
			if at < 0 {
				break
			}
			offset += at
			col := count.at(offset)
			inner, size := innerPlaceholder(line[offset:])
			switch {
			case size == 0: // and so is every one that follows in this line
				size = len(line) - offset
				faults = append(faults, templateFault(m, i, col, "a variable is not closed; write ${{ data.<path> }}"))
			case !dataPath().MatchString(inner) || strings.Contains(inner, "..") || strings.HasSuffix(inner, "."):
				f := templateFault(m, i, col, quoted(shorten(inner))+" is no variable of a trigger; write ${{ data.<path> }}")
				f.Text = shorten(inner)
				faults = append(faults, f)
			case !seen[inner]:
				seen[inner] = true
				t.Fields = append(t.Fields, strings.TrimPrefix(inner, "data."))
			}
			offset += size
		}
	}
	return faults
}

func templateFault(m *markdown, line, col int, message string) Fault {
	return Fault{File: m.name, Line: m.bodyLine + line, Col: col, Message: message, Rule: RuleTriggerVariable}
}
