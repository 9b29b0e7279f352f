package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// instruction is one of a Dockerfile: RUN, and the rest of its line.
type instruction struct{ name, args string }

// stages parses a Dockerfile as far as ours goes: what stands before the first
// FROM, then each stage.
func stages(t *testing.T, text string) [][]instruction {
	t.Helper()
	text = regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	all := [][]instruction{nil}
	for line := range strings.Lines(text) {
		name, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "":
			continue
		case name != strings.ToUpper(name):
			t.Fatalf("no instruction: %q", line)
		case name == "FROM":
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], instruction{name, args})
	}
	return all
}

// all are the arguments of the instructions of one name.
func all(stage []instruction, name string) (args []string) {
	for _, i := range stage {
		if i.name == name {
			args = append(args, i.args)
		}
	}
	return args
}

// goVersion is the line of releases that go.mod demands: 1.26.
func goVersion(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^go (\d+\.\d+)(\.\d+)?$`).FindStringSubmatch(read(t, filepath.Join(repository(t), "go.mod")))
	if m == nil {
		t.Fatal("go.mod demands no version")
	}
	return m[1]
}

func TestImage_IsBuiltAsTheMakefileBuildsAndRunsAsNobodyInParticular(t *testing.T) {
	t.Parallel()
	parts := stages(t, read(t, deployed(t, "Dockerfile")))
	if len(parts) != 3 {
		t.Fatalf("%d stages, want one that builds and one that runs", len(parts)-1)
	}
	head, build, final := parts[0], parts[1], parts[2]
	if got := all(head, "ARG"); !slices.Contains(got, "GO_VERSION="+goVersion(t)) {
		t.Errorf("%q: the image's compiler is not that of go.mod, %s, and may not fetch another", got, goVersion(t))
	}
	for _, from := range append(all(build, "FROM"), all(final, "FROM")...) {
		if !strings.Contains(from, "${DEBIAN}") {
			t.Errorf("FROM %s: both stages must have the same C library", from)
		}
	}
	if got := all(build, "RUN"); !strings.HasPrefix(got[len(got)-1], "make build ") {
		t.Errorf("the programs are built by %q", got)
	}
	if got := all(final, "COPY"); !slices.Equal(got, []string{"--from=build /src/bin/supervisor /src/bin/formation-runtime /usr/local/bin/"}) {
		t.Errorf("the image holds %q", got)
	}
	user := all(final, "USER")
	if len(user) != 1 || !regexp.MustCompile(`^[1-9]\d+:[1-9]\d+$`).MatchString(user[0]) {
		t.Fatalf("user %q, want numbers, and not root's", user)
	}
	uid, gid, _ := strings.Cut(user[0], ":")
	made := all(final, "RUN")[0]
	if !strings.Contains(made, "--uid "+uid+" ") || !strings.Contains(made, "groupadd --gid "+gid+" ") {
		t.Errorf("USER %s is not the user that was made: %s", user[0], made)
	}
	for _, i := range final {
		if i.name == "COPY" || i.name == "ADD" || i.name == "RUN" {
			if strings.Contains(i.args, "chmod u+s") || strings.Contains(i.args, "secret") {
				t.Errorf("%s %s", i.name, i.args)
			}
		}
	}
}

func TestImage_ItsCommandEndsAsTheSupervisorAndShowsNoKey(t *testing.T) {
	t.Parallel()
	final := stages(t, read(t, deployed(t, "Dockerfile")))[2]
	var entry, command []string
	for into, args := range map[*[]string]string{&entry: all(final, "ENTRYPOINT")[0], &command: all(final, "CMD")[0]} {
		if err := json.Unmarshal([]byte(args), into); err != nil {
			t.Fatalf("%s is no list, so a shell would stand between: %v", args, err)
		}
	}
	// A supervisor that says how it was called.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "supervisor"), "#!/bin/sh\necho \"$$ $*\" >>\"$LOG\"\necho svc_sk_printed\n", 0o755)
	log := filepath.Join(dir, "log")
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "LOG=" + log}
	r := finish(t, cmd, dir)
	if r.code != 0 || strings.Count(r.stdout, "svc_sk_printed") != 1 {
		t.Errorf("%+v: want what serve says, not what init says", r)
	}
	calls := strings.Split(strings.TrimSpace(read(t, log)), "\n")
	if len(calls) != 2 || !strings.HasSuffix(calls[0], " init --yes --no-models --host 0.0.0.0") || !strings.HasSuffix(calls[1], " serve") {
		t.Fatalf("calls %q", calls)
	}
	if pid, _, _ := strings.Cut(calls[1], " "); cmd.Process == nil || pid != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("serve is process %s, not that which gets the signals", pid)
	}
	if entry[0] != "/usr/bin/tini" {
		t.Errorf("process 1 is %q", entry)
	}
}

// What is left out must not be needed, and what holds keys must be left out.
func TestImage_IsMadeOfNoLeftovers(t *testing.T) {
	t.Parallel()
	left := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(read(t, filepath.Join(repository(t), ".dockerignore")), ""))
	for _, name := range []string{".git", ".dev", ".make", "bin"} {
		if !slices.Contains(left, name) {
			t.Errorf("%s would be sent to the builder", name)
		}
	}
	for line := range strings.Lines(read(t, filepath.Join(repository(t), ".gitignore"))) {
		name := strings.Trim(strings.TrimSpace(line), "/")
		if !slices.Contains(left, name) && !slices.Contains(left, "**/"+name) {
			t.Errorf("git ignores %s, the image does not", name)
		}
	}
	for _, name := range []string{"Makefile", "go.mod", "scripts", "cmd", "pkg", "proto"} {
		if slices.Contains(left, name) {
			t.Errorf("the build needs %s", name)
		}
	}
}

// packaged is nfpm.yaml, as far as it matters here.
type packaged struct {
	Name      string   `yaml:"name"`
	Depends   []string `yaml:"depends"`
	Conflicts []string `yaml:"conflicts"`
	Contents  []struct {
		Src  string `yaml:"src"`
		Dst  string `yaml:"dst"`
		Info struct {
			Mode int `yaml:"mode"`
		} `yaml:"file_info"`
	} `yaml:"contents"`
	Scripts map[string]string `yaml:"scripts"`
}

func debianPackage(t *testing.T) packaged {
	t.Helper()
	var p packaged
	if err := yaml.Unmarshal([]byte(read(t, deployed(t, "nfpm.yaml"))), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPackage_HoldsWhatTheInstallerInstalls(t *testing.T) {
	t.Parallel()
	p := debianPackage(t)
	got := map[string]int{}
	for _, c := range p.Contents {
		got[c.Dst] = c.Info.Mode
		// These two directories are made by the build.
		if strings.HasPrefix(c.Src, "bin/") || strings.HasPrefix(c.Src, ".make/deb/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(repository(t), c.Src)); err != nil {
			t.Error(err)
		}
	}
	for path, mode := range map[string]int{
		"/usr/bin/supervisor": 0o755, "/usr/bin/formation-runtime": 0o755,
		"/usr/lib/systemd/system/supervisor.service": 0o644, usersPath: 0o644,
		"/usr/share/doc/" + p.Name + "/copyright": 0o644,
	} {
		if got[path] != mode {
			t.Errorf("%s has mode %o, want %o", path, got[path], mode)
		}
	}
	if !slices.Contains(p.Conflicts, "supervisor") || !slices.Contains(p.Depends, "libc6 (>= ${GLIBC})") {
		t.Errorf("depends %q, conflicts %q", p.Depends, p.Conflicts)
	}
	for _, script := range p.Scripts {
		r := finish(t, exec.CommandContext(t.Context(), "sh", "-n", filepath.Join(repository(t), script)), t.TempDir())
		if r.code != 0 {
			t.Errorf("%s: %s", script, r.stderr)
		}
	}
}

// The unit is changed on its way into the package, as scripts/deb says.
func TestPackage_ItsUnitNamesThePackagesPrograms(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`(?m)^sed '([^']+)' deploy/systemd/supervisor.service >.make/deb/supervisor.service$`).
		FindStringSubmatch(read(t, filepath.Join(repository(t), "scripts", "deb")))
	if m == nil {
		t.Fatal("scripts/deb does not make the unit")
	}
	out, err := exec.CommandContext(t.Context(), "sed", m[1], deployed(t, "systemd/supervisor.service")).Output()
	if err != nil {
		t.Fatal(err)
	}
	u := parseUnit(t, string(out))
	for _, key := range []string{"Service.ExecStart", "Service.ExecStartPre"} {
		if !strings.HasPrefix(u[key][0], "/usr/bin/supervisor ") {
			t.Errorf("%s is %q", key, u[key])
		}
	}
	if strings.Contains(string(out), "/usr/local/") {
		t.Error("the unit still names /usr/local")
	}
}

