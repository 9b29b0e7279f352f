package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// invocation is a call that was read: the request that it stands for.
type invocation struct {
	method string
	path   string
	query  url.Values
	header http.Header
	body   map[string]json.RawMessage // nil: none is sent
	turn   string                     // the id of the turn that it begins, when the caller has chosen none
	limits eventLimits
}

// call answers a call of a tool. What is wrong with it is a result, which a
// model can read, and no error of the protocol.
func (s *Server) call(ctx context.Context, t *tool, req *mcpsdk.CallToolRequest) (result *mcpsdk.CallToolResult) {
	x := exchangeOf(ctx)
	x.out.keepAlive(s.cfg.Pace)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(x.life, func() { cancel(context.Cause(x.life)) })()
	defer func() {
		// The API's own recovery may give up a response that has begun.
		if r := recover(); r != nil {
			s.cfg.Log.Error().Interface("panic", r).Str("tool", t.Tool).Bytes("stack", debug.Stack()).Msg("a call of a tool panicked")
			result = s.failed(fault.New(fault.Internal, "", "internal error"))
		}
	}()
	in, err := s.read(t, req.Params.Arguments, x)
	if err != nil {
		return s.failed(err)
	}
	if t.events {
		return s.collect(ctx, x, in)
	}
	stop := func() {}
	if t.Turn {
		stop = s.follow(ctx, in, req)
	}
	out := s.do(ctx, x, in)
	stop()
	if t.Turn && x.life.Err() != nil && s.cancels(in) {
		s.cancelTurn(ctx, x, in)
	}
	return resultOf(out)
}

// read makes the request that a call stands for.
func (s *Server) read(t *tool, arguments json.RawMessage, x *exchange) (*invocation, error) {
	var given map[string]json.RawMessage
	if len(arguments) > 0 && json.Unmarshal(arguments, &given) != nil {
		return nil, &httpx.BodyError{Fields: []httpx.FieldError{{Field: "arguments", Msg: "Input should be an object", Type: "object", Error: httpx.WrongType}}}
	}
	in := &invocation{method: t.Method, query: make(url.Values), header: make(http.Header), limits: defaultLimits()}
	if t.Body != nil {
		in.body = make(map[string]json.RawMessage, len(given))
	}
	if user := x.header.Get(s.cfg.UserHeader); user != "" {
		in.header.Set(s.cfg.UserHeader, user)
	}
	paths := make(map[string]string)
	var bad []httpx.FieldError
	for _, name := range slices.Sorted(maps.Keys(given)) {
		raw := given[name]
		known, arg := t.find(name)
		switch {
		case known == "":
			bad = append(bad, httpx.FieldError{
				Field: clip(name), Msg: "Unknown argument: use " + strings.Join(slices.Sorted(maps.Keys(t.args)), ", "), Type: "object", Error: httpx.ExtraField,
			})
		case string(raw) == "null":
		case arg.in == inBody:
			in.body[known] = raw
		default:
			text, ok := plain(raw)
			if !ok {
				bad = append(bad, httpx.FieldError{Field: known, Msg: "Input should be a string", Type: "string", Error: httpx.WrongType})
				continue
			}
			if err := in.place(known, arg.in, text, paths); err != nil {
				bad = append(bad, *err)
			}
		}
	}
	var missing []httpx.FieldError
	in.path, missing = pathOf(t.Path, paths)
	if bad = append(bad, missing...); len(bad) > 0 {
		return nil, &httpx.BodyError{Fields: bad}
	}
	if t.Turn {
		s.prepareTurn(in)
	}
	return in, nil
}

// find looks an argument up; names of headers are the same in any case.
func (t *tool) find(name string) (string, argument) {
	if arg, ok := t.args[name]; ok {
		return name, arg
	}
	for known, arg := range t.args {
		if arg.in == inHeader && strings.EqualFold(known, name) {
			return known, arg
		}
	}
	return "", argument{}
}

// place puts a value that is no field of the body where it belongs.
func (in *invocation) place(name, where, text string, paths map[string]string) *httpx.FieldError {
	switch where {
	case inPath:
		paths[name] = text
	case inQuery:
		in.query.Set(name, text)
	case inHeader:
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return &httpx.FieldError{Field: name, Msg: "Leave out control characters", Type: "string", Error: httpx.InvalidFormat}
		}
		in.header.Set(name, text)
	case inWait:
		return in.limits.set(name, text)
	}
	return nil
}

// pathOf puts values into a path; a parameter without one is missing.
func pathOf(path string, values map[string]string) (string, []httpx.FieldError) {
	var bad []httpx.FieldError
	parts := strings.Split(path, "/")
	for i, part := range parts {
		name, isParam := strings.CutPrefix(part, ":")
		if !isParam {
			continue
		}
		if values[name] == "" {
			bad = append(bad, httpx.FieldError{Field: name, Msg: "Field required", Type: "string", Error: httpx.Missing})
		}
		parts[i] = escaped(values[name])
	}
	return strings.Join(parts, "/"), bad
}

// escaped is a value as one segment of a path; dots alone would lead elsewhere.
func escaped(value string) string {
	if strings.Trim(value, ".") == "" {
		return strings.ReplaceAll(value, ".", "%2E")
	}
	return url.PathEscape(value)
}

// plain is the text of a string, number or boolean.
func plain(raw json.RawMessage) (text string, ok bool) {
	switch raw[0] {
	case '"':
		return text, json.Unmarshal(raw, &text) == nil
	case '{', '[':
		return "", false
	default:
		return string(raw), true
	}
}

// clip shortens what a caller wrote before it is quoted back.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// do sends a request to the API, as the caller would.
func (s *Server) do(ctx context.Context, x *exchange, in *invocation) *recorder {
	out := newRecorder()
	r, err := s.request(ctx, x, in)
	if err != nil {
		out.fail(s.cfg.Fault(err))
		return out
	}
	s.cfg.API.ServeHTTP(out, r)
	return out
}

func (s *Server) request(ctx context.Context, x *exchange, in *invocation) (*http.Request, error) {
	path := in.path
	if len(in.query) > 0 {
		path += "?" + in.query.Encode()
	}
	var sent io.Reader = http.NoBody
	if in.body != nil {
		data, err := json.Marshal(in.body)
		if err != nil {
			return nil, fmt.Errorf("write the body of a call: %w", err)
		}
		sent = bytes.NewReader(data)
	}
	if in.turn != "" {
		ctx = context.WithValue(ctx, turnKey{}, in.turn)
	}
	r, err := http.NewRequestWithContext(ctx, in.method, "http://"+x.host+path, sent)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "", "The arguments make no request", err)
	}
	maps.Copy(r.Header, in.header)
	for _, name := range s.cfg.Passed {
		if values := x.header.Values(name); len(values) > 0 {
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if in.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.RemoteAddr = x.remote
	return r, nil
}

// resultOf is the API's answer as the result of a call.
func resultOf(out *recorder) *mcpsdk.CallToolResult {
	text := bytes.TrimSpace(out.body.Bytes())
	result := &mcpsdk.CallToolResult{
		Content: []mcpsdk.Content{&mcpsdk.TextContent{Text: string(text)}}, IsError: out.status < 200 || out.status > 299,
	}
	if len(text) > 0 && text[0] == '{' && json.Valid(text) {
		result.StructuredContent = json.RawMessage(text)
	}
	return result
}

// failed is the result of a call that did not become a request.
func (s *Server) failed(err error) *mcpsdk.CallToolResult {
	out := newRecorder()
	out.fail(s.cfg.Fault(err))
	return resultOf(out)
}
