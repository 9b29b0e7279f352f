// Command fakellm runs the scripted model server of package fakellm as a
// process of its own, for end-to-end tests and benchmarks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/agentformation/service/test/fakellm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fakellm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fakellm", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "loopback `address` to listen on")
	rules := flags.String("rules", "", "JSON `file` with rules")
	ready := flags.String("ready", "", "`file` to write the base URL to once the server listens")
	record := flags.Int("record", 0, "calls to keep with their bodies; negative keeps none")
	chunks := flags.Int("chunks", 0, "deltas of a streamed text")
	text := flags.String("text", "", "answer of every call that no rule matches")
	key := flags.String("key", "", "key that callers must show, each protocol in its own header")
	if err := flags.Parse(args); err != nil {
		return err
	}
	srv := fakellm.New(fakellm.Options{Key: *key, Record: *record, Chunks: *chunks, Text: *text})
	if err := load(srv, *rules); err != nil {
		return err
	}
	ln, err := listenLoopback(ctx, *listen)
	if err != nil {
		return err
	}
	url := "http://" + ln.Addr().String() + "/v1"
	if err := announce(url, *ready); err != nil {
		return errors.Join(err, ln.Close())
	}
	return srv.Run(ctx, ln)
}

func load(srv *fakellm.Server, path string) error {
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	list, err := fakellm.ParseRules(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return srv.Script(list)
}

// listenLoopback refuses other addresses: the server believes everybody.
func listenLoopback(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("listen address %q: want a loopback address, for example 127.0.0.1:9000", addr)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// announce prints the base URL and leaves it in a file that appears complete.
func announce(url, path string) error {
	fmt.Println(url)
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path+".tmp", []byte(url), 0o600); err != nil {
		return fmt.Errorf("announce the address: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("announce the address: %w", err)
	}
	return nil
}
