// Package fault is the error vocabulary of both programs: a small fixed Kind
// for machines, an exact Name for API replies, a Message for people and the
// wrapped cause for the log.
//
// A fault is made where its meaning is known and mapped once at each door:
// to HTTP in httpx, to gRPC in control. Any other error is Internal; its text
// is logged and never served. fault imports only the standard library, and
// every package may import it.
package fault

import (
	"errors"
	"fmt"
	"maps"
)

// Kind says what sort of failure an error is. It decides the HTTP status and
// the default error code of a reply.
type Kind uint8

// The kinds, each with the HTTP status it maps to (reference runtime.md 1.3
// and server.md 1.2).
const (
	Internal        Kind = iota // 500: ours; the text is not served
	Invalid                     // 400: the request is wrong
	Unauthenticated             // 401: no or wrong credentials
	Forbidden                   // 403: known caller, not allowed
	NotFound                    // 404
	NotAllowed                  // 405: path exists, method does not
	Conflict                    // 409
	Gone                        // 410
	TooLarge                    // 413
	Unprocessable               // 422: well-formed, but a field is wrong
	RateLimited                 // 429
	NotImplemented              // 501: no such operation on any method
	BadGateway                  // 502: a process behind us did not answer
	Unavailable                 // 503: try again later
	Failed                      // 500 with a message that may be served
	Canceled                    // 499: the caller went away
)

var statuses = [...]int{
	Internal: 500, Invalid: 400, Unauthenticated: 401, Forbidden: 403, NotFound: 404,
	NotAllowed: 405, Conflict: 409, Gone: 410, TooLarge: 413, Unprocessable: 422,
	RateLimited: 429, NotImplemented: 501, BadGateway: 502, Unavailable: 503, Failed: 500,
	Canceled: 499,
}

var kindNames = [...]string{
	Internal: "internal", Invalid: "invalid", Unauthenticated: "unauthenticated",
	Forbidden: "forbidden", NotFound: "not_found", NotAllowed: "not_allowed",
	Conflict: "conflict", Gone: "gone", TooLarge: "too_large", Unprocessable: "unprocessable",
	RateLimited: "rate_limited", NotImplemented: "not_implemented", BadGateway: "bad_gateway",
	Unavailable: "unavailable", Failed: "failed", Canceled: "canceled",
}

// HTTPStatus returns the HTTP status code of k.
func (k Kind) HTTPStatus() int {
	if int(k) < len(statuses) {
		return statuses[k]
	}
	return 500
}

// String returns the lower-case word of k, as it is sent over the control protocol.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// ParseKind is the inverse of Kind.String; an unknown word is Internal.
func ParseKind(s string) Kind {
	for k, name := range kindNames {
		if name == s {
			return Kind(k)
		}
	}
	return Internal
}

// Error is a failure with a meaning. Name is the exact error name or code of
// the reply (for example "IDMismatch" or "AGENT_NOT_FOUND"); when it is empty
// the door uses the default of the Kind.
type Error struct {
	Kind    Kind
	Name    string
	Message string
	// Data is served beside the message, for example "validation_errors".
	Data  map[string]any
	cause error
}

// New returns an Error without a cause.
func New(kind Kind, name, message string) *Error {
	return &Error{Kind: kind, Name: name, Message: message}
}

// Errorf formats the message as fmt.Errorf does; an operand of %w becomes the cause.
func Errorf(kind Kind, name, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Name: name, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Wrap returns an Error whose message is served and whose cause is only logged.
func Wrap(kind Kind, name, message string, cause error) *Error {
	return &Error{Kind: kind, Name: name, Message: message, cause: cause}
}

// With returns a copy of e that carries key in its Data.
func (e *Error) With(key string, value any) *Error {
	c := *e
	c.Data = maps.Clone(e.Data)
	if c.Data == nil {
		c.Data = make(map[string]any, 1)
	}
	c.Data[key] = value
	return &c
}

// Error returns the message; the cause is reached through errors.Unwrap.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// From returns the outermost Error in err's chain. Anything else becomes
// Internal with a fixed text, so that low-level detail never reaches a caller.
func From(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Internal, Message: "internal error", cause: err}
}

// KindOf returns the Kind of err, Internal when it is no Error.
func KindOf(err error) Kind { return From(err).Kind }

// NameOf returns the Name of err, "" when it is no Error or has none.
func NameOf(err error) string { return From(err).Name }
