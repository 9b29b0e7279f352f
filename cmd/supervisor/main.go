// Command supervisor serves formations and is the tool to work with them:
// "supervisor serve" runs the daemon, the other commands call one.
//
// Each file is one command, a thin call of pkg/supervisor or pkg/client.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, newApp(), os.Args[1:]))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, a *app, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return a.explain(ctx, cmd, err)
}
