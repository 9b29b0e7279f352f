package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fleetSize is how many formations run while idle memory is read. Children
// share the pages of one program, so PSS falls with their number towards what
// is private to each, which is shown beside it.
const fleetSize = 8

// fleet is a supervisor with its formations.
type fleet struct {
	supervisor *process
	program    string // bin/supervisor
	home       string
}

// child is one formation as the supervisor lists it.
type child struct {
	ID     string `json:"id"`
	Port   int    `json:"port"`
	PID    int    `json:"pid"`
	Status string `json:"status"`
}

// measureFleet reads the memory of idle children under a supervisor, then
// kills one again and again and times its next answer.
func measureFleet(ctx context.Context, p plan, dir, model string, r *report) error {
	f, err := startFleet(ctx, p, dir, "")
	if err != nil {
		return err
	}
	defer f.supervisor.stop()
	for i := range fleetSize {
		id := fmt.Sprintf("bench-%d", i+1)
		formation := filepath.Join(dir, id)
		if err := writeFormation(formation, id, model); err != nil {
			return err
		}
		if _, err := output(ctx, f.program, "deploy", formation, "--home", f.home); err != nil {
			return err
		}
	}
	children, err := f.children(ctx)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := f.firstAnswer(ctx, c); err != nil {
			return err
		}
	}
	limit, err := startLimit(ctx, filepath.Join(dir, "limit"), model)
	if err != nil {
		return err
	}
	defer limit.stop()
	if err := limit.answers(ctx); err != nil {
		return err
	}
	if err := pause(ctx, p.idle); err != nil {
		return err
	}
	if err := f.readIdle(r, children, limit.pid); err != nil {
		return err
	}
	return f.timeKills(ctx, p, r)
}

func (f *fleet) readIdle(r *report, children []child, limit int) error {
	for _, c := range children {
		m, err := readMemory(c.PID)
		if err != nil {
			return err
		}
		r.idle.children = append(r.idle.children, m)
	}
	var err error
	if r.idle.supervisor, err = readMemory(f.supervisor.pid); err != nil {
		return err
	}
	r.idle.limit, err = readMemory(limit)
	return err
}

// idleResult is memory after the idle time.
type idleResult struct {
	children          []memory
	supervisor, limit memory
}

// child is the mean of the children.
func (i *idleResult) child() memory {
	var sum memory
	for _, m := range i.children {
		sum = sum.add(m)
	}
	n := int64(max(len(i.children), 1))
	return memory{pss: sum.pss / n, private: sum.private / n}
}

// healthySpell is longer than what the restart policy calls healthy, after
// which the next restart comes without a delay again.
const healthySpell = 11 * time.Second

// timeKills kills each child once per round and asks at once: the connection
// waits in the kernel until the next child accepts it.
func (f *fleet) timeKills(ctx context.Context, p plan, r *report) error {
	for round := range p.kills {
		if round > 0 {
			if err := pause(ctx, healthySpell); err != nil {
				return err
			}
		}
		children, err := f.children(ctx)
		if err != nil {
			return err
		}
		for _, c := range children {
			begin := time.Now()
			if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill a child: %w", err)
			}
			if err := f.firstAnswer(ctx, c); err != nil {
				return err
			}
			r.starts.killed = append(r.starts.killed, time.Since(begin))
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startFleet starts a supervisor with a home of its own; settings are further
// lines of the block "formations".
func startFleet(ctx context.Context, p plan, dir, settings string) (*fleet, error) {
	f := &fleet{program: filepath.Join(p.bin, "supervisor"), home: filepath.Join(dir, "home")}
	if _, err := output(ctx, f.program, "init", "--home", f.home, "--yes", "--no-models"); err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.configure(port, settings); err != nil {
		return nil, err
	}
	f.supervisor, err = launch(ctx, command{
		name: "supervisor", log: dir, path: f.program,
		args: []string{"serve", "--home", f.home},
	})
	if err != nil {
		return nil, err
	}
	err = f.supervisor.poll(ctx, 20*time.Second, func() error {
		_, err := f.children(ctx)
		return err
	})
	if err != nil {
		f.supervisor.stop()
		return nil, err
	}
	return f, nil
}

// configure lets the supervisor and the commands that call it use a free port,
// and formations end by themselves should this program be killed.
func (f *fleet) configure(port int, settings string) error {
	file := filepath.Join(f.home, "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("configure the supervisor: %w", err)
	}
	const portLine, block = "port: 7890\n", "formations:\n"
	for _, line := range []string{portLine, block} {
		if !strings.Contains(string(text), line) {
			return fmt.Errorf("configure the supervisor: no %q in %s", line, file)
		}
	}
	changed := strings.NewReplacer(portLine, fmt.Sprintf("port: %d\n", port), block, block+"  orphan_timeout: 30s\n"+settings).Replace(string(text))
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return fmt.Errorf("configure the supervisor: %w", err)
	}
	return nil
}

// children lists the formations with their processes.
func (f *fleet) children(ctx context.Context) ([]child, error) {
	text, err := output(ctx, f.program, "list", "--home", f.home, "--output", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Formations []child `json:"formations"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of formations %q: %w", text, err)
	}
	return list.Formations, nil
}

// firstAnswer waits until the formation answers one chat. Its port is open all
// the time, so a failed request is one that the dead child had accepted.
func (f *fleet) firstAnswer(ctx context.Context, c child) error {
	if c.Port == 0 || c.PID == 0 {
		return errors.New("the formation " + c.ID + " is " + c.Status)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", c.Port)
	request, done := chatRequest(addr, firstAgent, false, plainMessage)
	call := caller{addr: addr, request: request, done: done}
	defer call.close()
	return f.supervisor.poll(ctx, 20*time.Second, call.call)
}
