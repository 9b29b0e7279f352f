package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Error is a call that got no answer. Its text is for models and people; it
// holds no credential.
type Error struct {
	Server string
	text   string
	begun  bool
	final  bool // trying again can't help
	cause  error
}

// Error implements error.
func (e *Error) Error() string { return e.text }

// Unwrap returns what lies behind it.
func (e *Error) Unwrap() error { return e.cause }

// Begun tells whether the server may have begun with the call: its outcome is
// unknown then. When it is false, nothing has happened.
func (e *Error) Begun() bool { return e.begun }

// notBegun is a failure before the server was asked.
func notBegun(server string, cause error, format string, args ...any) *Error {
	return &Error{Server: server, text: fmt.Sprintf(format, args...), cause: cause}
}

// permanent marks failures that are the same at the next try.
func (e *Error) permanent() *Error {
	e.final = true
	return e
}

// attempt is how far one try of a call has come. It travels in the context of
// the call, down to who writes to the server.
type attempt struct {
	begun  atomic.Bool  // something of the request was written
	status atomic.Int32 // of the HTTP reply; 0 for none
	lost   atomic.Bool  // the server does not know the session (any more)
	// probing tells that it is found out how a server speaks.
	probing bool
}

type attemptKey struct{}

func withAttempt(ctx context.Context, a *attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// attemptOf returns the attempt in ctx; what has none gets one that nobody looks at.
func attemptOf(ctx context.Context) *attempt {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		return a
	}
	return &attempt{}
}

// Codes of JSON-RPC that the SDK makes for broken connections; no server's answer.
const (
	codeClientClosing = -32003
	codeServerClosing = -32004
	codeRejected      = -32005
)

// answered returns the error that the server itself gave as its answer.
func answered(err error) (*jsonrpc.Error, bool) {
	if errors.Is(err, mcpsdk.ErrConnectionClosed) {
		return nil, false
	}
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return nil, false
	}
	switch e.Code {
	case codeClientClosing, codeServerClosing, codeRejected:
		return nil, false
	}
	return e, true
}
