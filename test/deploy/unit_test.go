package deploy

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor"
)

// program finds a program of the systemd package.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: it belongs to the package systemd (for example: apt-get install systemd); nothing of it needs to run", err)
	}
	return path
}

// verify asks systemd what it thinks of a unit whose programs are there. Its
// exit code is 0 for a key that it does not know, so all that it says about the
// unit counts; it also talks about units of the host.
func verify(t *testing.T, text string, dropIns ...string) []string {
	t.Helper()
	dir := t.TempDir()
	bin := programs(t)
	path := filepath.Join(dir, "supervisor.service")
	write(t, path, strings.ReplaceAll(text, "/usr/local/bin", bin), 0o644)
	for _, name := range dropIns {
		write(t, filepath.Join(path+".d", filepath.Base(name)), read(t, deployed(t, name)), 0o644)
	}
	out, err := exec.CommandContext(t.Context(), program(t, "systemd-analyze"), "verify", path).CombinedOutput()
	var said []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "supervisor.service") {
			said = append(said, line)
		}
	}
	if err != nil && len(said) == 0 {
		t.Fatalf("systemd-analyze verify: %v\n%s", err, out)
	}
	return said
}

func TestUnit_SystemdUnderstandsAllOfIt(t *testing.T) {
	t.Parallel()
	text := read(t, deployed(t, "systemd/supervisor.service"))
	for _, dropIns := range [][]string{nil, {"systemd/own-users.conf"}} {
		if said := verify(t, text, dropIns...); len(said) > 0 {
			t.Errorf("with %v: %s", dropIns, said)
		}
	}
}

// What the test above would not see is a check that finds nothing.
func TestUnit_FaultsWouldBeFound(t *testing.T) {
	t.Parallel()
	text := read(t, deployed(t, "systemd/supervisor.service"))
	for name, tc := range map[string]struct{ old, fault, want string }{
		"unknown key":     {"WatchdogSec=", "WatchdogSecs=", "Unknown key"},
		"unknown section": {"[Install]", "[Instal]", "Unknown section"},
		"bad value":       {"KillMode=process", "KillMode=some", "ailed to parse"},
		"bad duration":    {"TimeoutStopSec=90", "TimeoutStopSec=ninety", "ailed to parse"},
		"no such program": {"/usr/local/bin/supervisor serve", "/nonexistent/supervisor serve", "not executable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := strings.Replace(text, tc.old, tc.fault, 1)
			if bad == text {
				t.Fatalf("the unit has no %q", tc.old)
			}
			if said := strings.Join(verify(t, bad), ""); !strings.Contains(said, tc.want) {
				t.Errorf("said %q, want %q", said, tc.want)
			}
		})
	}
}

func TestUnit_SaysWhatItsCommentsPromise(t *testing.T) {
	t.Parallel()
	u := parseUnit(t, read(t, deployed(t, "systemd/supervisor.service")))
	for key, want := range map[string]string{
		"Unit.StartLimitIntervalSec": "0",
		"Service.Type":               "notify", "Service.NotifyAccess": "main", "Service.WatchdogSec": "30",
		"Service.User": "svc", "Service.Group": "svc",
		"Service.ExecStart":  "/usr/local/bin/supervisor serve --home /var/lib/svc",
		"Service.ExecReload": "/bin/kill -HUP $MAINPID",
		"Service.KillMode":   "process", "Service.Restart": "always", "Service.OOMPolicy": "continue",
		"Service.Delegate": "yes", "Service.TasksMax": "infinity",
		"Service.StateDirectory": "svc", "Service.StateDirectoryMode": "0700", "Service.UMask": "0077",
		"Service.NoNewPrivileges": "yes", "Service.ProtectSystem": "strict", "Service.ProtectHome": "read-only",
		"Service.ProtectKernelTunables": "yes", "Service.ProtectKernelModules": "yes", "Service.ProtectKernelLogs": "yes",
		"Service.ProtectClock": "yes", "Service.ProtectHostname": "yes", "Service.PrivateDevices": "yes",
		"Service.LockPersonality": "yes", "Service.RestrictRealtime": "yes", "Service.RestrictSUIDSGID": "yes",
		"Service.CapabilityBoundingSet": "", "Service.AmbientCapabilities": "",
		"Service.RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
		"Install.WantedBy":                "multi-user.target",
	} {
		if got := u[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// Each of these would end formations that outlive their supervisor, or keep
	// them from their limits or their tools.
	for _, key := range []string{
		"PrivateTmp", "ProtectControlGroups", "MemoryDenyWriteExecute", "RestrictNamespaces", "SystemCallFilter",
		"PrivateNetwork", "RuntimeMaxSec", "BindsTo", "PartOf",
	} {
		if got, set := u["Service."+key]; set {
			t.Errorf("%s is %q, want it left out", key, got)
		}
	}
}

// Systemd must have more patience than the supervisor needs by its own settings.
func TestUnit_TimesFitTheDefaultSettings(t *testing.T) {
	t.Parallel()
	u := parseUnit(t, read(t, deployed(t, "systemd/supervisor.service")))
	after := func(key string) time.Duration {
		d, err := manifest.ParseDuration(u[key][0])
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	home := t.TempDir()
	if _, err := supervisor.Init(supervisor.InitOptions{Home: home}); err != nil {
		t.Fatal(err)
	}
	cfg, err := supervisor.LoadConfig(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := cfg.Formations
	if need, have := f.DrainTimeout+f.Deployment.ForceKillTimeout+20*time.Second, after("Service.TimeoutStopSec"); have < need {
		t.Errorf("TimeoutStopSec is %s, a stop may take %s", have, need)
	}
	// It is ready when the fleet is restored.
	if have := after("Service.TimeoutStartSec"); have < 2*f.Deployment.HealthCheck.Timeout {
		t.Errorf("TimeoutStartSec is %s, a formation may take %s to start", have, f.Deployment.HealthCheck.Timeout)
	}
}

func TestUnit_ItsUserIsMadeOfTheFileBesideIt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/etc/passwd", "", 0o644)
	write(t, root+"/etc/group", "", 0o644)
	out, err := exec.CommandContext(t.Context(), program(t, "systemd-sysusers"), "--root", root, deployed(t, "systemd/svc.conf")).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-sysusers: %v\n%s", err, out)
	}
	u := parseUnit(t, read(t, deployed(t, "systemd/supervisor.service")))
	user, group := u["Service.User"][0], u["Service.Group"][0]
	passwd, groups := read(t, root+"/etc/passwd"), read(t, root+"/etc/group")
	if !strings.HasPrefix(passwd, user+":") || !strings.Contains(passwd, ":/var/lib/"+u["Service.StateDirectory"][0]+":") || !strings.Contains(passwd, "nologin") {
		t.Errorf("user %q", passwd)
	}
	if !strings.HasPrefix(groups, group+":") {
		t.Errorf("group %q", groups)
	}
}

func TestUnit_OwnUsersNeedRootAndLittleElse(t *testing.T) {
	t.Parallel()
	u := parseUnit(t, read(t, deployed(t, "systemd/own-users.conf")))
	if got := u["Service.User"]; !slices.Equal(got, []string{"root"}) {
		t.Errorf("user %q", got)
	}
	for name := range strings.FieldsSeq(u["Service.CapabilityBoundingSet"][0]) {
		if slices.Contains([]string{"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_NET_ADMIN", "CAP_SYS_RAWIO"}, name) {
			t.Errorf("%s is root in all but name", name)
		}
	}
}
