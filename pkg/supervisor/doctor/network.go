package doctor

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
)

// fewPorts is how many free ports are mentioned as too few.
const fewPorts = 10

// address tries the address of the management API while no supervisor has it.
func address(ctx context.Context, h *host) Result {
	if h.Listen == "" {
		return nothing()
	}
	if h.PID != 0 {
		return ok("the running supervisor has %s", h.Listen)
	}
	if err := bindable(ctx, h.Listen); err != nil {
		return fail("stop what has it, or change server.host and server.port", "%s cannot be bound: %s", h.Listen, err)
	}
	return ok("%s is free", h.Listen)
}

// freePorts tries every port of the range.
func freePorts(ctx context.Context, h *host) Result {
	if h.PortFirst == 0 {
		return nothing()
	}
	total, free := h.PortLast-h.PortFirst+1, 0
	for port := h.PortFirst; port <= h.PortLast && ctx.Err() == nil; port++ {
		err := bindable(ctx, net.JoinHostPort(h.BindHost, strconv.Itoa(port)))
		if err == nil {
			free++
		} else if !errors.Is(err, syscall.EADDRINUSE) {
			return fail("see formations.bind_host and formations.port_range_start",
				"port %d cannot be bound: %s", port, err)
		}
	}
	const fix = "widen formations.port_range_start and port_range_end, or stop what has the ports"
	switch {
	case free == 0 && h.reached.Ports == 0:
		return fail(fix, "none of %d-%d is free", h.PortFirst, h.PortLast)
	case free < fewPorts:
		return warn(fix, "%d of the ports %d-%d are free", free, h.PortFirst, h.PortLast)
	}
	return ok("%d of %d are free (%d-%d, on %s)", free, total, h.PortFirst, h.PortLast, h.BindHost)
}

// bindable tries to listen on an address.
func bindable(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
