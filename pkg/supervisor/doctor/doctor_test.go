package doctor_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/doctor"
	"github.com/agentformation/service/test/testprogram"
)

// healthy is a home and a host without a fault that this test can arrange.
func healthy(t *testing.T) doctor.Config {
	t.Helper()
	root, home := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(home, "config.yaml"):                          "",
		filepath.Join(home, "formations/hello/state/keys"):          "",
		filepath.Join(root, "proc/self/limits"):                     "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n",
		filepath.Join(root, "proc/self/cgroup"):                     "0::/svc\n",
		filepath.Join(root, "sys/fs/cgroup/svc/cgroup.procs"):       "",
		filepath.Join(root, "sys/fs/cgroup/svc/cgroup.controllers"): "cpuset cpu memory pids\n",
		filepath.Join(root, "run/systemd/system/x"):                 "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	runtime := filepath.Join(home, "formation-runtime")
	if err := testprogram.Write(runtime, []byte("#!/bin/sh\necho formation-runtime version 1.2.3 \\(abc\\)\n")); err != nil {
		t.Fatal(err)
	}
	return doctor.Config{
		Home: home, MaxHome: 500, Formations: filepath.Join(home, "formations"), Logs: filepath.Join(home, "logs"),
		BindHost: "127.0.0.1", PortFirst: 42000, PortLast: 42050, Listen: "127.0.0.1:0", OwnUsers: os.Geteuid() == 0, Limits: true,
		Program: "supervisor", Build: "1.2.3 (abc)", Runtime: runtime, Root: root,
		Reach: func(context.Context) (doctor.Reached, error) {
			return doctor.Reached{URL: "http://here", Version: "1.2.3", Formations: 2, Ports: 2}, nil
		},
	}
}

// find runs all checks and returns the result of one.
func find(t *testing.T, cfg doctor.Config, check string) (doctor.Result, bool) {
	t.Helper()
	for _, r := range doctor.Run(t.Context(), cfg) {
		if r.Check == check {
			return r, true
		}
	}
	return doctor.Result{}, false
}

func TestRun_FindsNoFaultWhereThereIsNone(t *testing.T) {
	t.Parallel()
	hosts := map[string]bool{ // what the machine of the test decides
		"pidfd": true, "landlock": true, "bubblewrap": true, "clock": true, "disk": true,
	}
	seen := 0
	for _, r := range doctor.Run(t.Context(), healthy(t)) {
		seen++
		if r.Level != doctor.OK && !hosts[r.Check] {
			t.Errorf("%s: %s: %s", r.Check, r.Level, r.Found)
		}
		if r.Level != doctor.OK && r.Fix == "" {
			t.Errorf("%s: %s without a way to mend it", r.Check, r.Found)
		}
	}
	if seen != 16 { // no certificate is set
		t.Errorf("%d checks", seen)
	}
}

