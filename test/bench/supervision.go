package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// The aims of supervision.
const (
	aimKilled     = 50 * time.Millisecond
	aimFleetWork  = time.Second // processor time to start manyFormations
	aimSupervisor = 40 << 20
	aimProxyRate  = 0.8
	aimProxyCost  = 200 * time.Microsecond
)

// killLoop is how often one child is killed, and manyFormations how many start
// at once.
const (
	killLoop       = 50
	manyFormations = 50
	proxyConc      = 16
)

// supervisionResult is what one supervisor costs and how fast it is.
type supervisionResult struct {
	killed  []time.Duration // SIGKILL to the next answer
	refused int             // connections refused meanwhile
	// many formations: from the supervisor's start until all answer.
	fleetWall, fleetWork time.Duration
	supervisor           memory // with many formations, under no load
	// The same chat directly and through the proxy, at concurrency 16 and 1.
	direct, proxied       sample
	directOne, proxiedOne sample
}

// measureSupervision times what a supervisor does for its formations: the proxy,
// the replacement of a dead child, the start of many.
func measureSupervision(ctx context.Context, p plan, dir, model string, r *report) error {
	// The restart policy slows a loop of crashes down by design; here it is ours.
	f, err := startFleet(ctx, p, dir, "  restart:\n    max: 1000000\n    base_ms: 1\n    max_ms: 1\n")
	if err != nil {
		return err
	}
	defer func() { f.supervisor.stop() }()
	s := &supervisionResult{}
	r.supervision = s
	if err := f.deployMany(ctx, dir, model); err != nil {
		return err
	}
	children, err := f.children(ctx)
	if err != nil {
		return err
	}
	if err := f.measureProxy(ctx, p, children[0], s); err != nil {
		return err
	}
	if err := f.killAgain(ctx, s); err != nil {
		return err
	}
	return f.restartAll(ctx, p, s)
}

func (f *fleet) deployMany(ctx context.Context, dir, model string) error {
	for i := range manyFormations {
		id := fmt.Sprintf("many-%d", i+1)
		formation := filepath.Join(dir, id)
		if err := writeFormation(formation, id, model); err != nil {
			return err
		}
		if _, err := output(ctx, f.program, "deploy", formation, "--home", f.home); err != nil {
			return err
		}
	}
	return nil
}

// measureProxy loads one formation directly and through the supervisor, in
// turns.
func (f *fleet) measureProxy(ctx context.Context, p plan, c child, s *supervisionResult) error {
	address, err := os.ReadFile(filepath.Join(f.home, "run", "address"))
	if err != nil {
		return fmt.Errorf("find the supervisor: %w", err)
	}
	own := fmt.Sprintf("127.0.0.1:%d", c.Port)
	request, done := chatRequest(own, firstAgent, false, plainMessage)
	direct := target{addr: own, pid: c.PID, request: request, done: done}
	proxied := direct
	proxied.addr = strings.TrimSpace(string(address))
	proxied.request = bytes.Replace(request, []byte("POST /v1/chat"), []byte("POST /api/"+c.ID+"/v1/chat"), 1)
	for range 2 * p.rounds {
		for _, m := range []struct {
			target
			conc int
			into *sample
		}{
			{direct, proxyConc, &s.direct},
			{proxied, proxyConc, &s.proxied},
			{direct, 1, &s.directOne},
			{proxied, 1, &s.proxiedOne},
		} {
			got, err := load{conc: m.conc, slice: p.slice / 2, requests: p.requests}.run(ctx, m.target)
			if err != nil {
				return err
			}
			m.into.add(got)
		}
	}
	return nil
}

