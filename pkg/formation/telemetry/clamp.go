package telemetry

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Bounds of what a trace keeps.
const (
	maxAttributes = 24
	maxName       = 256       // bytes of a span's name
	maxError      = 500       // bytes of the text of an error
	maxText       = 4 << 10   // bytes of a text or of a value's JSON
	scarceText    = 256       // the same, once a trace holds maxTexts
	maxTexts      = 512 << 10 // bytes of all texts of a trace
	// slack is how much more of a text than is kept is cleaned with it, so that
	// no secret is cut before it can be recognised.
	slack = 4 << 10
)

// clamp returns value in one of the types that spans keep, within the bounds.
func (t *Trace) clamp(value any) any {
	switch v := value.(type) {
	case nil, bool, int, float64, Tokens, *Cost:
		return value // as it is: a copy would be another allocation
	case int64:
		return int(v)
	case time.Duration:
		return v.String()
	case string:
		if len(v) <= scarceText {
			return value
		}
		return t.hub.cut(v, t.room(len(v)))
	case Cost:
		return &v
	case []byte:
		return t.hub.cut(string(v[:min(len(v), maxText+slack+1)]), t.room(len(v)))
	case json.RawMessage:
		return t.document(v)
	case fmt.Stringer:
		return t.clamp(v.String())
	}
	p, err := json.Marshal(value)
	if err != nil {
		return "not shown: " + clip(err.Error(), scarceText)
	}
	return t.document(p)
}

// document keeps JSON as it is when there is room for it, else as a cut text.
func (t *Trace) document(p []byte) any {
	limit := t.room(min(len(p), maxText))
	if len(p) <= limit && json.Valid(p) {
		return json.RawMessage(append([]byte(nil), p...))
	}
	return t.hub.cut(string(p[:min(len(p), limit+slack+1)]), limit)
}

// room returns how much may be kept of a text of n bytes, and books it.
func (t *Trace) room(n int) int {
	n = min(n, maxText)
	if n <= scarceText {
		return scarceText
	}
	if t.texts.Add(int64(n)) > maxTexts {
		return scarceText
	}
	return maxText
}

// cut returns text itself, or its beginning without secrets. More is cleaned
// than kept, and as much left out at the end as a secret may be long: half a
// secret would not be known as one.
func (h *Hub) cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	part := text[:min(len(text), limit+slack)]
	if h.cfg.Redact != nil {
		part = h.cfg.Redact.String(part)
		if len(text) > limit+slack {
			part = part[:max(0, len(part)-slack)]
		}
	}
	return clip(part, limit) + "…"
}

// clip cuts a text at the last whole character within n bytes.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

func (h *Hub) clean(text string) string {
	if h.cfg.Redact == nil || text == "" {
		return text
	}
	return h.cfg.Redact.String(text)
}

// cleanJSON takes secrets out of a JSON value. Only an object is sure to stay
// JSON, so the value is put into one.
func (h *Hub) cleanJSON(p json.RawMessage) json.RawMessage {
	if h.cfg.Redact == nil || len(p) == 0 {
		return p
	}
	wrapped := append(append(append(make([]byte, 0, len(p)+6), `{"v":`...), p...), '}')
	out := h.cfg.Redact.Bytes(wrapped)
	if len(out) < 6 || !json.Valid(out) {
		return json.RawMessage(`"[redacted]"`)
	}
	return json.RawMessage(out[5 : len(out)-1])
}
