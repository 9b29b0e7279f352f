// Command bench measures the real programs beside a limit: a plain net/http
// handler that asks the same model server and inserts one row in SQLite per
// request. Both are loaded in turns within one run, so that their ratio means
// something on any machine. "make bench" calls it; nothing imports it.
//
// It starts everything itself, as processes of their own: the model server
// (test/fakellm), the limit handler, a formation-runtime, and a supervisor
// with formations. The load comes from this process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// plan is how long and how often things are measured.
type plan struct {
	form     string
	bin      string
	rounds   int           // times each server is loaded per case, in turns
	slice    time.Duration // of one load
	requests int           // most requests of one load
	starts   int           // times a start is measured
	kills    int           // rounds in which every child is killed once
	idle     time.Duration // before memory is read
}

var (
	short = plan{form: "short", rounds: 2, slice: 2500 * time.Millisecond, requests: 50_000, starts: 10, kills: 1, idle: 30 * time.Second}
	full  = plan{form: "full", rounds: 5, slice: 10 * time.Second, requests: 1_000_000, starts: 50, kills: 10, idle: 30 * time.Second}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "model":
			return serveModel(ctx)
		case "limit":
			return serveLimit(ctx, args[1:])
		}
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	long := flags.Bool("full", false, "measure longer")
	soak := flags.Int("soak", 0, "have one formation answer so many `turns` of three tool calls and watch it, instead of measuring")
	bin := flags.String("bin", "bin", "`directory` of the built programs")
	parts := flags.String("parts", "chat,tools,routing,starts,fleet,supervision,validate,embeddings", "comma-separated `list` of what to measure; less than all is not saved")
	out := flags.String("out", filepath.Join("test", "bench", "RESULTS.md"), "`file` for the results; \"\" writes none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := short
	if *long {
		p = full
	}
	var err error
	if p.bin, err = filepath.Abs(*bin); err != nil {
		return fmt.Errorf("find the programs: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the run: %w", err)
	}
	defer os.RemoveAll(dir)
	if *soak > 0 {
		return runSoak(ctx, p, dir, *soak)
	}
	r, err := measure(ctx, p, dir, strings.Split(*parts, ","))
	if err != nil {
		return err
	}
	if err := r.write(os.Stdout); err != nil || *out == "" || *parts != flags.Lookup("parts").DefValue {
		return err
	}
	return r.save(*out)
}

// part measures one thing into the report; it starts and stops what it needs
// in a directory of its own.
type part func(ctx context.Context, p plan, dir, model string, r *report) error

var allParts = map[string]part{"chat": measureChat, "tools": measureTools, "routing": measureRouting, "starts": measureStarts, "fleet": measureFleet, "supervision": measureSupervision, "validate": measureValidate, "embeddings": measureEmbeddings}

// measure runs the named parts with one model server.
func measure(ctx context.Context, p plan, dir string, parts []string) (*report, error) {
	r := &report{plan: p, begin: time.Now()}
	model, err := startModel(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer model.stop()
	for _, name := range parts {
		run, ok := allParts[name]
		if !ok {
			return nil, fmt.Errorf("there is no part %q; the parts are chat, tools, routing, starts, fleet, supervision, validate and embeddings", name)
		}
		if err := run(ctx, p, filepath.Join(dir, name), model.addr, r); err != nil {
			return nil, fmt.Errorf("measure %s: %w", name, err)
		}
	}
	r.took = time.Since(r.begin)
	return r, nil
}
