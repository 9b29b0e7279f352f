package httpapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// chatBody is the body of a chat request (reference runtime.md 3.1).
type chatBody struct {
	spoken           bool       // the files are the message
	Message          *string    `json:"message" required:"true"`
	UserID           string     `json:"user_id" about:"deprecated: the header wins"`
	AgentID          string     `json:"agent_id" about:"the agent that is to answer; left out, the best one is found"`
	SessionID        string     `json:"session_id" about:"the conversation to go on with; left out, a new one begins"`
	GroupID          string     `json:"group_id"`
	RequestID        string     `json:"request_id" about:"chosen by the caller, to ask for the request or to cancel it"`
	Mode             string     `json:"mode" enum:"auto,sync,async" about:"async answers at once and goes on in the background"`
	UseAsync         *bool      `json:"use_async" about:"the same as mode async"`
	Files            []fileBody `json:"files"`
	Stream           *bool      `json:"stream" about:"answer with events"`
	WebhookURL       string     `json:"webhook_url" about:"not available: leave it out"`
	ThresholdSeconds *float64   `json:"threshold_seconds" about:"mode auto: what is expected to take longer goes on in the background"`
	OnDisconnect     string     `json:"on_disconnect" enum:"continue,cancel" about:"what becomes of the turn when its last reader leaves"`
	SourceChannel    string     `json:"source_channel" about:"not available: leave it out"`
	// UIResponse answers an options widget. The turn ignores it unless it matches
	// the one that waits.
	UIResponse *uiResponse `json:"ui_response" about:"a choice in an options widget, by value or index"`
}

// uiResponse is a choice made in a widget: {id, value} or {id, index}.
type uiResponse struct {
	ID    string  `json:"id" required:"true"`
	Value *string `json:"value"`
	Index *int    `json:"index"`
}

// click is the choice for the turn; nil when there is none, or nothing is chosen.
func (u *uiResponse) click() *chat.UIReply {
	if u == nil || (u.Value == nil && u.Index == nil) {
		return nil
	}
	c := &chat.UIReply{ID: u.ID, Index: u.Index}
	if u.Value != nil {
		c.Value = *u.Value
	}
	return c
}

// The bounds of the ids a caller chooses, in bytes.
const (
	maxRequestID = 128
	maxOtherID   = 256
	// maxValue is that of the value of an option: a widget is smaller.
	maxValue = 4096
)

// maxThreshold is the largest threshold_seconds, one year.
const maxThreshold = 365 * 24 * 3600

// checker collects what is wrong with the values of a body.
type checker []httpx.FieldError

func (k *checker) add(field, msg, typ, word string) {
	*k = append(*k, httpx.FieldError{Field: field, Msg: msg, Type: typ, Error: word})
}

// check returns every value that is wrong. Features that this release lacks
// are refused by name, so that nothing is accepted and dropped.
func (in *chatBody) check(maxMessage int) []httpx.FieldError {
	var bad checker
	in.checkMessage(&bad, maxMessage)
	checkID(&bad, "agent_id", in.AgentID)
	checkID(&bad, "session_id", in.SessionID)
	checkID(&bad, "group_id", in.GroupID)
	if !validRequestID(in.RequestID) {
		bad.add("request_id", "Use 1 to 128 characters of A-Z, a-z, 0-9, _ and -", "string", httpx.InvalidFormat)
	}
	checkWord(&bad, "mode", in.Mode, manifest.ModeAuto, manifest.ModeSync, manifest.ModeAsync)
	checkWord(&bad, "on_disconnect", in.OnDisconnect, manifest.DisconnectContinue, manifest.DisconnectCancel)
	if t := in.ThresholdSeconds; t != nil && (*t < 0 || *t > maxThreshold) {
		bad.add("threshold_seconds", fmt.Sprintf("Use a number from 0 to %d", maxThreshold), "number", httpx.InvalidFormat)
	}
	if in.WebhookURL != "" {
		bad.add("webhook_url", "Webhook delivery is not available: leave it out and poll GET /v1/requests/{id}",
			"string", httpx.ExtraField)
	}
	checkFiles(&bad, in.Files)
	if u := in.UIResponse; u != nil {
		checkID(&bad, "ui_response.id", u.ID)
		if u.Value != nil && len(*u.Value) > maxValue {
			bad.add("ui_response.value", fmt.Sprintf("Use at most %d bytes", maxValue), "string", httpx.TooLong)
		}
	}
	if in.SourceChannel != "" {
		bad.add("source_channel", "Channels are not available: leave it out", "string", httpx.ExtraField)
	}
	return bad
}

// alsoWrong adds the values that are wrong to a body whose types are wrong, so
// that a caller learns everything at once.
func (in *chatBody) alsoWrong(err error, maxMessage int) error {
	return alsoWrong(err, func() []httpx.FieldError { return in.check(maxMessage) })
}

// alsoWrong adds what check finds to a body whose types are wrong.
func alsoWrong(err error, check func() []httpx.FieldError) error {
	var body *httpx.BodyError
	if !errors.As(err, &body) || body.Fields[0].Field == "" { // the body as a whole
		return err
	}
	known := make(map[string]bool, len(body.Fields))
	for _, f := range body.Fields {
		top, _, _ := strings.Cut(f.Field, ".")
		known[top] = true
	}
	all := slices.Clone(body.Fields)
	for _, f := range check() {
		if top, _, _ := strings.Cut(f.Field, "."); !known[top] {
			all = append(all, f)
		}
	}
	return &httpx.BodyError{Fields: all}
}

func (in *chatBody) checkMessage(bad *checker, most int) {
	switch {
	case in.Message == nil:
		bad.add("message", "Field required", "string", httpx.Missing)
	case strings.TrimSpace(*in.Message) == "" && len(in.Files) == 0 && in.UIResponse == nil:
		bad.add("message", "The message is blank", "string", httpx.TooShort)
	// Characters are counted only when there are enough bytes for too many.
	case most > 0 && len(*in.Message) > most && utf8.RuneCountInString(*in.Message) > most:
		bad.add("message", fmt.Sprintf("The message is longer than %d characters", most), "string", httpx.TooLong)
	}
}

func checkID(bad *checker, field, id string) {
	switch {
	case len(id) > maxOtherID:
		bad.add(field, fmt.Sprintf("Use at most %d bytes", maxOtherID), "string", httpx.TooLong)
	case strings.ContainsFunc(id, isControl):
		bad.add(field, "Leave out control characters", "string", httpx.InvalidFormat)
	}
}

func checkWord(bad *checker, field, word string, allowed ...string) {
	if word != "" && !slices.Contains(allowed, word) {
		bad.add(field, "Use one of "+strings.Join(allowed, ", "), "string", httpx.InvalidFormat)
	}
}

// validRequestID tells whether id fits ^[A-Za-z0-9_-]{1,128}$; "" asks for a
// generated one.
func validRequestID(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return len(id) <= maxRequestID
}

// chatFault gives a wrong message its own code (reference runtime.md 1.3).
func chatFault(err error) error {
	var body *httpx.BodyError
	if !errors.As(err, &body) {
		return err
	}
	name := ""
	for _, f := range body.Fields {
		if f.Field == "message" {
			name = "VALIDATION_ERROR"
		}
	}
	return fault.New(fault.Unprocessable, name, body.Error()).With("validation_errors", body.Fields)
}
