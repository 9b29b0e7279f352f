package overlord

import (
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// What an HTML answer may hold: text with structure. Nothing that runs, loads
// from elsewhere or takes input.
var (
	allowedTags = tags("a abbr b blockquote br caption code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i ins kbd li " +
		"mark ol p pre q s samp section small span strong sub summary sup table tbody td tfoot th thead tr u ul")
	voidTags = tags("br hr")
	// droppedTags go with everything inside.
	droppedTags = tags("script style iframe object embed applet template noscript noembed noframes svg math head title textarea select " +
		"button form xmp plaintext audio video canvas frameset")
	allowedAttrs = tags("title colspan rowspan start lang dir")
)

func tags(names string) map[string]bool {
	m := make(map[string]bool)
	for name := range strings.FieldsSeq(names) {
		m[name] = true
	}
	return m
}

// harmless returns an HTML fragment with only the tags and attributes above,
// closed and nested. A code fence around the whole, which models like to write,
// goes too.
func harmless(fragment string) string {
	c := cleaner{in: html.NewTokenizer(strings.NewReader(unfence(fragment)))}
	for c.next() {
	}
	for _, tag := range slices.Backward(c.open) {
		c.out.WriteString("</" + tag + ">")
	}
	return strings.TrimSpace(c.out.String())
}

type cleaner struct {
	in   *html.Tokenizer
	out  strings.Builder
	open []string // tags that are to be closed
	skip string   // the dropped tag that the reader is inside of
	deep int      // how often it is open
}

func (c *cleaner) next() bool {
	kind := c.in.Next()
	if kind == html.ErrorToken {
		return false
	}
	t := c.in.Token()
	switch {
	case c.skip != "":
		c.skipped(kind, t.Data)
	case kind == html.TextToken:
		c.out.WriteString(html.EscapeString(t.Data))
	case kind == html.StartTagToken && droppedTags[t.Data]:
		c.skip, c.deep = t.Data, 1
	case (kind == html.StartTagToken || kind == html.SelfClosingTagToken) && allowedTags[t.Data]:
		c.begin(t)
	case kind == html.EndTagToken:
		c.end(t.Data)
	}
	return true
}

func (c *cleaner) skipped(kind html.TokenType, tag string) {
	switch {
	case tag != c.skip:
	case kind == html.StartTagToken:
		c.deep++
	case kind == html.EndTagToken:
		if c.deep--; c.deep == 0 {
			c.skip = ""
		}
	}
}

func (c *cleaner) begin(t html.Token) {
	c.out.WriteString("<" + t.Data)
	for _, a := range t.Attr {
		if allowedAttrs[a.Key] || (t.Data == "a" && a.Key == "href" && isHarmlessLink(a.Val)) {
			c.out.WriteString(" " + a.Key + `="` + html.EscapeString(a.Val) + `"`)
		}
	}
	if t.Data == "a" {
		c.out.WriteString(` rel="noopener noreferrer nofollow"`)
	}
	c.out.WriteByte('>')
	if !voidTags[t.Data] {
		c.open = append(c.open, t.Data)
	}
}

// end closes a tag and those that were opened inside it; one that isn't open is
// left out.
func (c *cleaner) end(tag string) {
	at := slices.Index(c.open, tag)
	if at < 0 {
		return
	}
	for at = len(c.open) - 1; ; at-- {
		c.out.WriteString("</" + c.open[at] + ">")
		if c.open[at] == tag {
			break
		}
	}
	c.open = c.open[:at]
}

func isHarmlessLink(text string) bool {
	u, err := url.Parse(strings.TrimSpace(text))
	return err == nil && slices.Contains([]string{"http", "https", "mailto"}, strings.ToLower(u.Scheme))
}

// unfence takes a code fence away that holds the whole text.
func unfence(s string) string {
	s = strings.TrimSpace(s)
	first, rest, ok := strings.Cut(s, "\n")
	body, closed := strings.CutSuffix(rest, "```")
	if !ok || !closed || (first != "```" && !strings.EqualFold(first, "```html")) || strings.Contains(body, "```") {
		return s
	}
	return body
}