// maintainer runs a script of the package for a scratch root, as dpkg does.
func maintainer(t *testing.T, root, script string, args ...string) result {
	t.Helper()
	if root == "" || root == "/" {
		t.Fatal("these scripts remove what they find")
	}
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{deployed(t, "deb/"+script)}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DPKG_ROOT=" + root}
	return finish(t, cmd, root)
}

func TestPackage_OnlyAPurgeTakesTheData(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	data := []string{homePath + "/config.yaml", confPath + "/environment", unitPath + ".d/x.conf"}
	for _, path := range data {
		write(t, root+path, "x", 0o600)
	}
	write(t, root+"/var/lib/another/file", "x", 0o600)
	for _, step := range [][]string{{"prerm", "upgrade", "2"}, {"postrm", "upgrade", "2"}, {"prerm", "remove"}, {"postrm", "remove"}} {
		if r := maintainer(t, root, step[0], step[1:]...); r.code != 0 {
			t.Errorf("%v: %+v", step, r)
		}
	}
	for _, path := range data {
		if read(t, root+path) != "x" {
			t.Errorf("%s is gone", path)
		}
	}
	if r := maintainer(t, root, "postrm", "purge"); r.code != 0 {
		t.Errorf("purge: %+v", r)
	}
	for _, path := range data {
		if _, err := os.Lstat(root + path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if read(t, root+"/var/lib/another/file") != "x" {
		t.Error("a stranger's file is gone")
	}
}

func TestPackage_DoesNotHideBehindAnInstallationByHand(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if r := maintainer(t, root, "preinst", "install"); r.code != 0 {
		t.Errorf("on a clean host: %+v", r)
	}
	good(t, "--root", root, "--bin", programs(t))
	if r := maintainer(t, root, "preinst", "install"); r.code != 1 || !strings.Contains(r.stderr, "install.sh --uninstall") {
		t.Errorf("beside an installation: %+v", r)
	}
	good(t, "--uninstall", "--root", root)
	if err := os.Symlink("/dev/null", root+unitPath); err != nil { // a masked service
		t.Fatal(err)
	}
	if r := maintainer(t, root, "preinst", "install"); r.code != 0 {
		t.Errorf("with a masked service: %+v", r)
	}
}
