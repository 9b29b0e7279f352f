package scaffold

import (
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

// Template is one form of the files of a kind.
type Template struct{ Name, Description string }

// The templates that New knows apart.
const (
	templateTeam       = "team"
	templateSpecialist = "specialist"
	templateHTTP       = "http"
	templateStrict     = "strict"
	templateGitHub     = "github"
	templateAlert      = "alert"
)

// Templates returns the templates of a kind, the default one first; none when
// the kind has one form.
func Templates(kind string) []Template {
	switch kind {
	case manifest.FileFormation:
		all := []Template{{"demo", "one agent that answers at once, from an offline model without understanding"}}
		for _, p := range providers() {
			all = append(all, Template{p.name, "one agent with a model of " + p.title})
		}
		return append(all, Template{templateTeam, "three agents that share the work, on the offline model"})
	case manifest.FileAgent:
		return []Template{
			{"generalist", "answers what nobody else is asked for"},
			{templateSpecialist, "knows one subject, with keywords and a manner of its own"},
		}
	case manifest.FileMCP:
		return []Template{
			{"command", "a program: yours in Python, with one tool to go on from, or the one after --"},
			{templateHTTP, "a server that others run, with --url"},
		}
	case manifest.FileSOP:
		return []Template{
			{"guide", "steps that an agent fits to the message"},
			{templateStrict, "every step as it is written, in its order"},
		}
	case manifest.FileTrigger:
		return []Template{
			{"event", "any event with a name and details"},
			{templateGitHub, "an issue on GitHub, as its webhook tells it"},
			{templateAlert, "an alert of Prometheus, as Alertmanager tells it"},
		}
	}
	return nil
}

// provider is a vendor of models, as a formation begins with it.
type provider struct{ name, title, model, key string }

func providers() []provider {
	return []provider{
		{"openai", "OpenAI", "gpt-4.1-mini", "OPENAI_API_KEY"},
		{"anthropic", "Anthropic", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"},
		{"google", "Google", "gemini-2.5-flash", "GOOGLE_API_KEY"},
		{"ollama", "Ollama on this machine", "llama3.2", ""},
	}
}

// CheckTemplate tells whether a request has a template that its kind has; its
// error is fault.Invalid and names those that there are.
func CheckTemplate(r Request) error { return chooseTemplate(&r) }

// chooseTemplate fills in the template of a request, or refuses it.
func chooseTemplate(r *Request) error {
	all := Templates(r.Kind)
	if all == nil {
		if r.Template != "" {
			return fault.Errorf(fault.Invalid, "", "%s has one form: leave the template out", r.Kind)
		}
		return nil
	}
	if r.Template == "" {
		r.Template = all[0].Name
		if r.Kind == manifest.FileMCP && r.URL != "" {
			r.Template = templateHTTP
		}
		return nil
	}
	var names []string
	for _, t := range all {
		names = append(names, t.Name)
	}
	if !slices.Contains(names, r.Template) {
		text := "one of " + strings.Join(names, ", ")
		if near := manifest.Nearest(r.Template, names); near != "" {
			text = "did you mean " + near + "? It has " + strings.Join(names, ", ")
		}
		return fault.Errorf(fault.Invalid, "", "%s has no template %q: %s", r.Kind, r.Template, text)
	}
	if r.Kind == manifest.FileMCP && r.URL != "" && r.Template != templateHTTP {
		return fault.Errorf(fault.Invalid, "", "the template %s has no address: leave one of the two out", r.Template)
	}
	return nil
}

// fillTemplate adds what a template differs in.
func (d *data) fillTemplate(r Request) {
	if r.Kind != manifest.FileFormation {
		return
	}
	d.Team = r.Template == templateTeam
	for _, p := range providers() {
		if p.name == r.Template {
			d.Provider, d.Model, d.Key = p.name, p.model, p.key
		}
	}
}