// killAgain kills one child again and again, and asks at once over a new
// connection, which waits in the kernel until the next child accepts it.
func (f *fleet) killAgain(ctx context.Context, s *supervisionResult) error {
	for range killLoop {
		children, err := f.children(ctx)
		if err != nil {
			return err
		}
		c := children[len(children)-1]
		if c.PID == 0 {
			return errors.New("the formation " + c.ID + " is " + c.Status)
		}
		begin := time.Now()
		if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill a child: %w", err)
		}
		err = f.supervisor.poll(ctx, 20*time.Second, func() error {
			err := f.askHealth(c)
			if errors.Is(err, syscall.ECONNREFUSED) {
				s.refused++
			}
			return err
		})
		if err != nil {
			return err
		}
		s.killed = append(s.killed, time.Since(begin))
	}
	return nil
}

// askHealth asks a formation for its health over a new connection.
func (f *fleet) askHealth(c child) error {
	addr := fmt.Sprintf("127.0.0.1:%d", c.Port)
	call := caller{
		addr: addr, done: []byte(`"status"`),
		request: fmt.Appendf(nil, "GET /v1/health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", addr),
	}
	defer call.close()
	return call.call()
}

// restartAll stops the supervisor with its children and starts it again.
func (f *fleet) restartAll(ctx context.Context, p plan, s *supervisionResult) error {
	children, err := f.children(ctx)
	if err != nil {
		return err
	}
	f.supervisor.stop()
	begin := time.Now()
	f.supervisor, err = launch(ctx, command{
		name: "supervisor", log: filepath.Dir(f.home), path: f.program, args: []string{"serve", "--home", f.home},
	})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(children))
	for i, c := range children {
		wg.Go(func() {
			errs[i] = f.supervisor.poll(ctx, 30*time.Second, func() error { return f.askHealth(c) })
		})
	}
	wg.Wait()
	s.fleetWall = time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	children, err = f.children(ctx)
	if err != nil {
		return err
	}
	for _, pid := range append(pidsOf(children), f.supervisor.pid) {
		used, err := cpuTime(pid)
		if err != nil {
			return err
		}
		s.fleetWork += used
	}
	if err := pause(ctx, p.idle/6); err != nil {
		return err
	}
	s.supervisor, err = readMemory(f.supervisor.pid)
	return err
}

func pidsOf(children []child) []int {
	pids := make([]int, len(children))
	for i, c := range children {
		pids[i] = c.PID
	}
	return pids
}

// write prints the results, each beside its aim.
func (s *supervisionResult) write(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "supervision\tmeasured\taim\t")
	fmt.Fprintf(w, "SIGKILL to next answer, loop of %d: median\t%s\t< %s\t\n", len(s.killed), ms(quantile(s.killed, .5)), ms(aimKilled))
	fmt.Fprintf(w, "p99\t%s\t\t\n", ms(quantile(s.killed, .99)))
	fmt.Fprintf(w, "connections refused meanwhile\t%d\t0\t\n", s.refused)
	fmt.Fprintf(w, "%d formations from the supervisor's start until all answer\t%s\t\t\n", manyFormations, ms(s.fleetWall))
	fmt.Fprintf(w, "processor time of that, supervisor and children\t%s\t< %s\t\n", ms(s.fleetWork), ms(aimFleetWork))
	fmt.Fprintf(w, "supervisor with %d formations, PSS\t%s\t< %s\t\n", manyFormations, mb(s.supervisor.pss), mb(aimSupervisor))
	fmt.Fprintf(w, "chat through the proxy, concurrency %d: throughput of the direct one\t%.2f\t> %.2f\t\n",
		proxyConc, s.proxied.rate()/s.direct.rate(), aimProxyRate)
	cost := quantile(s.proxiedOne.latency, .5) - quantile(s.directOne.latency, .5)
	fmt.Fprintf(w, "added at the median, concurrency 1\t%s\t< %s\t\n", ms(cost), ms(aimProxyCost))
	fmt.Fprintf(w, "failed requests of these loads\t%d\t0\t\n", s.direct.errors+s.proxied.errors+s.directOne.errors+s.proxiedOne.errors)
	_ = w.Flush() // a Builder takes everything
	b.WriteString("\n")
}
