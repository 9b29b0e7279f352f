package mcpclient

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/formation/chat"
)

// The limits of the media of one result; what is over them is named only.
const (
	maxParts     = 8
	maxPartBytes = 20 << 20
)

// result is what a model and a user get of a server's answer.
type result struct {
	t     *Tool
	text  []string
	parts []chat.Part
	bytes int
	shown []chat.Widget
}

// result takes a server's answer apart.
func (t *Tool) result(in *mcpsdk.CallToolResult) chat.ToolResult {
	r := &result{t: t}
	for _, c := range in.Content {
		r.content(c)
	}
	r.link(in.Meta["_link"])
	out := chat.ToolResult{IsError: in.IsError}
	if in.StructuredContent != nil {
		if data, err := json.Marshal(in.StructuredContent); err == nil {
			out.Structured = data
		}
		if fields, ok := in.StructuredContent.(map[string]any); ok {
			r.link(fields["_link"])
		}
	}
	if len(r.text) == 0 && out.Structured != nil {
		r.text = append(r.text, string(out.Structured))
	}
	out.Content, out.Parts, out.Widgets = strings.Join(r.text, "\n"), r.parts, r.shown
	if out.Content == "" {
		out.Content = "(no output)"
	}
	return out
}

func (r *result) content(c mcpsdk.Content) {
	switch c := c.(type) {
	case *mcpsdk.TextContent:
		r.words(c.Text)
	case *mcpsdk.ImageContent:
		r.media(chat.Image, c.MIMEType, "", c.Data)
	case *mcpsdk.AudioContent:
		r.media(chat.Audio, c.MIMEType, "", c.Data)
	case *mcpsdk.ResourceLink:
		r.text = append(r.text, strings.TrimSpace(fmt.Sprintf("[resource %s: %s %s] %s", c.URI, c.Name, c.MIMEType, c.Description)))
	case *mcpsdk.EmbeddedResource:
		r.resource(c.Resource)
	}
}

// words takes text, which may be a result with a link.
func (r *result) words(text string) {
	if text == "" {
		return
	}
	r.text = append(r.text, text)
	if !strings.Contains(text, `"_link"`) {
		return
	}
	var fields map[string]any
	if json.Unmarshal([]byte(text), &fields) == nil {
		r.link(fields["_link"])
	}
}

// media takes an image or a recording, with a note that stands for it in text.
func (r *result) media(kind chat.PartKind, mediaType, name string, data []byte) {
	note := fmt.Sprintf("[%s: %s, %d bytes", kind, mediaType, len(data))
	if len(r.parts) == maxParts || r.bytes+len(data) > maxPartBytes {
		r.text = append(r.text, note+", left out: it is too much]")
		return
	}
	r.bytes += len(data)
	r.parts = append(r.parts, chat.Part{Kind: kind, MediaType: mediaType, Name: name, Data: data})
	r.text = append(r.text, note+"]")
}

// resource takes what is embedded: what a user can see as a widget, text as text.
func (r *result) resource(c *mcpsdk.ResourceContents) {
	switch {
	case c == nil:
	case strings.HasPrefix(c.URI, "ui://"):
		r.widget(c)
		r.text = append(r.text, "["+c.URI+" is shown to the user]")
	case c.Blob == nil:
		r.text = append(r.text, "[resource "+c.URI+"]\n"+c.Text)
	case strings.HasPrefix(c.MIMEType, "image/"):
		r.media(chat.Image, c.MIMEType, c.URI, c.Blob)
	case strings.HasPrefix(c.MIMEType, "audio/"):
		r.media(chat.Audio, c.MIMEType, c.URI, c.Blob)
	default:
		r.text = append(r.text, fmt.Sprintf("[resource %s: %s, %d bytes]", c.URI, c.MIMEType, len(c.Blob)))
	}
}

// widget shows the user what a server made for it; the clamps are of whoever
// shows the answer.
func (r *result) widget(c *mcpsdk.ResourceContents) {
	w := chat.Widget{
		Type: chat.WidgetMCPResource, ID: r.t.server.c.cfg.NewID("ui_"), Resource: c.URI, Data: c.Text,
		Server: r.t.server.file.ID, Tool: r.t.info.Name, MIMEType: c.MIMEType,
	}
	if c.Blob != nil {
		w.Data, w.Encoding = base64.StdEncoding.EncodeToString(c.Blob), "base64"
	}
	r.shown = append(r.shown, w)
}

// link takes the key _link of a result: {label, url, hint}. The same one twice is
// one.
func (r *result) link(value any) {
	fields, ok := value.(map[string]any)
	if !ok {
		return
	}
	text := func(key string) string {
		s, _ := fields[key].(string)
		return short(s)
	}
	address := text("url")
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return
	}
	for _, w := range r.shown {
		if w.Type == chat.WidgetActionLink && w.URL == address {
			return
		}
	}
	label := text("label")
	if label == "" {
		label = address
	}
	r.shown = append(r.shown, chat.Widget{
		Type: chat.WidgetActionLink, ID: r.t.server.c.cfg.NewID("ui_"), Label: label, URL: address, Hint: text("hint"),
	})
}
