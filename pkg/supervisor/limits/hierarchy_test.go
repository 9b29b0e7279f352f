package limits

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMounts_FindsTheHierarchies(t *testing.T) {
	t.Parallel()
	got := parseMounts(`31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/my\040memory ro - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
broken line
1 2 - cgroup2
`)
	want := []mount{
		{root: "/", point: "/sys/fs/cgroup/cpu", controllers: []string{"rw", "cpu", "cpuacct"}},
		{root: "/docker/abc", point: "/sys/fs/cgroup/my memory", controllers: []string{"rw", "memory"}},
		{root: "/", point: "/sys/fs/cgroup/unified", unified: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestMount_KnowsWhereAPathIsMounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		root, path, want string
	}{
		{"/", "/system.slice/svc.service", "/m/system.slice/svc.service"},
		{"/", "/", "/m"},
		{"/docker/abc", "/docker/abc", "/m"},
		{"/docker/abc", "/docker/abc/x", "/m/x"},
		{"/docker/abc", "/", "/m"}, // seen from inside
		{"/", "/../other", ""},     // outside of the namespace
		{"/", "", ""},
	} {
		got, ok := mount{root: c.root, point: "/m"}.dir(c.path)
		if !ok {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.path, c.root, got, c.want)
		}
	}
}

