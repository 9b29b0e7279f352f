package proxy

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/agentformation/service/pkg/httpx"
)

// rewrite makes the request that the formation sees. ReverseProxy has dropped
// hop-by-hop and forwarding headers before.
func (h *hop) rewrite(r *httputil.ProxyRequest) {
	raw := h.keep + strip(r.In.URL.EscapedPath())
	if h.keep != "" && raw == h.keep+"/" && !strings.HasSuffix(r.In.URL.Path, "/") {
		raw = h.keep // "/mcp/<id>" is "/mcp"
	}
	path, err := url.PathUnescape(raw)
	if err != nil { // it was parsed as part of a URL before, so it can't be
		path = raw
	}
	r.Out.URL = &url.URL{
		Scheme: "http", Host: h.backend.target.Addr, Path: path, RawPath: raw,
		RawQuery: r.In.URL.RawQuery, ForceQuery: r.In.URL.ForceQuery,
	}
	r.Out.Host = ""
	header := r.Out.Header
	header.Del("Connection") // ReverseProxy keeps both for a change of protocol,
	header.Del("Upgrade")    // which formations do not know
	header.Del("Expect")     // our own server answers it when the body is read
	header[h.p.server] = []string{h.p.cfg.Version}
	h.p.forwarded(r)
}

// forwarded sets the X-Forwarded-* headers. What came in counts only when a
// trusted proxy sent it.
func (p *Proxy) forwarded(r *httputil.ProxyRequest) {
	peer := httpx.PeerAddr(&http.Request{RemoteAddr: r.In.RemoteAddr}, nil)
	chain, proto, host := peer, "http", r.In.Host
	if r.In.TLS != nil {
		proto = "https"
	}
	if httpx.Trusted(r.In, p.cfg.TrustedProxies) {
		if in := r.In.Header.Values("X-Forwarded-For"); len(in) > 0 {
			chain = strings.Join(in, ", ") + ", " + peer
		}
		if in := r.In.Header.Get("X-Forwarded-Proto"); in != "" {
			proto = in
		}
		if in := r.In.Header.Get("X-Forwarded-Host"); in != "" {
			host = in
		}
	}
	h := r.Out.Header
	h["X-Forwarded-For"] = []string{chain}
	h["X-Forwarded-Proto"] = []string{proto}
	h["X-Forwarded-Host"] = []string{host}
}

// strip removes the first two segments ("/api/<id>") of an escaped path.
func strip(path string) string {
	rest := path
	for range 2 {
		i := strings.IndexByte(rest[min(1, len(rest)):], '/')
		if i < 0 {
			return "/"
		}
		rest = rest[i+1:]
	}
	return rest
}

// adapt removes what our own door has set already: a browser refuses an answer
// that allows an origin twice. When the answer begins before the body's end, as
// that of a refusal does, the rest of the body would be taken for the next
// request: the connection ends with the answer, and the client must know. After
// 413 it ends in any case, as it does on the formation's own port.
func (h *hop) adapt(r *http.Response) error {
	if r.StatusCode == http.StatusRequestEntityTooLarge || h.unfinished() {
		r.Header.Set("Connection", "close")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(r.Header, name)
		}
	}
	return nil
}
