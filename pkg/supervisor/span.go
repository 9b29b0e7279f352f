package supervisor

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
	"github.com/agentformation/service/pkg/supervisor/proxy"
	"github.com/agentformation/service/pkg/version"
)

// The headers by which a bridge tells the supervisor whose request it brings.
const (
	bridgedPeer = "Bridged-Peer"
	bridgedTLS  = "Bridged-Tls"
)

// span is a bridge as it is in its own process.
type span struct {
	s       *Supervisor
	orders  orders
	control *os.File
	words   *bufio.Reader // of control
	door    *door
	// relieved is closed when the new program serves, lost when there is no
	// supervisor any more.
	relieved, lost chan struct{}
}

// runBridge is Run of a bridge. It returns when the new program serves and what
// this one has begun is finished.
func (s *Supervisor) runBridge(ctx context.Context) error {
	b := &span{s: s, relieved: make(chan struct{}), lost: make(chan struct{})}
	unix.CloseOnExec(fdControl)
	b.control = os.NewFile(fdControl, "control")
	defer b.control.Close()
	b.words = bufio.NewReader(io.LimitReader(b.control, maxMessage))
	f, err := b.begin(ctx)
	if err != nil {
		return errors.Join(err, b.tell(report{Fault: err.Error()}))
	}
	defer f.close(ctx)
	if err := b.tell(report{Ready: true}); err != nil {
		return err
	}
	go b.listen() // ends with the process, or when control is closed
	select {
	case <-b.relieved:
	case <-b.lost:
	case <-ctx.Done():
	case err := <-f.failed:
		return err
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Formations.DrainTimeout+lameDuck)
	defer cancel()
	if !f.drain(bound) {
		s.log.Warn().Dur("after", s.cfg.Formations.DrainTimeout).Msg("requests that were open since the reload are cut")
	}
	return nil
}

// begin reads the orders, proves that a supervisor could be started now, and
// serves.
func (b *span) begin(ctx context.Context) (*front, error) {
	text, err := b.words.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("hear the orders: %w", err)
	}
	if err := json.Unmarshal(text, &b.orders); err != nil {
		return nil, fmt.Errorf("hear the orders: %w", err)
	}
	if b.orders.Version != bridgeVersion {
		return nil, fmt.Errorf("the running supervisor speaks version %d of the hand-over, this program %d: stop it and start it again",
			b.orders.Version, bridgeVersion)
	}
	cfg := b.s.cfg
	if b.door, err = takeDoor(fdDoor); err != nil {
		return nil, err
	}
	if !serves(b.door.addr, cfg.Listen) {
		d, err := openDoor(ctx, cfg.Listen)
		if err != nil {
			return nil, err
		}
		d.close()
	}
	handler, err := b.handler()
	if err != nil {
		return nil, err
	}
	conf, err := b.s.useTLS(&house{})
	if err != nil {
		return nil, err
	}
	f := newFront(context.WithoutCancel(ctx), handler, b.s.log)
	if err := f.serve(b.door, conf); err != nil {
		return nil, err
	}
	// From now on this is no failed start, but a part of the server.
	if err := unix.Dup2(fdStderr, 2); err != nil {
		return nil, fmt.Errorf("begin to log: %w", err)
	}
	return f, unix.Close(fdStderr)
}

func (b *span) tell(r report) error {
	if err := json.NewEncoder(b.control).Encode(r); err != nil {
		return fmt.Errorf("report to the supervisor: %w", err)
	}
	return nil
}

// listen waits for the word of the new program.
func (b *span) listen() {
	word, err := b.words.ReadString('\n')
	if err == nil && strings.TrimSpace(word) == relieved {
		close(b.relieved)
		return
	}
	close(b.lost)
}

// handler answers what can be answered without the supervisor's records.
func (b *span) handler() (http.Handler, error) {
	o, cfg := b.orders, b.s.cfg
	return httpapi.NewBridge(httpapi.BridgeConfig{
		Log: b.s.log, HeaderPrefix: cfg.HeaderPrefix,
		Server: httpapi.Server{
			ID: b.s.serverID(), Version: version.Version, StartedAt: o.StartedAt,
			PortFirst: cfg.Formations.PortFirst, PortLast: cfg.Formations.PortLast,
		},
		Formations: o.Formations, LeasedPorts: o.Leased,
		Proxy: proxy.New(proxy.Config{
			Log: b.s.log, HeaderPrefix: cfg.HeaderPrefix, Version: version.Version, TrustedProxies: cfg.Server.TrustedProxies,
			Target: func(_ context.Context, id string) (proxy.Target, error) {
				port, ok := o.Ports[id]
				if !ok {
					return proxy.Target{}, fault.Errorf(fault.NotFound, "FormationNotFound", "No formation with id '%s'", id)
				}
				return proxy.Target{Addr: net.JoinHostPort(o.Host, strconv.Itoa(port))}, nil
			},
		}),
		Runs:  func(id string) bool { return o.Ports[id] != 0 },
		Later: b.later,
	})
}

// later brings a request to the new program when it serves.
func (b *span) later(w http.ResponseWriter, r *http.Request) error {
	timer := time.NewTimer(b.s.cfg.Formations.DrainTimeout + bridgeStart)
	defer timer.Stop()
	gone := fault.New(fault.Unavailable, "FormationUnavailable", "the supervisor is being replaced")
	select {
	case <-b.relieved:
	case <-b.lost:
		return gone
	case <-timer.C:
		return gone
	case <-r.Context().Done():
		return fault.Wrap(fault.Canceled, "", "the client left", context.Cause(r.Context()))
	}
	var failed error
	_ = http.NewResponseController(w).EnableFullDuplex() // a protocol without it has no such rule
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "supervisor"
			p.Out.Host = p.In.Host
			for name, values := range p.In.Header { // those that tell of proxies, too
				if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" {
					p.Out.Header[name] = values
				}
			}
			p.Out.Header.Set(bridgedPeer, p.In.RemoteAddr)
			p.Out.Header.Del(bridgedTLS)
			if p.In.TLS != nil {
				p.Out.Header.Set(bridgedTLS, "1")
			}
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", b.orders.Hatch)
			},
			DisableKeepAlives: true, DisableCompression: true, ExpectContinueTimeout: time.Second,
		},
		FlushInterval: -1,
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}).ServeHTTP(w, r)
	if failed != nil {
		return fault.Wrap(fault.Unavailable, "FormationUnavailable", "the supervisor is being replaced", failed)
	}
	return nil
}

// bridged is handler for the requests that a bridge brings: they keep the peer
// that they have. Nobody else reaches the hatch, which lies in a closed
// directory.
func bridged(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer := r.Header.Get(bridgedPeer); peer != "" {
			r.RemoteAddr = peer
		}
		if r.Header.Get(bridgedTLS) != "" {
			r.TLS = &tls.ConnectionState{}
		}
		r.Header.Del(bridgedPeer)
		r.Header.Del(bridgedTLS)
		handler.ServeHTTP(w, r)
	})
}