func TestParseOwn_KnowsBothVersions(t *testing.T) {
	t.Parallel()
	got := parseOwn("9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/system.slice/svc.service/supervisor\nbroken\n")
	want := map[string]string{"name=systemd": "/", "cpu": "/a:b", "cpuacct": "/a:b", "": "/system.slice/svc.service/supervisor"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// unified makes a directory that looks like a cgroup of version 2.
func unified(t *testing.T, dir, controllers string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestUnifiedParents_HandsTheControllersOfADelegatedUnitOn(t *testing.T) {
	t.Parallel()
	unit := unified(t, filepath.Join(t.TempDir(), "svc.service"), "cpuset cpu io memory pids")
	got, err := unifiedParents(unified(t, filepath.Join(unit, leaf), "cpu memory pids"))
	if err != nil {
		t.Fatal(err)
	}
	want := place{path: unit, unified: true}
	if diff := cmp.Diff(map[string]place{memory: want, pids: want, cpu: want}, got, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	text, err := os.ReadFile(filepath.Join(unit, "cgroup.subtree_control"))
	if err != nil || !strings.HasPrefix(string(text), "+") {
		t.Errorf("handed on: %q, %v", text, err)
	}
}

func TestUnifiedParents_TakesWhatIsOffered(t *testing.T) {
	t.Parallel()
	for controllers, want := range map[string][]string{"": nil, "hugetlb io": nil, "pids": {pids}} {
		got, err := unifiedParents(unified(t, filepath.Join(t.TempDir(), "own"), controllers))
		var names []string
		for name := range got {
			names = append(names, name)
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%q: %v, %v", controllers, names, err)
		}
	}
	if _, err := unifiedParents(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a directory that is no cgroup is taken")
	}
}

func TestMayMove_LeavesTheCgroupOfAUnitAlone(t *testing.T) {
	t.Parallel()
	if err := mayMove(unified(t, filepath.Join(t.TempDir(), "svc.service"), "")); err == nil || !strings.Contains(err.Error(), "DelegateSubgroup=supervisor") {
		t.Errorf("got %v", err)
	}
	dir := unified(t, filepath.Join(t.TempDir(), "session.scope"), "")
	if err := mayMove(dir); err == nil {
		t.Error("the cgroup of others may be left")
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("1\n"+strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mayMove(dir); err != nil {
		t.Error(err)
	}
}

func TestLocate_TakesVersion1FirstAndVersion2ForTheRest(t *testing.T) {
	t.Parallel()
	point := t.TempDir()
	unit := unified(t, filepath.Join(point, "unified/own"), "memory pids")
	if err := os.MkdirAll(filepath.Join(point, "memory/mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := locate([]mount{
		{root: "/", point: filepath.Join(point, "memory"), controllers: []string{"rw", memory}},
		{root: "/", point: filepath.Join(point, "cpu"), controllers: []string{"rw", cpu}}, // not there: not ours to write
		{root: "/", point: filepath.Join(point, "unified"), unified: true},
	}, map[string]string{memory: "/mine", cpu: "/", "": "/own"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]place{memory: {path: filepath.Join(point, "memory/mine")}, pids: {path: unit, unified: true}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(place{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSettings_SayTheSameInBothVersions(t *testing.T) {
	t.Parallel()
	l := Limits{Memory: 512 << 20, CPU: 1.5, Pids: 256}
	for name, c := range map[string]struct {
		unified bool
		want    map[string]string
	}{
		"version 1": {false, map[string]string{
			"memory.limit_in_bytes": "536870912", "memory.memsw.limit_in_bytes": "536870912", "pids.max": "256",
			"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000",
		}},
		"version 2": {true, map[string]string{
			"memory.max": "536870912", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "256", "cpu.max": "150000 100000",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file := range c.want {
				if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := place{path: dir, unified: c.unified}
			if err := (&group{dir: map[string]place{memory: p, pids: p, cpu: p}}).set(l); err != nil {
				t.Fatal(err)
			}
			for file, want := range c.want {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
					t.Errorf("%s is %q (%v), want %q", file, got, err, want)
				}
			}
		})
	}
}

func TestGroup_ReadsWhatTheKernelDid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"memory.events": "low 0\nmax 7\noom 3\noom_kill 2\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
		"pids.events": "max 11\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for unified, want := range map[bool]uint64{true: 2, false: 5} {
		p := place{path: dir, unified: unified}
		g := &group{dir: map[string]place{memory: p, pids: p}}
		if got := g.oomKills().read(); got != want {
			t.Errorf("%d kills, want %d", got, want)
		}
		if got := g.refusedForks().read(); got != 11 {
			t.Errorf("%d forks refused", got)
		}
	}
	if (*group)(nil).oomKills().read() != 0 || (*group)(nil).refusedForks().read() != 0 {
		t.Error("no cgroup counts something")
	}
}

func TestAdoptable_TakesOnlyTheFormationsOwn(t *testing.T) {
	t.Parallel()
	const hexes, ours = "0123456789abcdef", "formation-a-0123456789abcdef"
	mounts := []mount{
		{root: "/", point: "/m", controllers: []string{memory}},
		{root: "/", point: "/p", controllers: []string{pids}},
	}
	for name, c := range map[string]struct {
		memory, pids string
		want         []string
	}{
		"both":                {"/" + ours, "/x/" + ours, []string{"/m/" + ours, "/p/x/" + ours}},
		"one":                 {"/", "/" + ours, []string{"/p/" + ours}},
		"none":                {"/", "/user.slice", nil},
		"another's":           {"/formation-b-" + hexes, "/formation-a-b-" + hexes, nil},
		"a cgroup in ours":    {"/" + ours + "/tool", "/", nil},
		"no name that we use": {"/formation-a-0123456789ABCDEF", "/formation-a-", nil},
	} {
		g := adoptable("a", mounts, map[string]string{memory: c.memory, pids: c.pids})
		var got []string
		if g != nil {
			got = g.dirs()
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestGroup_OfVersion2IsKilledAndRemoved(t *testing.T) {
	t.Parallel()
	var point string
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range parseMounts(string(text)) {
		if m.unified {
			point = m.point
		}
	}
	dir := filepath.Join(point, "limits-test-"+strconv.Itoa(os.Getpid()))
	if point == "" || os.Mkdir(dir, 0o755) != nil {
		t.Skip("this process may make no cgroup of version 2")
	}
	g := &group{dir: map[string]place{pids: {path: dir, unified: true}}} // whether or not the controller is here
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo 0 >"+dir+"/cgroup.procs; setsid sleep 60 & sleep 60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "three processes are in the cgroup", func() bool { return len(g.procs()) == 3 })
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := g.remove(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the process ended well")
	}
	if exists(dir) {
		t.Error("the cgroup is left")
	}
}

func TestSweepGroups_RemovesWhatEarlierSupervisorsLeftOfTheFormationOnly(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	kept := []string{
		"formation-a1-01234567aaaa0000",      // another formation's
		"formation-a[1]-01234567bbbb0000",    // this supervisor's own
		"formation-a[1]-01234567nothexas",    // nobody's
		"formation-a[1]-76543210aaaa0000",    // another home's
		"formation-a[1]-b-01234567aaaa0000",  // another formation's
		"formation-a[1]-draft-01234567aaaa0", // nobody's
		"other",
	}
	for _, name := range append(kept, "formation-a[1]-01234567aaaa0000", "formation-a[1]-01234567aaaa0001") {
		if err := os.Mkdir(filepath.Join(parent, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sweepGroups(parent, groupPrefix+"a[1]-01234567", "bbbb")
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, kept) {
		t.Errorf("left are %v, want %v", left, kept)
	}
}

// Between Command and Started a cgroup is empty, so that anybody could remove it.
func TestGuard_LeavesTheCgroupOfALaunchInProgressAlone(t *testing.T) {
	t.Parallel()
	needCgroup(t, pids)
	one, home, draft := newHouse(t, Limits{}), newHouse(t, Limits{}), newHouse(t, Limits{})
	home.ID = one.ID // another supervisor with a formation of this id
	draft.ID, draft.RunDir = one.ID+"-draft", one.RunDir
	seen := make(map[string]bool)
	for _, g := range []*Guard{one.guard(t), one.guard(t), home.guard(t), draft.guard(t)} { // the second as in an update
		defer g.Ended()
		if err := g.Command(exec.Command(g.cfg.Stage)); err != nil {
			t.Fatal(err)
		}
		for _, dir := range g.run.group.dirs() {
			if seen[dir] {
				t.Errorf("%s is shared", dir)
			}
			seen[dir] = true
		}
		for dir := range seen {
			if !exists(dir) {
				t.Errorf("%s is gone", dir)
			}
		}
	}
}

func TestGuard_SweepsTheCgroupThatAKilledSupervisorLeft(t *testing.T) {
	t.Parallel()
	parent := needCgroup(t, pids)
	h := newHouse(t, Limits{})
	another := "0000"
	if another == selfMark() {
		another = "1111"
	}
	left := filepath.Join(parent.path, groupPrefix+h.ID+"-"+digits(h.StateDir, 8)+another+"0000")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	g := h.guard(t)
	defer g.Ended()
	if err := g.Command(exec.Command(g.cfg.Stage)); err != nil {
		t.Fatal(err)
	}
	if exists(left) {
		t.Errorf("%s is left", left)
		_ = os.Remove(left)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	got, err := parseStat("42 (a) b (c)) S 7 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 12345 1000 100 18446744073709551615\n")
	want := stat{state: 'S', parent: 7, processGrp: 40, threads: 3, start: 12345}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, text := range []string{"", "42 (a", "42 (a) S 7", "42 (a) S x 40 40 0 -1 0 1 0 0 0 0 0 0 0 20 0 3 0 12345"} {
		if got, err := parseStat(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestKilobytes_AddsTheNamedLines(t *testing.T) {
	t.Parallel()
	text := "Name:\tx\nRssAnon:\t    1024 kB\nRssAnonymous: 7 kB\nRssShmem:\t 8 kB\nVmSwap: x kB\n"
	if got := kilobytes(text, "RssAnon", "RssShmem", "VmSwap"); got != 1032<<10 {
		t.Errorf("got %d", got)
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add("42 (a) S 7 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 12345")
	f.Add("32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct")
	f.Add("4:cpu,cpuacct:/a:b\n0::/x\n")
	f.Add("RssAnon: 1 kB\n")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = parseStat(text)
		own := parseOwn(text)
		for _, m := range parseMounts(text) {
			_, _ = m.dir(own[""])
		}
		_ = kilobytes(text, "RssAnon")
	})
}

func TestDiskUse_CountsAFileOfSeveralNamesOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before := diskUse(dir, "", filepath.Join(dir, "missing"))
	if before < 1<<20 || before > 2<<20 {
		t.Errorf("a file of 1 MiB takes up %d bytes", before)
	}
	if err := os.Link(path, filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	if after := diskUse(dir); after != before {
		t.Errorf("with a second name it takes up %d bytes, %d before", after, before)
	}
}