// runsAs lets a supervisor of another user run, like this process otherwise.
func runsAs(t *testing.T, cfg *doctor.Config, uid int) {
	t.Helper()
	cfg.PID, cfg.OwnUsers = 77, false
	for _, name := range []string{"limits", "cgroup"} {
		if err := os.MkdirAll(filepath.Join(cfg.Root, "proc/77"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(cfg.Root, "proc/self", name), filepath.Join(cfg.Root, "proc/77", name)); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("Name:\tsupervisor\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid)
	if err := os.WriteFile(filepath.Join(cfg.Root, "proc/77/status"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRun_TellsEachFault(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	port, err := strconv.Atoi(strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:"))
	if err != nil {
		t.Fatal(err)
	}
	program := func(t *testing.T, path, text string) {
		t.Helper()
		if err := testprogram.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write := func(t *testing.T, path, text string, mode fs.FileMode) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		spoil      func(t *testing.T, cfg *doctor.Config)
		check      string
		level      doctor.Level
		found, fix string
	}{
		"no settings": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Settings = fs.ErrNotExist },
			"settings", doctor.Fail, "does not exist", "supervisor init --home",
		},
		"faulty settings": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Settings = errors.New("config.yaml:3:1: prt: unknown key") },
			"settings", doctor.Fail, "config.yaml:3:1", "config check",
		},
		"idle settings": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Warnings = []string{"x has no effect"} },
			"settings", doctor.Warn, "x has no effect", "remove",
		},
		"long home": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.MaxHome = 10 },
			"home", doctor.Fail, "at most 10", "shorter",
		},
		"open settings": {
			func(t *testing.T, cfg *doctor.Config) { write(t, filepath.Join(cfg.Home, "config.yaml"), "", 0o644) },
			"permissions", doctor.Fail, "-rw-r--r-- ", "chmod",
		},
		"open keys": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Formations, "hello/state/keys"), "", 0o640)
			},
			"permissions", doctor.Fail, "hello/state/keys", "chmod",
		},
		"open certificate's key": {
			func(t *testing.T, cfg *doctor.Config) {
				key := filepath.Join(cfg.Home, "key.pem")
				write(t, key, "", 0o644)
				cfg.Secrets = []string{key}
			},
			"permissions", doctor.Fail, "key.pem", "chmod",
		},
		"no supervisor": {
			func(_ *testing.T, cfg *doctor.Config) {
				cfg.Reach = func(context.Context) (doctor.Reached, error) { return doctor.Reached{}, errors.New("refused") }
			},
			"supervisor", doctor.Warn, "none runs", "supervisor serve --home",
		},
		"silent supervisor": {
			func(_ *testing.T, cfg *doctor.Config) {
				cfg.PID = os.Getpid()
				cfg.Reach = func(context.Context) (doctor.Reached, error) { return doctor.Reached{}, errors.New("refused") }
			},
			"supervisor", doctor.Fail, "does not answer: refused", "log",
		},
		"older supervisor": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Build = "1.3.0 (def)" },
			"supervisor", doctor.Warn, "version 1.2.3", "supervisor reload",
		},
		"no runtime": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Runtime = "" },
			"runtime", doctor.Fail, "neither beside", "beside the supervisor",
		},
		"broken runtime": {
			func(t *testing.T, cfg *doctor.Config) { program(t, cfg.Runtime, "#!/bin/sh\nexit 3\n") },
			"runtime", doctor.Fail, "exit status 3", "beside the supervisor",
		},
		"other runtime": {
			func(t *testing.T, cfg *doctor.Config) {
				program(t, cfg.Runtime, "#!/bin/sh\necho formation-runtime version 1.2.2\n")
			},
			"runtime", doctor.Warn, "1.2.2", "same release",
		},
		"taken address": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Listen = taken.Addr().String() },
			"address", doctor.Fail, "address already in use", "server.port",
		},
		"taken ports": {
			func(_ *testing.T, cfg *doctor.Config) {
				cfg.PortFirst, cfg.PortLast = port, port
				cfg.Reach = nil
			},
			"ports", doctor.Fail, "none of", "port_range_start",
		},
		"few ports": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.PortLast = cfg.PortFirst + 2 },
			"ports", doctor.Warn, "of the ports", "port_range_start",
		},
		"wrong address for ports": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.BindHost = "192.0.2.1" },
			"ports", doctor.Fail, "cannot be bound", "bind_host",
		},
		"no file for the certificate": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Certificate = filepath.Join(cfg.Home, "none.pem") },
			"certificate", doctor.Fail, "cannot be read", "server.tls.cert",
		},
		"no certificate": {
			func(_ *testing.T, cfg *doctor.Config) { cfg.Certificate = filepath.Join(cfg.Home, "config.yaml") },
			"certificate", doctor.Fail, "no PEM block", "server.tls.cert",
		},
		"ended certificate": {
			func(t *testing.T, cfg *doctor.Config) { cfg.Certificate = certificate(t, -time.Hour) },
			"certificate", doctor.Fail, "ended on", "renew",
		},
		"ending certificate": {
			func(t *testing.T, cfg *doctor.Config) { cfg.Certificate = certificate(t, 24*time.Hour) },
			"certificate", doctor.Warn, "ends on", "renew",
		},
		"good certificate": {
			func(t *testing.T, cfg *doctor.Config) { cfg.Certificate = certificate(t, 1000*time.Hour) },
			"certificate", doctor.OK, "valid until", "",
		},
		"few files": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Root, "proc/self/limits"), "Max open files  256  4096  files\n", 0o600)
			},
			"files", doctor.Warn, "at most 4096", "LimitNOFILE",
		},
		"no files": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Root, "proc/self/limits"), "Max open files  256  256  files\n", 0o600)
			},
			"files", doctor.Fail, "at most 256", "LimitNOFILE",
		},
		"the service's user": {
			func(t *testing.T, cfg *doctor.Config) { runsAs(t, cfg, 54321) },
			"user", doctor.OK, "54321, for formations too", "",
		},
		"own users without root": {
			func(t *testing.T, cfg *doctor.Config) {
				runsAs(t, cfg, 54321)
				cfg.OwnUsers = true
			},
			"user", doctor.Fail, "54321, which may not run formations as users of their own", "own-users.conf",
		},
		"a cgroup of another user": {
			func(t *testing.T, cfg *doctor.Config) { runsAs(t, cfg, 54321) },
			"cgroup", doctor.Warn, "version 2, not ours to divide: memory, pids, cpu", "Delegate=yes",
		},
		"no cgroups": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Root, "proc/self/cgroup"), "", 0o600)
			},
			"cgroup", doctor.Warn, "no cgroups", "Delegate=yes",
		},
		"half a cgroup": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Root, "sys/fs/cgroup/svc/cgroup.controllers"), "memory\n", 0o600)
			},
			"cgroup", doctor.Warn, "version 2, not ours to divide: pids, cpu", "Delegate=yes",
		},
		"half a cgroup and no limits": {
			func(t *testing.T, cfg *doctor.Config) {
				cfg.Limits = false
				write(t, filepath.Join(cfg.Root, "sys/fs/cgroup/svc/cgroup.controllers"), "memory\n", 0o600)
			},
			"cgroup", doctor.OK, "no limits are set", "",
		},
		"old cgroups": {
			func(t *testing.T, cfg *doctor.Config) {
				write(t, filepath.Join(cfg.Root, "proc/self/cgroup"), "4:cpu,cpuacct:/a\n3:memory:/a\n2:pids:/a\n0::/\n", 0o600)
				for _, dir := range []string{"cpu,cpuacct", "memory", "pids"} {
					write(t, filepath.Join(cfg.Root, "sys/fs/cgroup", dir, "a/tasks"), "", 0o600)
				}
			},
			"cgroup", doctor.OK, "version 1: memory, pids, cpu can be limited", "",
		},
		"no systemd": {
			func(t *testing.T, cfg *doctor.Config) {
				if err := os.RemoveAll(filepath.Join(cfg.Root, "run")); err != nil {
					t.Fatal(err)
				}
			},
			"systemd", doctor.Warn, "does not run systemd", "supervisor serve",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := healthy(t)
			tc.spoil(t, &cfg)
			got, ok := find(t, cfg, tc.check)
			if !ok || got.Level != tc.level || !strings.Contains(got.Found, tc.found) || !strings.Contains(got.Fix, tc.fix) || (got.Fix == "") != (tc.fix == "") {
				t.Errorf("got %+v, want %s with %q and %q", got, tc.level, tc.found, tc.fix)
			}
		})
	}
}

// certificate makes one that ends so much from now.
func certificate(t *testing.T, left time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
