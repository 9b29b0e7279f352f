package scaffold

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAddItem_ChangesNothingButTheList(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, keys, before, after string
	}{
		{"below the last", "agents", "agents:\n  - a # first\n  - b\n\n# end\nx: 1\n", "agents:\n  - a # first\n  - b\n  - new\n\n# end\nx: 1\n"},
		{"as deep as its key", "agents", "agents:\n- a\n- b\nx: 1\n", "agents:\n- a\n- b\n- new\nx: 1\n"},
		{"at the end of the file", "agents", "x: 1\nagents:\n  - a", "x: 1\nagents:\n  - a\n  - new\n"},
		{"behind a block", "agents", "agents:\n  - id: a\n    text: |\n      one\n\n      # two\n\n  # no more\nx: 1\n", "agents:\n  - id: a\n    text: |\n      one\n\n      # two\n  - new\n\n  # no more\nx: 1\n"},
		{"behind a comment that stands out", "agents", "agents:\n  - id: a\n# why\n    text: b\nx: 1\n", "agents:\n  - id: a\n# why\n    text: b\n  - new\nx: 1\n"},
		{"behind a remark", "agents", "agents:\n  - a\n  # - b is off\nx: 1\n", "agents:\n  - a\n  - new\n  # - b is off\nx: 1\n"},
		{"behind an include", "agents", "agents:\n  - {$include: agents/a.afs}\n", "agents:\n  - {$include: agents/a.afs}\n  - new\n"},
		{"in brackets", "agents", "agents: [a, b] # both\n", "agents: [a, b, new] # both\n"},
		{"in wide brackets", "agents", "agents: [ a, b ]\n", "agents: [ a, b, new ]\n"},
		{"in brackets with a comma", "agents", "agents: [a, b,]\n", "agents: [a, b, new]\n"},
		{"in empty brackets", "agents", "agents: []\nx: 1\n", "agents: [new]\nx: 1\n"},
		{"in brackets of many lines", "agents", "agents: [\n  a,\n  b\n]\n", "agents: [\n  a,\n  b,\n  new\n]\n"},
		{"behind wide characters", "agents", "agents: [\"漢\", ß] # ü\n", "agents: [\"漢\", ß, new] # ü\n"},
		{"to nothing", "agents", "agents: # none yet\nx: 1\n", "agents: # none yet\n  - new\nx: 1\n"},
		{"to no such list", "agents", "# a\nx: 1\n# z\n", "# a\nx: 1\n# z\n\nagents:\n  - new\n"},
		{"in a block", "mcp.servers", "mcp:\n  # keep\n  connection_ttl: 5\n  servers:\n    - a\nx: 1\n", "mcp:\n  # keep\n  connection_ttl: 5\n  servers:\n    - a\n    - new\nx: 1\n"},
		{"to a block without it", "mcp.servers", "mcp:\n    connection_ttl: 5\n", "mcp:\n    servers:\n      - new\n    connection_ttl: 5\n"},
		{"to an empty block", "mcp.servers", "mcp:\nx: 1\n", "mcp:\n  servers:\n    - new\nx: 1\n"},
		{"to a block with an empty list", "mcp.servers", "mcp:\n  servers:\n    # - a\n  connection_ttl: 5\n", "mcp:\n  servers:\n    - new\n    # - a\n  connection_ttl: 5\n"},
		{"to braces", "mcp.servers", "mcp: {connection_ttl: 5}\n", "mcp: {connection_ttl: 5, servers: [new]}\n"},
		{"to empty braces", "mcp.servers", "mcp: {}\n", "mcp: {servers: [new]}\n"},
		{"to no such block", "mcp.servers", "x: 1", "x: 1\n\nmcp:\n  servers:\n    - new\n"},
		{"in JSON", "mcp.servers", "{\n  \"x\": 1\n}\n", "{\n  \"x\": 1,\n  mcp: {servers: [new]}\n}\n"},
		{"with other line ends", "agents", "agents:\r\n  - a\r\nx: 1\r\n", "agents:\r\n  - a\r\n  - new\r\nx: 1\r\n"},
		{"behind a mark of order", "agents", "\ufeffagents:\n  - a\n", "\ufeffagents:\n  - a\n  - new\n"},
		{"behind an anchor", "agents", "agents: &all\n  - a\n", "agents: &all\n  - a\n  - new\n"},
		{"behind a start", "agents", "---\nagents:\n  - a\n", "---\nagents:\n  - a\n  - new\n"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := addItem([]byte(c.before), strings.Split(c.keys, "."), "new")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.after, string(got.text)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if line := strings.Split(string(got.text), "\n")[got.line-1]; !strings.Contains(line, "new") {
				t.Errorf("line %d is %q", got.line, line)
			}
		})
	}
}

