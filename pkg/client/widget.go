package client

// The types of a Widget.
const (
	WidgetOptions     = "options"
	WidgetActionLink  = "action_link"
	WidgetMCPResource = "mcp_resource"
)

// Widget is a piece of user interface that goes with an answer (reference
// runtime.md 6.1). Which fields are set depends on its Type.
type Widget struct {
	Type string `json:"type"`
	ID   string `json:"id"`

	// Of options: a question and its answers.

	Prompt  string   `json:"prompt,omitempty"`
	Options []Option `json:"options,omitempty"`
	Multi   *bool    `json:"multi,omitempty"`

	// Of an action_link.

	Label string `json:"label,omitempty"`
	URL   string `json:"url,omitempty"`
	Hint  string `json:"hint,omitempty"`

	// Of an mcp_resource: what a tool server wants shown. Data is text, or base64
	// when Encoding says so.

	Resource string `json:"resource,omitempty"`
	Data     string `json:"data,omitempty"`
	Server   string `json:"server,omitempty"`
	Tool     string `json:"tool,omitempty"`
	MIMEType string `json:"mime_type,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

// Option is one answer of an options widget.
type Option struct {
	Value string `json:"value"`
	Label string `json:"label"`
}

// UIResponse chooses an option of the widget ID, by Value or by Index from 0.
type UIResponse struct {
	ID    string `json:"id"`
	Value string `json:"value,omitempty"`
	Index *int   `json:"index,omitempty"`
}

// File goes with a message.
type File struct {
	Filename string `json:"filename"`
	// ContentType may be "": the formation looks into the content.
	ContentType string `json:"content_type,omitempty"`
	Content     []byte `json:"content"` // base64 on the wire
}
