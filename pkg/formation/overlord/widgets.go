package overlord

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
)

// The clamps of widgets (reference runtime.md 6.1). Sizes are bytes of the
// widget as JSON.
const (
	maxWidgets      = 8
	maxOptions      = 25
	maxStandard     = 4096  // one options or action_link
	maxStandardAll  = 16384 // all of these
	maxResource     = 64 << 10
	maxAll          = 128 << 10
	widgetIDChars   = 21
	widgetIDPrefix  = "ui_"
	resourceScheme  = "ui://"
	encodingBase64  = "base64"
	defaultLinkName = "Open"
)

// widgets returns what is shown with an answer: what fits, in order. A widget
// that is too large, or has nothing to show, is left out whole.
func (o *Overlord) widgets(ctx context.Context, answer chat.Answer) []chat.Widget {
	if !o.cfg.Formation.Overlord.Response.Widgets {
		return nil
	}
	kept := clamp(answer.Widgets)
	if dropped := len(answer.Widgets) - len(kept); dropped > 0 {
		telemetry.Log(ctx, o.cfg.Log).Warn().Int("dropped", dropped).Msg("widgets that are too large or empty are left out")
	}
	return kept
}

func clamp(list []chat.Widget) []chat.Widget {
	var kept []chat.Widget
	standard, all := 0, 0
	for _, w := range list {
		w, ok := fit(w)
		if !ok || len(kept) == maxWidgets {
			continue
		}
		n := size(&w)
		if w.Type != chat.WidgetMCPResource {
			if standard+n > maxStandardAll {
				continue
			}
			standard += n
		}
		if all+n > maxAll {
			if w.Type != chat.WidgetMCPResource {
				standard -= n
			}
			continue
		}
		all += n
		kept = append(kept, w)
	}
	return kept
}

// fit makes a widget complete and keeps to it only the fields of its type. It
// reports false for one that can't be shown.
func fit(w chat.Widget) (chat.Widget, bool) {
	if !validWidgetID(w.ID) {
		w.ID = newWidgetID()
	}
	limit := maxStandard
	switch w.Type {
	case chat.WidgetOptions:
		no := false
		w = chat.Widget{Type: w.Type, ID: w.ID, Prompt: w.Prompt, Options: options(w.Options), Multi: &no}
		if len(w.Options) == 0 {
			return w, false
		}
	case chat.WidgetActionLink:
		w = chat.Widget{Type: w.Type, ID: w.ID, Label: w.Label, URL: w.URL, Hint: w.Hint}
		if !isWebURL(w.URL) {
			return w, false
		}
		if strings.TrimSpace(w.Label) == "" {
			w.Label = defaultLinkName
		}
	case chat.WidgetMCPResource:
		limit = maxResource
		w = chat.Widget{
			Type: w.Type, ID: w.ID, Resource: w.Resource, Data: w.Data, Server: w.Server, Tool: w.Tool,
			MIMEType: w.MIMEType, Encoding: w.Encoding,
		}
		if !strings.HasPrefix(w.Resource, resourceScheme) || w.Data == "" || (w.Encoding != "" && w.Encoding != encodingBase64) {
			return w, false
		}
	default:
		return w, false
	}
	return w, size(&w) <= limit
}

// options returns those that can be chosen, at most maxOptions.
func options(list []chat.Option) []chat.Option {
	var kept []chat.Option
	for _, o := range list {
		if o.Value == "" || len(kept) == maxOptions {
			continue
		}
		if strings.TrimSpace(o.Label) == "" {
			o.Label = o.Value
		}
		kept = append(kept, o)
	}
	return kept
}

func optionsWidget(q *chat.Question) chat.Widget {
	return chat.Widget{Type: chat.WidgetOptions, ID: newWidgetID(), Prompt: q.Prompt, Options: q.Options}
}

func size(w *chat.Widget) int {
	data, err := json.Marshal(w)
	if err != nil { // strings always encode
		return maxAll + 1
	}
	return len(data)
}

// newWidgetID returns an id of letters and digits: chat channels send it back
// in a callback that has little room for other characters.
func newWidgetID() string { return widgetIDPrefix + rand.Text()[:widgetIDChars] }

func validWidgetID(id string) bool {
	rest, ok := strings.CutPrefix(id, widgetIDPrefix)
	return ok && len(rest) == widgetIDChars && !strings.ContainsFunc(rest, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '_'
	})
}

func isWebURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}