func TestAddItem_RefusesWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"an alias":               "x: &x [a]\nagents: *x\n",
		"a list that others use": "agents: &x [a]\nx: *x\n",
		"an include":             "agents: {$include: all.yaml}\n",
		"a text":                 "agents: a\n",
		"an explicit nothing":    "agents: null\n",
		"no block":               "- a\n",
		"two documents":          "agents: [a]\n---\nagents: [b]\n",
		"an end":                 "x: 1\n...\n",
		"no YAML":                "agents: [a\n",
		"an empty file":          "",
		"a remark in brackets":   "agents: [\n  a, # one\n  b # two\n]\n",
		"a key twice":            "agents: [a]\nagents: [b]\n",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := addItem([]byte(text), []string{"agents"}, "new")
			if !errors.Is(err, errUnclear) {
				t.Errorf("got %q, %v", got.text, err)
			}
		})
	}
}

func TestAddItem_KnowsWhatIsThere(t *testing.T) {
	t.Parallel()
	const text = "agents:\n  - a\n  - new\n"
	got, err := addItem([]byte(text), []string{"agents"}, "new")
	if err != nil || !got.already || got.line != 3 || string(got.text) != text {
		t.Errorf("got %+v, %v", got, err)
	}
	var own *ownWordsError
	if _, err := addItem([]byte("agents:\n  - a\n  - name: n\n    id: new\n"), []string{"agents"}, "new"); !errors.As(err, &own) || own.line != 4 {
		t.Errorf("got %v", err)
	}
}

func TestAddItem_WritesTextThatStaysText(t *testing.T) {
	t.Parallel()
	for _, item := range []string{"null", "on", "123", "1.5", "1e3", "0x1f", "true", "~", "2026-01-01", "a: b", "- a", "#a", "a #b", `q"q`, " a ", "ä", "a\nb"} {
		got, err := addItem([]byte("agents: [a]\n"), []string{"agents"}, item)
		if err != nil {
			t.Errorf("%q: %v: %s", item, err, got.text)
		}
		if got, err = addItem([]byte("agents:\n- a\n"), []string{"agents"}, item); err != nil {
			t.Errorf("%q: %v: %s", item, err, got.text)
		}
	}
}

func FuzzAddItem(f *testing.F) {
	for _, text := range []string{
		"agents:\n  - a # first\n\n# end\nx: 1\n", "agents: [a,\n b # c\n]", "mcp: {servers: []}\nagents:\n", "agents:\r\n- id: a\r\n  t: |\r\n    x\r\n",
		"a: &a\n  b: *a\nagents:\n  - *a\n", "\ufeff{\"agents\": [\"a\"]}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4<<10 {
			return
		}
		for _, keys := range [][]string{{"agents"}, {"mcp", "servers"}} {
			got, err := addItem(text, keys, "new")
			if err != nil || got.already {
				continue
			}
			again, err := addItem(got.text, keys, "new")
			if err != nil || !again.already {
				t.Errorf("%q became %q, where the item is not found: %+v, %v", text, got.text, again, err)
			}
		}
	})
}
