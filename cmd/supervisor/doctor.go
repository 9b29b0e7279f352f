package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/supervisor"
	"github.com/agentformation/service/pkg/supervisor/doctor"
	"github.com/agentformation/service/pkg/version"
)

// runtimeName is the program of the formations.
const runtimeName = "formation-runtime"

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check this host and a home on it, and say how to mend what is wrong",
		Long: `Check this host and a home on it, and say how to mend what is wrong.

It changes nothing. The exit code is 1 when something keeps the supervisor from
working; a warning means that it works less well or less safely than it could.`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.examination()
			if err != nil {
				return err
			}
			return a.printDoctor(doctor.Run(cmd.Context(), cfg))
		}),
	}
}

// examination says what the doctor is to look at: a home whose settings are
// wrong is looked at as far as it goes.
func (a *app) examination() (doctor.Config, error) {
	dir, err := filepath.Abs(a.homeDir())
	if err != nil {
		return doctor.Config{}, fmt.Errorf("find the home: %w", err)
	}
	cfg := doctor.Config{Home: dir, MaxHome: supervisor.MaxHome, Build: version.String()}
	if cfg.Program, err = os.Executable(); err != nil {
		return cfg, fmt.Errorf("find this program: %w", err)
	}
	cfg.Runtime = findRuntime(cfg.Program)
	if r, err := findRunning(dir); err == nil {
		cfg.PID = r.pid
		_ = r.close() // only looked at
	}
	cfg.Warnings, cfg.Settings = supervisor.CheckConfig(filepath.Join(dir, "config.yaml"))
	h, err := a.openHome()
	if err != nil {
		if cfg.Settings == nil {
			cfg.Settings = err // a variable of the environment
		}
		return cfg, nil
	}
	h.examine(&cfg)
	cfg.Reach = func(ctx context.Context) (doctor.Reached, error) { return a.reach(ctx, h) }
	return cfg, nil
}

// examine takes from the settings what is to be looked at.
func (h *home) examine(cfg *doctor.Config) {
	f := h.cfg.Formations
	cfg.Formations, cfg.Logs = h.absolute(f.Dir), h.absolute(f.LogsDir)
	cfg.BindHost, cfg.PortFirst, cfg.PortLast = f.BindHost, f.PortFirst, f.PortLast
	cfg.Listen = net.JoinHostPort(h.cfg.Server.Host, strconv.Itoa(h.cfg.Server.Port))
	cfg.OwnUsers, cfg.Limits = f.UserRange != nil, len(f.Limits) > 0 || f.DefaultMemory > 0
	if h.cfg.Server.TLS.On() {
		cfg.Certificate = h.absolute(h.cfg.Server.TLS.Cert)
		cfg.Secrets = append(cfg.Secrets, h.absolute(h.cfg.Server.TLS.Key))
	}
}

// reach asks the supervisor of the home what it is.
func (a *app) reach(ctx context.Context, h *home) (doctor.Reached, error) {
	t, err := a.targetOfHome(h.dir)
	if err != nil {
		return doctor.Reached{}, err
	}
	health, err := a.healthOf(ctx, h)
	if err != nil {
		return doctor.Reached{}, err
	}
	return doctor.Reached{
		URL: t.url, Version: health.Version, Formations: health.Formations, Ports: health.PortPool.Allocated,
	}, nil
}

// findRuntime looks where the supervisor looks: beside its program, and in PATH.
func findRuntime(program string) string {
	beside := filepath.Join(filepath.Dir(program), runtimeName)
	if _, err := os.Stat(beside); !errors.Is(err, fs.ErrNotExist) {
		return beside
	}
	found, err := exec.LookPath(runtimeName)
	if err != nil {
		return ""
	}
	return found
}

func (a *app) printDoctor(results []doctor.Result) error {
	count := map[doctor.Level]int{}
	for _, r := range results {
		count[r.Level]++
	}
	if err := a.printFindings(results, count); err != nil {
		return err
	}
	if count[doctor.Fail] > 0 {
		return errors.New("the supervisor cannot work well here: mend what failed")
	}
	return nil
}

func (a *app) printFindings(results []doctor.Result, count map[doctor.Level]int) error {
	if a.json() {
		return a.printJSON(map[string]any{
			"checks": results, "ok": count[doctor.OK], "warnings": count[doctor.Warn], "failures": count[doctor.Fail],
		})
	}
	for _, r := range results {
		tint := map[doctor.Level]colour{doctor.OK: green, doctor.Warn: yellow, doctor.Fail: red}[r.Level]
		found := strings.ReplaceAll(r.Found, "\n", "\n                   ")
		fmt.Fprintf(a.out, "%s  %-11s  %s\n", a.paint(tint, fmt.Sprintf("%-4s", r.Level)), r.Check, printable(found))
		if r.Fix != "" {
			fmt.Fprintf(a.out, "%19sfix: %s\n", "", printable(r.Fix))
		}
	}
	return a.result("%d ok, %d warnings, %d failures", count[doctor.OK], count[doctor.Warn], count[doctor.Fail])
}
