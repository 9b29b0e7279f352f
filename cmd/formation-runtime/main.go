// Command formation-runtime runs one formation: as the child of a supervisor,
// which starts it without arguments and speaks control.v1 to it, or alone with
// "formation-runtime serve --dir DIR".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
)

// memoryLimit is where the growth of the heap would begin to cost.
const memoryLimit = 256 << 20

func main() {
	err := stage()
	if err == nil {
		var done bool
		if done, err = extract(); done && err == nil {
			return
		}
	}
	if err == nil {
		err = settle(memoryLimit)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "formation-runtime:", err)
		os.Exit(1)
	}
	// First of all: nothing may inherit the listening socket, and a panic must
	// reach the error log.
	inherited, err := control.Inherit()
	syscall.Umask(0o077) // what a formation writes is its own
	// A file over the limit of the process is an error of that write, like a full
	// disk, and not its end. A channel that nobody reads: unlike with
	// signal.Ignore, tool processes start with the default action.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGXFSZ)
	debug.SetGCPercent(control.HeapGrowth)
	if err == nil {
		if inherited != nil {
			err = runChild(inherited)
		} else {
			err = execute()
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "formation-runtime:", err)
		os.Exit(1)
	}
}

// untilSignal returns a context that ends with SIGTERM or the given signals,
// and a function that ends it with a cause.
func untilSignal(log zerolog.Logger, more ...os.Signal) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(more, syscall.SIGTERM)...)
	go func() {
		s := <-signals
		log.Info().Stringer("signal", s).Msg("ending")
		cancel(context.Canceled)
	}()
	return ctx, cancel
}
