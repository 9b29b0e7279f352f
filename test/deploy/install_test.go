package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// result is how a run of the installer ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs deploy/install.sh with args in dir.
func run(t *testing.T, dir string, args ...string) result {
	t.Helper()
	return finish(t, exec.CommandContext(t.Context(), "sh", append([]string{deployed(t, "install.sh")}, args...)...), dir)
}

func finish(t *testing.T, cmd *exec.Cmd, dir string) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// good is run that wants success and silence on standard error.
func good(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, t.TempDir(), args...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("install.sh %v: code %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// tree maps every path below root to its mode and, for a file, its content.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		all[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			all[name] += " " + read(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// modes are the modes of a tree.
func modes(t *testing.T, root string) map[string]string {
	t.Helper()
	all := tree(t, root)
	for name, text := range all {
		all[name], _, _ = strings.Cut(text, " ")
	}
	return all
}

const (
	unitPath  = "/etc/systemd/system/supervisor.service"
	usersPath = "/usr/lib/sysusers.d/svc.conf"
	binPath   = "/usr/local/bin/supervisor"
	childPath = "/usr/local/bin/formation-runtime"
	homePath  = "/var/lib/svc"
	confPath  = "/etc/svc"
)

// installed is what an installation consists of.
var installed = map[string]string{
	"/etc": "drwxr-xr-x", "/etc/systemd": "drwxr-xr-x", "/etc/systemd/system": "drwxr-xr-x", unitPath: "-rw-r--r--",
	confPath: "drwxr-x---",
	"/usr":   "drwxr-xr-x", "/usr/lib": "drwxr-xr-x", "/usr/lib/sysusers.d": "drwxr-xr-x", usersPath: "-rw-r--r--",
	"/usr/local": "drwxr-xr-x", "/usr/local/bin": "drwxr-xr-x", binPath: "-rwxr-xr-x", childPath: "-rwxr-xr-x",
	"/var": "drwxr-xr-x", "/var/lib": "drwxr-xr-x", homePath: "drwx------",
}

func TestInstall_LeavesTheSameTreeHoweverOften(t *testing.T) {
	t.Parallel()
	bin, root := programs(t), t.TempDir()
	out := good(t, "--root", root, "--bin", bin)
	if diff := cmp.Diff(installed, modes(t, root)); diff != "" {
		t.Errorf("installed (-want +got):\n%s", diff)
	}
	if n := strings.Count(out, "installed "+root); n != 4 {
		t.Errorf("the first run tells of %d files:\n%s", n, out)
	}
	for path, from := range map[string]string{
		unitPath: deployed(t, "systemd/supervisor.service"), usersPath: deployed(t, "systemd/svc.conf"),
		binPath: bin + "/supervisor", childPath: bin + "/formation-runtime",
	} {
		if read(t, root+path) != read(t, from) {
			t.Errorf("%s is not %s", path, from)
		}
	}
	before, running := tree(t, root), inode(t, root+binPath)
	for range 2 {
		if out := good(t, "--root", root, "--bin", bin); strings.Contains(out, "installed "+root) {
			t.Errorf("a further run installs:\n%s", out)
		}
	}
	if diff := cmp.Diff(before, tree(t, root)); diff != "" {
		t.Errorf("after further runs (-first +now):\n%s", diff)
	}
	if inode(t, root+binPath) != running {
		t.Error("the same program was put in place anew")
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// The modes must not depend on who installs.
func TestInstall_DoesNotDependOnTheUmask(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask 077; exec sh "$0" "$@"`, deployed(t, "install.sh"), "--root", root, "--bin", programs(t))
	if r := finish(t, cmd, t.TempDir()); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if diff := cmp.Diff(installed, modes(t, root)); diff != "" {
		t.Errorf("installed (-want +got):\n%s", diff)
	}
}

func TestInstall_BringsUpToDateAndKeepsWhatTheAdministratorSet(t *testing.T) {
	t.Parallel()
	bin, root := programs(t), t.TempDir()
	good(t, "--root", root, "--bin", bin)
	kept := map[string]string{
		homePath + "/config.yaml":                         "server: {port: 7999}\n",
		homePath + "/registry.db":                         "data",
		homePath + "/formations/hello/state/memory.db":    "more data",
		confPath + "/environment":                         "OTEL_TRACES_EXPORTER=none\n",
		"/etc/systemd/system/supervisor.service.d/x.conf": "[Service]\nCPUQuota=50%\n",
	}
	for path, text := range kept {
		write(t, root+path, text, 0o640)
	}
	if err := os.Chmod(root+confPath, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, root+unitPath, "[Service]\nExecStart=/of/an/older/release\n", 0o600)
	old, running := read(t, root+binPath), inode(t, root+binPath)
	held, err := os.Open(root + binPath) // as a process that runs does
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	write(t, filepath.Join(bin, "supervisor"), "#!/bin/sh\necho the next release\n", 0o755)
	out := good(t, "--root", root, "--bin", bin)
	if read(t, root+binPath) == old || inode(t, root+binPath) == running {
		t.Error("the program was not replaced, or was written over while it runs")
	}
	text := make([]byte, len(old))
	if n, err := held.ReadAt(text, 0); err != nil || string(text[:n]) != old {
		t.Errorf("a process that runs the old program now reads %q, %v", text, err)
	}
	if read(t, root+unitPath) != read(t, deployed(t, "systemd/supervisor.service")) || modes(t, root)[unitPath] != "-rw-r--r--" {
		t.Error("the unit is not that of this release")
	}
	if strings.Contains(out, childPath) || !strings.Contains(out, binPath) || !strings.Contains(out, unitPath) {
		t.Errorf("what it tells is not what it did:\n%s", out)
	}
	for path, text := range kept {
		if read(t, root+path) != text || modes(t, root)[path] != "-rw-r-----" {
			t.Errorf("%s has changed", path)
		}
	}
	if got := modes(t, root)[confPath]; got != "drwxr-xr-x" {
		t.Errorf("the administrator's mode of %s is %s now", confPath, got)
	}
}

func TestInstall_UninstallRemovesWhatWasInstalledAndKeepsTheData(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/usr/local/bin/another", "x", 0o755)
	good(t, "--root", root, "--bin", programs(t))
	data := []string{homePath + "/config.yaml", confPath + "/environment", unitPath + ".d/x.conf"}
	for _, path := range data {
		write(t, root+path, "set by hand", 0o600)
	}
	want := tree(t, root)
	for _, path := range []string{unitPath, usersPath, binPath, childPath} {
		delete(want, path)
	}
	for range 2 { // the second has nothing to do and does not mind
		if out := good(t, "--uninstall", "--root", root); !strings.Contains(out, "is uninstalled\n") {
			t.Errorf("it tells %q", out)
		}
		if diff := cmp.Diff(want, tree(t, root)); diff != "" {
			t.Errorf("after the uninstallation (-want +got):\n%s", diff)
		}
	}
	// It comes back with its data.
	good(t, "--root", root, "--bin", programs(t))
	if read(t, root+data[0]) != "set by hand" {
		t.Error("the settings are lost")
	}
	if out := good(t, "--uninstall", "--purge", "--root", root); !strings.Contains(out, "with its data") {
		t.Errorf("it tells %q", out)
	}
	for _, path := range append(data, homePath, confPath, unitPath, unitPath+".d") {
		if _, err := os.Lstat(root + path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if read(t, root+"/usr/local/bin/another") != "x" {
		t.Error("a stranger's program is gone")
	}
}

func TestInstall_SaysWhatIsWrongAndDoesNothing(t *testing.T) {
	t.Parallel()
	half := t.TempDir()
	write(t, filepath.Join(half, "supervisor"), "", 0o755)
	plain := programs(t)
	if err := os.Chmod(filepath.Join(plain, "formation-runtime"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string // ROOT stands for a scratch root
		code int
		want string
	}{
		"unknown":          {[]string{"--root", "ROOT", "--prefix", "/opt"}, 2, "install: unknown argument --prefix; see --help"},
		"no flag":          {[]string{"--root", "ROOT", "now"}, 2, "unknown argument now"},
		"root alone":       {[]string{"--root"}, 2, "--root needs a directory"},
		"root empty":       {[]string{"--root", ""}, 2, "--root needs a directory"},
		"bin alone":        {[]string{"--root", "ROOT", "--bin"}, 2, "--bin needs a directory"},
		"purge alone":      {[]string{"--root", "ROOT", "--purge"}, 2, "--purge goes with --uninstall"},
		"one program":      {[]string{"--root", "ROOT", "--bin", half}, 1, half + "/formation-runtime is missing or no program"},
		"not executable":   {[]string{"--root", "ROOT", "--bin", plain}, 1, plain + "/formation-runtime is missing or no program"},
		"no such programs": {[]string{"--root", "ROOT", "--bin", "/nonexistent"}, 1, "/nonexistent/supervisor is missing or no program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			args := strings.Split(strings.ReplaceAll(strings.Join(tc.args, "\x00"), "ROOT", root), "\x00")
			r := run(t, t.TempDir(), args...)
			if r.code != tc.code || !strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("code %d, %q; want %d, one line with %q", r.code, r.stderr, tc.code, tc.want)
			}
			if got := tree(t, root); len(got) != 0 || r.stdout != "" {
				t.Errorf("it did something: %v %s", got, r.stdout)
			}
		})
	}
}

// Debian's package supervisor has a service of the same name.
func TestInstall_DoesNotHideAnotherPackagesService(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/usr/lib", "/lib"} {
		root := t.TempDir()
		other := root + dir + "/systemd/system/supervisor.service"
		write(t, other, "[Service]\n", 0o644)
		before := tree(t, root)
		r := run(t, t.TempDir(), "--root", root, "--bin", programs(t))
		if r.code != 1 || !strings.Contains(r.stderr, other+" belongs to a package") {
			t.Errorf("%+v", r)
		}
		if diff := cmp.Diff(before, tree(t, root)); diff != "" {
			t.Errorf("it did something all the same:\n%s", diff)
		}
	}
}

func TestInstall_TellsHowItIsUsed(t *testing.T) {
	t.Parallel()
	out := good(t, "--help")
	for _, flag := range []string{"--root DIR", "--bin DIR", "--no-start", "--uninstall", "--purge"} {
		if !strings.Contains(out, flag) {
			t.Errorf("the help lacks %s", flag)
		}
	}
	if strings.Contains(out, "#") || strings.Contains(out, "set -eu") {
		t.Errorf("the help is not only help:\n%s", out)
	}
}

// Nobody but root can install on the host itself, and root is not asked to here.
func TestInstall_OnTheHostNeedsRoot(t *testing.T) {
	t.Parallel()
	script, err := os.Open(deployed(t, "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	defer script.Close()
	for _, args := range [][]string{{"-s"}, {"-s", "--", "--uninstall", "--purge"}} {
		if _, err := script.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", args...)
		cmd.Stdin = script // which another user could not open by its name everywhere
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		if r := finish(t, cmd, "/"); r.code != 1 || r.stdout != "" || r.stderr != "install: run this as root, or with --root DIR\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestInstall_TakesARelativeRootAndANameWithSpaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := run(t, dir, "--root", "my root", "--bin", programs(t)); r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	if diff := cmp.Diff(installed, modes(t, filepath.Join(dir, "my root"))); diff != "" {
		t.Errorf("installed (-want +got):\n%s", diff)
	}
	if r := run(t, dir, "--uninstall", "--purge", "--root", "my root/"); r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	for name, mode := range modes(t, filepath.Join(dir, "my root")) {
		if !strings.HasPrefix(mode, "d") {
			t.Error(fmt.Sprint(name, " is left"))
		}
	}
}
