// Package ports leases TCP ports from a range and owns their listening sockets.
//
// It promises that a formation's port is bound once and stays bound while its
// processes come and go: a Socket hands copies of itself to child processes, so
// the kernel queues connections while no child accepts them. The supervisor can
// answer on the socket itself (Serve503), and Shutdown closes the port for every
// process that holds it. deploy leases, process hands out and shuts down.
//
// Linux only: the descriptors' flags and /proc are used directly.
package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/agentformation/service/pkg/fault"
)

// Config says which ports may be leased.
type Config struct {
	Host  string // address to bind, for example 127.0.0.1 or 0.0.0.0
	First int    // 1024 or more
	Last  int    // inclusive; 65535 or less
}

// Pool leases ports by key (the supervisor uses "<id>" and "<id>-draft"). It is
// safe for concurrent use.
type Pool struct {
	host        netip.Addr
	first, last int

	mu    sync.Mutex // guards what follows
	byKey map[string]*Socket
	taken map[int]string // port -> key
}

// New checks cfg and returns an empty pool. Nothing is bound yet.
func New(cfg Config) (*Pool, error) {
	host, err := netip.ParseAddr(cfg.Host)
	if err != nil {
		return nil, fmt.Errorf("bind host %q: want an IP address such as 127.0.0.1: %w", cfg.Host, err)
	}
	if cfg.First < 1024 || cfg.Last > 65535 || cfg.First > cfg.Last {
		return nil, fmt.Errorf("port range %d-%d: want 1024 <= first <= last <= 65535", cfg.First, cfg.Last)
	}
	return &Pool{
		host: host, first: cfg.First, last: cfg.Last,
		byKey: make(map[string]*Socket), taken: make(map[int]string),
	}, nil
}

// Lease returns key's socket, bound. A key that has a port gets that port again
// and never another one: when a stranger holds it, the error is a fault named
// SpawnError that says who. A new key gets the lowest free port of the range
// that can be bound; when there is none, the error is a fault named
// PortAllocationError.
func (p *Pool) Lease(key string) (*Socket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.byKey[key]; ok {
		if err := s.Bind(); err != nil {
			return nil, fmt.Errorf("lease port for %s: %w", key, err)
		}
		return s, nil
	}
	for port := p.first; port <= p.last; port++ {
		if _, used := p.taken[port]; used {
			continue
		}
		s := p.socket(port)
		if s.Bind() != nil {
			continue // held by a stranger: the next one
		}
		p.keep(key, port, s)
		return s, nil
	}
	return nil, fault.Errorf(fault.Failed, "PortAllocationError",
		"no free port in %d-%d: all are leased or held by other programs", p.first, p.last)
}

// Reserve gives key the port it had before, without binding it: the socket is
// bound by Socket.Bind or taken back from a child by Socket.Take. The port may
// lie outside the range, which can change between two starts of the supervisor.
// It is an error when another key has the port; a key that has it already gets
// the same Socket again.
func (p *Pool) Reserve(key string, port int) (*Socket, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("reserve port %d for %s: want 1-65535", port, key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.byKey[key]; ok {
		if s.Port() != port {
			return nil, fmt.Errorf("reserve port %d for %s: it has port %d", port, key, s.Port())
		}
		return s, nil
	}
	if owner, used := p.taken[port]; used {
		return nil, fmt.Errorf("reserve port %d for %s: it belongs to %s", port, key, owner)
	}
	s := p.socket(port)
	p.keep(key, port, s)
	return s, nil
}

// Release shuts key's socket down for every holder and frees its port. An
// unknown key is no error.
func (p *Pool) Release(key string) error {
	p.mu.Lock()
	s, ok := p.byKey[key]
	if ok {
		delete(p.byKey, key)
		delete(p.taken, s.Port())
	}
	p.mu.Unlock()
	if !ok {
		return nil
	}
	if err := s.Shutdown(); err != nil {
		return fmt.Errorf("release port of %s: %w", key, err)
	}
	return nil
}

// Get returns key's socket, whether bound or not.
func (p *Pool) Get(key string) (*Socket, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.byKey[key]
	return s, ok
}

// Leased returns how many ports have a key, bound or not.
func (p *Pool) Leased() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byKey)
}

// Close lets go of every socket without ending its listening: children go on
// to accept. The pool is not used afterwards.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for key, s := range p.byKey {
		if err := s.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close socket of %s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Pool) socket(port int) *Socket {
	return &Socket{addr: netip.AddrPortFrom(p.host, uint16(port)), fd: closed}
}

// keep records a lease; mu is held.
func (p *Pool) keep(key string, port int, s *Socket) {
	p.byKey[key] = s
	p.taken[port] = key
}
