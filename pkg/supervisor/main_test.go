package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestMain(m *testing.M) {
	if home := os.Getenv(programEnv); home != "" {
		os.Exit(program(home))
	}
	deploytest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

// programEnv makes the test binary a supervisor of the home that it names, as
// "supervisor serve" is, children included.
const programEnv = "SUPERVISOR_TEST_HOME"

// The children are always this binary, wherever the supervisor's own program
// lies.
const runtimeEnv = "SUPERVISOR_TEST_RUNTIME"

func program(home string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := serveHome(ctx, home); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveHome(ctx context.Context, home string) error {
	cfg, err := LoadConfig(home, nil)
	if err != nil {
		return err
	}
	log, closer, err := cfg.OpenLog(Terminal{Writer: os.Stdout}, Terminal{Writer: os.Stderr})
	if err != nil {
		return err
	}
	defer closer.Close()
	cfg.Log = log
	cfg.Runtime = os.Getenv(runtimeEnv)
	cfg.LookupEnv = func(name string) (string, bool) {
		if name == "DEPLOYTEST_CHILD" {
			return "1", true
		}
		return os.LookupEnv(name)
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.Self = Self{Path: path, Args: os.Args, Env: os.Environ()}
	cfg.Reload = make(chan os.Signal, 1)
	signal.Notify(cfg.Reload, syscall.SIGHUP)
	s, err := New(cfg)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
