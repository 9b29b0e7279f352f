package llm

import (
	"net"
	"net/http"
	"time"
)

// Limits of the shared transport. A formation talks to very few hosts with many
// calls at a time, so idle connections are kept per host, and for less time
// than common servers keep theirs.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 30 * time.Second
	keepAliveProbe   = 30 * time.Second
	maxIdleConns     = 1024
	maxIdlePerHost   = 512
	maxHeaderBytes   = 64 << 10
)

// newTransport speaks HTTP/1.1: calls are few and long, one connection each,
// so a broken connection breaks one call only. Compression is off, as it would
// hold back deltas.
func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAliveProbe}).DialContext,
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
		Protocols:              protocols,
	}
}
