package manifest

import (
	"path"
	"slices"
	"strings"
)

// bundledTransformers ship with the runtime; they have no address of their own.
func bundledTransformers() []string { return []string{"slack", "telegram", "discord", "email"} }

// yamlFiles returns the stems of the .yaml and .yml files of a directory with
// their names; the first ending wins.
func (l *loader) yamlFiles(dir string) (stems []string, files map[string]string) {
	files = map[string]string{}
	for _, ext := range []string{".yaml", ".yml", ".afs"} {
		for _, e := range l.b.list(dir) {
			stem, ok := strings.CutSuffix(e.name, ext)
			if !ok || e.dir {
				continue
			}
			name := path.Join(dir, e.name)
			if first := files[stem]; first != "" {
				l.d.warnings = append(l.d.warnings, Warning{File: name, Rule: RuleShadowed, Message: "the file is ignored; " + first + " is used"})
				continue
			}
			files[stem] = name
			stems = append(stems, stem)
		}
	}
	slices.Sort(stems)
	return stems, files
}

// transformers reads transformers/.
func (l *loader) transformers() {
	stems, files := l.yamlFiles("transformers")
	for _, stem := range stems {
		name := files[stem]
		l.b.variables = transformerVariable
		root := l.b.doc(name, Fault{})
		l.b.variables = nil
		// A transformer's secrets are asked for when it is used.
		l.f.late = append(l.f.late, l.b.refs[name]...)
		delete(l.b.refs, name)
		if root == nil {
			continue
		}
		t := Transformer{Name: stem, Method: "POST", Format: "", Suffix: "...", File: name}
		o := l.d.object(root, "")
		l.d.transformer(o, &t)
		if t.Name != stem {
			o.faultAt("name", "", RuleMismatch, "is %q, but the file is called %q; use one name", shorten(t.Name), stem)
		}
		t.Name = stem
		l.f.Transformers = append(l.f.Transformers, t)
	}
}

// transformer reads a transformer's file.
func (d *decoder) transformer(o *object, t *Transformer) {
	set(&t.Name, o.word("name"))
	version := o.slot("version")
	if v, ok := version.text("a version"); ok {
		t.Version = v
	}
	if _, ok := version.number(); ok {
		t.Version = version.n.text
	}
	version.end()
	e := o.block("endpoint")
	set(&t.URL, e.url("url"))
	set(&t.Method, e.enum("method", "a method", "GET", "POST", "PUT", "PATCH", "DELETE"))
	e.end()
	t.Auth = d.auth(o.block("auth"), AuthBearer, AuthBasic, AuthHeader)
	t.Headers = o.textMap("headers", nil)
	body := o.slot("body")
	if b := body.block(); b != nil && b.n != nil {
		t.Body = b.n.plain()
	}
	if body.ask(kindList, "array", "a list") {
		t.Body = body.n.plain()
	}
	if text, ok := body.text("text"); ok {
		t.Body = text
	}
	body.end()
	c := o.block("content_transform")
	set(&t.Format, c.enum("format", "a format", FormatText, FormatMarkdown, FormatHTML))
	set(&t.MaxLength, c.integer("max_length", 1, unlimited))
	set(&t.Suffix, c.text("truncation_suffix"))
	if t.MaxLength > 0 && len([]rune(t.Suffix)) > t.MaxLength {
		c.faultAt("truncation_suffix", "max_length", RuleRange, "the suffix alone is longer than max_length %d", t.MaxLength)
	}
	c.end()
	o.free("schema", "description")
	o.end()
}

var (
	fixedVariables = []string{
		"response.content", "response.files", "request.message", "request.user_id", "request.files", "agent.name", "timestamp",
	}
	openVariable = lazily(`^(response\.metadata|context|ui)(\.[A-Za-z0-9_-]+)+$|^ui$|^context$|^response\.metadata$`)
)

// transformerVariable tells what is wrong with a variable of a transformer.
func transformerVariable(inner string) string {
	if slices.Contains(fixedVariables, inner) || openVariable().MatchString(inner) {
		return ""
	}
	wrong := quoted(shorten(inner)) + " is no variable of a transformer (one of " + strings.Join(fixedVariables, ", ") +
		", response.metadata.<key>, context.<key>, ui.<key>, secrets.<NAME>)"
	return wrong
}

// transformer returns the formation's transformer or the bundled one.
func (l *loader) transformer(name string) (*Transformer, bool) {
	for i := range l.f.Transformers {
		if l.f.Transformers[i].Name == name {
			return &l.f.Transformers[i], true
		}
	}
	return &Transformer{Name: name}, slices.Contains(bundledTransformers(), name)
}

func (l *loader) transformerNames() []string {
	names := bundledTransformers()
	for i := range l.f.Transformers {
		names = append(names, l.f.Transformers[i].Name)
	}
	return names
}
