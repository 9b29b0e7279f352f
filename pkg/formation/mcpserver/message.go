package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentformation/service/pkg/fault"
)

// maxBatch is how many messages one body may hold, as clients of the protocol's
// first version send them.
const maxBatch = 100

// Admit tells whether a request is one that Serve answers: the fault is
// NotAllowed for other methods than POST, since nothing is sent unasked, and
// Forbidden for a browser that was led here under a foreign name.
func (s *Server) Admit(r *http.Request) error {
	if r.Method != http.MethodPost {
		return fault.New(fault.NotAllowed, "", "Send messages with POST: this server keeps no sessions and sends nothing unasked")
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil || !loopback(local.String()) || loopback(r.Host) || slices.Contains(s.cfg.Hosts, hostname(r.Host)) {
		return nil
	}
	return fault.New(fault.Forbidden, "", "The Host header names a foreign host: use the address that the formation listens on")
}

// hostname is a host without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func loopback(host string) bool {
	name := hostname(host)
	if name == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.IsLoopback()
}

// open tells whether a method needs no key: those of the handshake, and the list
// of tools, which is the same everywhere.
func open(method string) bool {
	switch method {
	case "initialize", "ping", "tools/list", "server/discover":
		return true
	default:
		return strings.HasPrefix(method, "notifications/")
	}
}

// NeedsKey tells whether a body asks for something that needs a key. One that
// can't be read needs none: it gets no more than an error.
func NeedsKey(body []byte) bool {
	messages, err := read(body)
	return err == nil && slices.ContainsFunc(messages, func(m *jsonrpc.Request) bool { return !open(m.Method) })
}

// read returns the requests and notifications of a body, which is one message or
// a batch of them.
func read(body []byte) ([]*jsonrpc.Request, error) {
	body = bytes.TrimSpace(body)
	parts := []json.RawMessage{body}
	if len(body) > 0 && body[0] == '[' {
		parts = nil
		if err := json.Unmarshal(body, &parts); err != nil {
			return nil, fmt.Errorf("the body is no JSON: %w", err)
		}
	}
	if len(parts) == 0 || len(parts) > maxBatch {
		return nil, fmt.Errorf("send one message, or a batch of 1 to %d", maxBatch)
	}
	var out []*jsonrpc.Request
	for _, p := range parts {
		m, err := jsonrpc.DecodeMessage(p)
		if err != nil {
			return nil, errors.New("the body is no message of JSON-RPC 2.0")
		}
		if r, ok := m.(*jsonrpc.Request); ok {
			out = append(out, r)
		}
	}
	return out, nil
}

// refuse answers with an error that belongs to no message.
func refuse(w http.ResponseWriter, status int, code int64, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	data, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message},
	})
	if err == nil {
		_, _ = w.Write(data) // a failed write means that the client left
	}
}

func body(data []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(data)) }
