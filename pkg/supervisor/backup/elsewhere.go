package backup

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/agentformation/service/pkg/manifest"
)

// elsewhere names the stores of a formation that lie outside its state
// directory, as its manifest in dir has them (memory reference, section 2).
func (b *writer) elsewhere(id, dir string) {
	m, _, err := manifest.Load(dir)
	if err != nil {
		b.note("the manifest of formation %s cannot be read, so its stores elsewhere are not known", id)
		return
	}
	memory := object(m.Raw, "memory")
	persistent := object(memory, "persistent")
	if on, ok := persistent["enabled"].(bool); !ok || on {
		b.uncovered(id, "memory.persistent.connection_string", persistent["connection_string"])
	}
	if working := object(memory, "working"); working["mode"] == "remote" {
		b.uncovered(id, "memory.working.remote.url", object(working, "remote")["url"])
	}
}

func object(of map[string]any, key string) map[string]any {
	m, _ := of[key].(map[string]any)
	return m
}

func (b *writer) uncovered(id, key string, value any) {
	text, _ := value.(string)
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	n := NotCovered{Formation: id}
	file := quote(fmt.Sprintf("%s-%s.dump", id, strings.Split(key, ".")[1]))
	switch scheme, rest, _ := strings.Cut(text, "://"); {
	case strings.Contains(text, "${{"):
		// The value is a secret of the formation; only its name is known here.
		n.Store = key + " " + text
		n.Command = "pg_dump --format=custom --file=" + file + ` --dbname="$CONNECTION_STRING"   # the value of ` + onlyPlaceholder(text)
		if onlyPlaceholder(text) != text {
			n.Store = key + " with " + onlyPlaceholder(text)
		}
	case scheme == "sqlite", scheme == "file":
		path := strings.TrimPrefix(rest, "/")
		if !strings.HasPrefix(rest, "/") {
			return // relative to the state directory, so covered
		}
		n.Store = "/" + path
		n.Command = "sqlite3 " + quote(n.Store) + ` ".backup ` + fmt.Sprintf("%s.db", id) + `"`
	default:
		n.Store = withoutCredentials(text)
		n.Command = "pg_dump --format=custom --file=" + file + " --dbname=" + quote(n.Store)
	}
	b.index.NotCovered = append(b.index.NotCovered, n)
}

// onlyPlaceholder returns the first ${{ }} of a text: what stands around it may
// be a password.
func onlyPlaceholder(text string) string {
	start := strings.Index(text, "${{")
	end := strings.Index(text[start:], "}}")
	if end < 0 {
		return "a placeholder"
	}
	return text[start : start+end+2]
}

// withoutCredentials keeps of a connection string where it leads.
func withoutCredentials(text string) string {
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	}
	// The other form: host=... port=... dbname=... user=... password=...
	var kept []string
	for part := range strings.FieldsSeq(text) {
		name, value, ok := strings.Cut(part, "=")
		if ok && (name == "host" || name == "port" || name == "dbname") && !strings.ContainsAny(value, `'"\`) {
			kept = append(kept, part)
		}
	}
	if len(kept) == 0 {
		return "a PostgreSQL database whose address cannot be shown"
	}
	return strings.Join(kept, " ")
}

// quote makes one word of a shell's command line.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
