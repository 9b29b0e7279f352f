package overlord

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
)

func link(label string) chat.Widget {
	return chat.Widget{Type: chat.WidgetActionLink, Label: label, URL: "https://example.com"}
}

func resource(bytes int) chat.Widget {
	return chat.Widget{Type: chat.WidgetMCPResource, Resource: "ui://x/y", Data: strings.Repeat("d", bytes), Server: "s", Tool: "t", MIMEType: "text/html"}
}

func repeat(n int, w chat.Widget) (list []chat.Widget) {
	for range n {
		list = append(list, w)
	}
	return list
}

func TestClamp_KeepsWhatFits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   []chat.Widget
		want int
	}{
		"eight":                      {repeat(9, link("a")), 8},
		"one standard":               {[]chat.Widget{link(strings.Repeat("a", 4096)), link("b")}, 1},
		"all standard":               {repeat(5, link(strings.Repeat("a", 3900))), 4},
		"one resource":               {[]chat.Widget{resource(64 << 10), resource(60 << 10)}, 1},
		"all":                        {repeat(3, resource(60<<10)), 2},
		"a smaller one after":        {[]chat.Widget{resource(60 << 10), resource(60 << 10), resource(60 << 10), link("a")}, 3},
		"resource without data":      {[]chat.Widget{resource(0)}, 0},
		"resource of another scheme": {[]chat.Widget{{Type: chat.WidgetMCPResource, Resource: "file://x", Data: "d"}}, 0},
		"resource of odd encoding":   {[]chat.Widget{{Type: chat.WidgetMCPResource, Resource: "ui://x", Data: "d", Encoding: "gzip"}}, 0},
		"link that runs":             {[]chat.Widget{{Type: chat.WidgetActionLink, Label: "a", URL: "javascript:alert(1)"}}, 0},
		"link with a password":       {[]chat.Widget{{Type: chat.WidgetActionLink, Label: "a", URL: "https://u:p@example.com"}}, 0},
		"options without a value":    {[]chat.Widget{{Type: chat.WidgetOptions, Options: []chat.Option{{Label: "a"}}}}, 0},
		"unknown type":               {[]chat.Widget{{Type: "form", Label: "a"}}, 0},
		"nothing":                    {nil, 0},
	} {
		kept := clamp(c.in)
		if len(kept) != c.want {
			t.Errorf("%s: %d kept, want %d", name, len(kept), c.want)
		}
		for _, w := range kept {
			if !validWidgetID(w.ID) {
				t.Errorf("%s: id %q", name, w.ID)
			}
		}
	}
}

func TestClamp_CountsBytesAsTheyAreSent(t *testing.T) {
	t.Parallel()
	w := link("a")
	w.ID = "ui_000000000000000000000"
	sent, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	w.Label = strings.Repeat("a", maxStandard-len(sent)+1)
	if len(clamp([]chat.Widget{w})) != 1 {
		t.Fatal("a widget of exactly 4096 bytes fits")
	}
	w.Label += "a"
	if len(clamp([]chat.Widget{w})) != 0 {
		t.Fatal("a widget of 4097 bytes does not")
	}
}

func TestFit_KeepsTheFieldsOfTheTypeOnly(t *testing.T) {
	t.Parallel()
	w, ok := fit(chat.Widget{
		Type: chat.WidgetOptions, ID: "ui_000000000000000000000", Prompt: "Which?", URL: "https://example.com", Data: "d",
		Options: []chat.Option{{Value: "a"}, {Label: "no value"}, {Value: "b", Label: "B"}},
	})
	no := false
	want := chat.Widget{
		Type: chat.WidgetOptions, ID: "ui_000000000000000000000", Prompt: "Which?", Multi: &no,
		Options: []chat.Option{{Value: "a", Label: "a"}, {Value: "b", Label: "B"}},
	}
	if diff := cmp.Diff(want, w); !ok || diff != "" {
		t.Fatal(ok, diff)
	}
	var many []chat.Option
	for i := range 30 {
		many = append(many, chat.Option{Value: fmt.Sprint(i)})
	}
	if w, ok := fit(chat.Widget{Type: chat.WidgetOptions, ID: "mine", Options: many}); !ok || len(w.Options) != 25 || w.ID == "mine" {
		t.Fatalf("%d options, id %q", len(w.Options), w.ID)
	}
}
