package chat

// WidgetType says what a Widget is.
type WidgetType string

// The types of widgets (reference runtime.md 6.1).
const (
	WidgetOptions     WidgetType = "options"
	WidgetActionLink  WidgetType = "action_link"
	WidgetMCPResource WidgetType = "mcp_resource"
)

// Widget is a piece of user interface that goes with an answer. It never comes
// from a model's text.
type Widget struct {
	Type WidgetType `json:"type"`
	ID   string     `json:"id"` // "ui_" and 21 characters

	// Of an options widget.
	Prompt  string   `json:"prompt,omitempty"`
	Options []Option `json:"options,omitempty"`
	Multi   *bool    `json:"multi,omitempty"`

	// Of an action_link. The URL's scheme is http or https.
	Label string `json:"label,omitempty"`
	URL   string `json:"url,omitempty"`
	Hint  string `json:"hint,omitempty"`

	// Of an mcp_resource: what a tool server sent. Encoding is "base64" or "".
	Resource string `json:"resource,omitempty"` // "ui://…"
	Data     string `json:"data,omitempty"`
	Server   string `json:"server,omitempty"`
	Tool     string `json:"tool,omitempty"`
	MIMEType string `json:"mime_type,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

// Option is one choice of an options widget.
type Option struct {
	Value string `json:"value"`
	Label string `json:"label"`
}

// UIReply answers an options widget by the value or the index of an option.
type UIReply struct {
	ID    string `json:"id"`
	Value string `json:"value,omitempty"`
	Index *int   `json:"index,omitempty"` // from 0
}
