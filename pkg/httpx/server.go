package httpx

import (
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// Limits of every listener. There is no write timeout, since streams last as
// long as their turns: the SSE writer sets a deadline per batch instead.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 64 << 10
)

// NewHTTPServer returns a server for h: request headers must arrive within
// 10 s and fit in 64 KiB, an idle connection ends after 60 s. The caller
// serves and shuts it down.
func NewHTTPServer(h http.Handler, logger zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(serverLog{logger}, "", 0),
	}
}

// serverLog takes the lines net/http writes about broken connections: noise of
// clients, hence debug.
type serverLog struct{ log zerolog.Logger }

// Write logs one line.
func (l serverLog) Write(p []byte) (int, error) {
	l.log.Debug().Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}

// PeerAddr returns the address of the client: the socket's peer, or, when that
// is within trusted, the last address of X-Forwarded-For that is not trusted.
// Anything a client could forge is never believed.
func PeerAddr(r *http.Request, trusted []netip.Prefix) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	peer, err := netip.ParseAddr(host)
	if err != nil || !within(peer, trusted) {
		return host
	}
	chain := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(chain) {
		addr, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			return host
		}
		host = addr.Unmap().WithZone("").String()
		if !within(addr, trusted) {
			return host
		}
	}
	return host
}

// PeerNetwork is PeerAddr as it is counted: an IPv6 address stands for its /64
// network, which is what one customer gets.
func PeerNetwork(r *http.Request, trusted []netip.Prefix) string {
	peer := PeerAddr(r, trusted)
	addr, err := netip.ParseAddr(peer)
	if err != nil || !addr.Is6() || addr.Is4In6() {
		return strings.TrimPrefix(peer, "::ffff:")
	}
	prefix, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return peer
	}
	return prefix.String()
}

// Trusted tells whether the socket's peer is within trusted, so that what it
// says about the client's own request may be believed.
func Trusted(r *http.Request, trusted []netip.Prefix) bool {
	if len(trusted) == 0 {
		return false
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	peer, err := netip.ParseAddr(host)
	return err == nil && within(peer, trusted)
}

func within(addr netip.Addr, prefixes []netip.Prefix) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
