package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Names of errors that no reply carries: they are made here.
const (
	// NameUnreachable: no answer came; Status is 0 and Unwrap has the cause.
	NameUnreachable = "Unreachable"
	// NameBadReply: what answered does not speak this API.
	NameBadReply = "BadReply"
	// NameBrokenStream: a stream ended before its last event.
	NameBrokenStream = "BrokenStream"
	// NameInvalidID: an id that cannot be part of an address; nothing was sent.
	NameInvalidID = "InvalidID"
)

// Error is a call that was refused or could not be made.
type Error struct {
	// Status is the HTTP status, or the one that Name stands for when the
	// error came as an event of a stream; 0 when there was no answer.
	Status int
	// Name is the error name or code of the reply: "FormationNotFound",
	// "VALIDATION_ERROR".
	Name    string
	Message string
	// Stage is where a deploy or start ended, "" elsewhere.
	Stage string
	// Details is more about it, as the server put it, or "".
	Details string
	// RollbackStatus says, after a failed update or rollback, what became of the
	// version that ran before: not_needed, success or failed; "" elsewhere.
	RollbackStatus string
	// RequestID is the formation's id of the request, "" when unknown.
	RequestID string
	// Data is the formation's error.data, nil when there was none.
	Data json.RawMessage
	// RetryAfter is how long the server asked to wait, 0 when it did not.
	RetryAfter time.Duration

	cause error
}

// Error returns the name and the message.
func (e *Error) Error() string {
	if e.Name == "" {
		return e.Message
	}
	return e.Name + ": " + e.Message
}

// Unwrap returns what kept an answer from coming, or nil.
func (e *Error) Unwrap() error { return e.cause }

// IsDown tells that the formation is stopped or crashed. The supervisor answers so
// at once, and unlike what else comes with status 503 it does not pass: somebody
// has to start the formation.
func (e *Error) IsDown() bool {
	return e.Name == "FormationUnavailable" &&
		(strings.HasSuffix(e.Message, " is stopped") || strings.HasSuffix(e.Message, " is crashed"))
}

// StatusOf returns the Status of the *Error in err's chain, -1 without one.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return -1
}

// wireError is an error reply of either API: the supervisor sends the name as
// a string, a formation sends an object and copies of its fields.
type wireError struct {
	Error   json.RawMessage `json:"error"`
	Message string          `json:"message"`
	Stage   string          `json:"stage"`
	Back    string          `json:"rollback_status"`
	Details json.RawMessage `json:"details"`
	Code    json.RawMessage `json:"code"`
	Request struct {
		ID string `json:"id"`
	} `json:"request"`
}

// replyError makes an Error of a reply with a status that is no success.
func replyError(resp *http.Response, body []byte) *Error {
	e := &Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header)}
	var wire wireError
	if json.Unmarshal(body, &wire) == nil {
		wire.fill(e)
	}
	if e.Name == "" {
		e.Name = strings.ReplaceAll(http.StatusText(e.Status), " ", "")
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("the server answered %s", resp.Status)
	}
	return e
}

// fill copies what the reply says into e.
func (w *wireError) fill(e *Error) {
	var object struct {
		Code    string          `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if json.Unmarshal(w.Error, &e.Name) != nil && json.Unmarshal(w.Error, &object) == nil {
		e.Name, e.Message, e.Data = object.Code, object.Message, object.Data
	}
	if e.Message == "" {
		e.Message = w.Message
	}
	e.Stage, e.RollbackStatus, e.RequestID = w.Stage, w.Back, w.Request.ID
	if json.Unmarshal(w.Details, &e.Details) != nil && len(w.Details) > 0 {
		e.Details = string(w.Details)
	}
}

// eventError makes an Error of the error event of a deploy, start or restart.
// Such an event comes under HTTP 200, so the status is read from its code when
// it has one, else from its name.
func eventError(data []byte) *Error {
	e := &Error{}
	var wire wireError
	if err := json.Unmarshal(data, &wire); err != nil {
		return badReply(http.StatusOK, "an error event that is no JSON object")
	}
	wire.fill(e)
	if json.Unmarshal(wire.Code, &e.Status) != nil || e.Status == 0 {
		e.Status = statusOfName(e.Name)
	}
	return e
}

// statusOfName is the table of reference server.md 1.2 for the names that an
// event can carry; a name that is not in it is a failure of the server.
func statusOfName(name string) int {
	switch name {
	case "FormationNotFound", "NotFound", "VersionNotFound", "RuntimeNotFound", "DraftNotFound", "LiveNotFound",
		"FileNotFound", "AGENT_NOT_FOUND":
		return http.StatusNotFound
	case "AlreadyRunning", "AlreadyStopped", "UpdateInProgress", "NoChange", "DeployConflict", "DraftAlreadyExists",
		"DraftRunning":
		return http.StatusConflict
	case "Unauthorized":
		return http.StatusUnauthorized
	case "PayloadTooLarge":
		return http.StatusRequestEntityTooLarge
	case "FormationUnavailable", "SERVICE_UNAVAILABLE", "SYSTEM_OVERLOAD":
		return http.StatusServiceUnavailable
	case "ValidationError", "InvalidContentType", "MissingHeader", "InvalidFormationID", "ExtractError",
		"ParseError", "SecretsError", "IDMismatch", "VersionMismatch", "InvalidRuntime", "ResolveError",
		"NoPreviousVersion", "NoUpdateInProgress", "InvalidMode", "InvalidPath", "InvalidAction", "InvalidJSON", "DecodeError":
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// unreachable makes an Error of a call that got no answer.
func unreachable(base string, err error) *Error {
	return &Error{Name: NameUnreachable, Message: fmt.Sprintf("no answer from %s: %v", base, shortCause(err)), cause: err}
}

// shortCause leaves out the method and address that net/http puts before a cause.
func shortCause(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// badReply makes an Error of an answer that is not of this API.
func badReply(status int, what string) *Error {
	return &Error{Status: status, Name: NameBadReply, Message: "this is no answer of the service: " + what}
}

// isEventStream tells a stream of events from a plain reply.
func isEventStream(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// retryAfter reads the header in both of its forms.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
