package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/control"
)

func TestNext_FirstAtOnceThenDoublesToTheMost(t *testing.T) {
	t.Parallel()
	p := Policy{Max: 100, Window: time.Minute, Base: 100 * time.Millisecond, MaxDelay: time.Second, Healthy: 10 * time.Second}
	var history []Exit
	now := time.Unix(0, 0)
	for i, want := range []int64{0, 100, 200, 400, 800, 1000, 1000, 1000} {
		exit := Exit{Time: now}
		delay, giveUp := p.Next(history, exit, 0)
		if delay.Milliseconds() != want || giveUp {
			t.Errorf("failure %d: delay %s, give up %v; want %d ms", i+1, delay, giveUp, want)
		}
		history = append(history, exit)
		now = now.Add(time.Second)
	}
}

func TestNext_JitterTakesUpToHalf(t *testing.T) {
	t.Parallel()
	p := DefaultPolicy()
	history := []Exit{{Time: time.Unix(0, 0)}}
	for rnd, want := range map[float64]int64{0: 100, 0.5: 75, 1: 50} {
		if got, _ := p.Next(history, Exit{Time: time.Unix(1, 0)}, rnd); got.Milliseconds() != want {
			t.Errorf("rnd %v: %s, want %d ms", rnd, got, want)
		}
	}
}

func TestNext_GivesUpByFailuresInTheWindow(t *testing.T) {
	t.Parallel()
	p := Policy{Max: 3, Window: time.Minute, Base: time.Second, MaxDelay: time.Second, Healthy: 10 * time.Second}
	at := func(seconds ...int) (exits []Exit) {
		for _, s := range seconds {
			exits = append(exits, Exit{Time: time.Unix(int64(s), 0)})
		}
		return exits
	}
	healthy := at(0, 1, 2)
	healthy[2].Served = 10 * time.Second
	served := Exit{Time: time.Unix(3, 0), Served: time.Hour}
	for name, c := range map[string]struct {
		history []Exit
		exit    Exit
		giveUp  bool
		delay   time.Duration
	}{
		"first":                           {nil, at(0)[0], false, 0},
		"third in the window":             {at(0, 1), at(2)[0], true, 0},
		"third, but the first is too old": {at(0, 30), at(60)[0], false, time.Second},
		"a healthy spell forgets":         {at(0, 1), served, false, 0},
		"its own end counts":              {healthy, at(4)[0], false, time.Second},
		"and the one after it":            {append(healthy[:3:3], at(3)...), at(4)[0], true, 0},
	} {
		delay, giveUp := p.Next(c.history, c.exit, 0)
		if delay != c.delay || giveUp != c.giveUp {
			t.Errorf("%s: %s, %v; want %s, %v", name, delay, giveUp, c.delay, c.giveUp)
		}
	}
}

func TestNext_DefaultGivesUpWithinAMinuteOfInstantCrashes(t *testing.T) {
	t.Parallel()
	p, now, start := Policy{}.withDefaults(), time.Unix(0, 0), time.Unix(0, 0)
	var history []Exit
	for {
		exit := Exit{Time: now}
		delay, giveUp := p.Next(history, exit, 0)
		if giveUp {
			break
		}
		history = append(history, exit)
		now = now.Add(delay)
	}
	if len(history) != 9 || now.Sub(start) > time.Minute {
		t.Errorf("gave up after %d failures in %s, want the 10th within a minute", len(history)+1, now.Sub(start))
	}
}

func TestPulse_DeadOnlyWhenItStoodStillForTheBound(t *testing.T) {
	t.Parallel()
	start := time.Unix(100, 0)
	p := pulse{bound: 35 * time.Second, moved: start}
	p.see(1, start)
	for _, c := range []struct {
		after time.Duration
		beat  uint64
		dead  bool
		next  time.Duration
	}{
		{30 * time.Second, 2, false, 30 * time.Second},
		{60 * time.Second, 2, false, 5 * time.Second},
		{65 * time.Second, 2, true, time.Millisecond},
		{66 * time.Second, 3, false, 30 * time.Second},
	} {
		now := start.Add(c.after)
		p.see(c.beat, now)
		if p.dead(now) != c.dead || p.next(now, 30*time.Second) != c.next {
			t.Errorf("after %s: dead %v, next %s; want %v, %s", c.after, p.dead(now), p.next(now, 30*time.Second), c.dead, c.next)
		}
	}
}

func TestPulse_AStandstillOfTheSupervisorIsNotTheChilds(t *testing.T) {
	t.Parallel()
	start := time.Unix(100, 0)
	p := pulse{bound: 35 * time.Second, moved: start}
	p.see(1, start)
	now := start.Add(time.Hour) // the look was meant for 30 s
	p.stood(now.Sub(start.Add(30 * time.Second)))
	p.see(1, now)
	if p.dead(now) || p.next(now, 30*time.Second) != 5*time.Second {
		t.Errorf("dead %v, next %s; want the 5 s that are left", p.dead(now), p.next(now, 30*time.Second))
	}
	p.stood(-time.Second) // an answer before its limit gives nothing
	if now = now.Add(5 * time.Second); !p.dead(now) {
		t.Error("a child that stands still after that lives")
	}
}

func TestWatch_AChildIsNotKilledForAStandstillOfTheMachine(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]struct {
		at    string
		asked int
	}{"between two looks": {"note", 3}, "while it is asked": {"ask", 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var stood time.Duration // of everything but the bubble's timers
				m := &Manager{now: func() time.Time { return time.Now().Add(stood) }}
				m.cfg.HealthInterval, m.cfg.HealthTimeout = 30*time.Second, 5*time.Second
				begin, asked := time.Now(), 0
				stand := func(at string) {
					if at == when.at && asked == when.asked {
						stood = time.Hour
					}
				}
				ask := func(context.Context) (control.Health, error) {
					asked++
					stand("ask")
					return control.Health{Ready: true, Heartbeat: uint64(min(asked, 3))}, nil // its heart stands still at last
				}
				if !m.pulseLost(t.Context(), ask, func(bool, bool) { stand("note") }) {
					t.Error("a dead child is not noticed")
				}
				if took := time.Since(begin); took != 95*time.Second { // the third look, and the bound after it
					t.Errorf("it was given up after %s", took)
				}
			})
		})
	}
}

func TestWait_ReturnsTheCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		if err := wait(t.Context(), time.Hour); err != nil || time.Since(before) != time.Hour {
			t.Errorf("wait: %v after %s", err, time.Since(before))
		}
	})
}

func TestTail_OnlyThisLaunchAndOnlyTheEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "err.log")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var many strings.Builder
	for i := range 5000 {
		many.WriteString("line number " + strconv.Itoa(i) + "\n")
	}
	for name, c := range map[string]struct {
		text   string
		offset int64
		first  string
		lines  int
	}{
		"nothing":               {"", 0, "", 0},
		"only blank":            {"\n\n", 0, "", 0},
		"earlier launch":        {"old\nnew\r\n", 4, "new", 1},
		"truncated since":       {"new\n", 100, "new", 1},
		"no newline at end":     {"a\nb", 0, "a", 2},
		"the last twenty":       {many.String(), 0, "line number 4980", 20},
		"one very long line":    {strings.Repeat("x", tailBytes+10), 0, strings.Repeat("x", tailBytes), 1},
		"what is not UTF-8":     {"a\xffb\n", 0, "a\uFFFDb", 1},
		"long line, then short": {strings.Repeat("x", tailBytes) + "\nend\n", 0, "end", 1},
	} {
		write(c.text)
		got := tail(path, c.offset)
		if len(got) != c.lines || c.lines > 0 && got[0] != c.first {
			t.Errorf("%s: %d lines %.60q, want %d beginning with %.60q", name, len(got), got, c.lines, c.first)
		}
	}
	if got := tail(path+".none", 0); got != nil {
		t.Errorf("missing file: %q", got)
	}
}

func TestParseStat_ReadsPastAnyName(t *testing.T) {
	t.Parallel()
	fields := " S 1 2 3 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 8 0 123456 0 0"
	for stat, want := range map[string]uint64{
		"42 (sleep)" + fields:          123456,
		"42 (a (bad) name 9)" + fields: 123456,
	} {
		if got, err := parseStat(stat); err != nil || got != want {
			t.Errorf("%q: %d, %v", stat, got, err)
		}
	}
	for _, stat := range []string{"", "42", "42 (x", "42 (x) S 1", "42 (x) S" + strings.Repeat(" 1", 18) + " x"} {
		if got, err := parseStat(stat); err == nil {
			t.Errorf("%q: %d, want an error", stat, got)
		}
	}
	if got, err := startTime(os.Getpid()); err != nil || got == 0 {
		t.Errorf("own start time: %d, %v", got, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (sleep) S 1 2 3 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 8 0 123456 0 0")
	f.Add(") ")
	f.Fuzz(func(t *testing.T, stat string) {
		if n, err := parseStat(stat); err != nil && n != 0 {
			t.Errorf("%d with %v", n, err)
		}
	})
}

func TestRecord_SurvivesSaveAndRefusesWhatProvesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := record{
		FormationID: "sample", LaunchID: "a1", Token: "secret", PID: 4711, StartTime: 99, BootID: "boot",
		Socket: filepath.Join(dir, "plugin1"), LaunchedAt: time.Unix(5, 0).UTC(), ErrFrom: 12,
	}
	older := want
	older.LaunchID, older.LaunchedAt = "b2", time.Unix(4, 0).UTC()
	for _, r := range []record{older, want} {
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
	}
	broken := recordPath(dir, "c3")
	for path, text := range map[string]string{
		broken: `{"pid":`, recordPath(dir, "d4"): `{"launch_id":"other","pid":9,"start_time":1,"token":"t","boot_id":"b"}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]record{want, older}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(broken); !os.IsNotExist(err) {
		t.Errorf("a broken record stays: %v", err)
	}
	for _, r := range got {
		if err := r.forget(dir); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A replaced child's record goes away while the next launch lists them.
func TestReadRecords_OneThatGoesAwayMeanwhileIsNoFault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stays := record{
		LaunchID: "a1", FormationID: "hello", Token: "t", PID: 9, StartTime: 1, BootID: "b",
		LaunchedAt: time.Unix(3, 0).UTC(),
	}
	if err := stays.save(dir); err != nil {
		t.Fatal(err)
	}
	comes := stays
	comes.LaunchID, comes.LaunchedAt = "b2", time.Unix(4, 0).UTC()
	changed := make(chan error, 1)
	go func() {
		for range 2000 {
			if err := errors.Join(comes.save(dir), comes.forget(dir)); err != nil {
				changed <- err
				return
			}
		}
		changed <- nil
	}()
	for {
		got, err := readRecords(dir)
		if err != nil || len(got) == 0 || got[len(got)-1] != stays {
			t.Fatalf("%+v, %v", got, err)
		}
		select {
		case err := <-changed:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"launch_id":"a","pid":9,"start_time":1,"token":"t","boot_id":"b"}`))
	f.Add([]byte(`{"launch_id":"../a","pid":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseRecord(text)
		if err != nil {
			return
		}
		if r.PID <= 1 || r.Token == "" || r.StartTime == 0 || filepath.Base(recordPath("/x", r.LaunchID)) != recordPrefix+r.LaunchID+recordSuffix {
			t.Errorf("accepted %+v", r)
		}
	})
}

func TestProc_SignalsOnlyWhatItHolds(t *testing.T) {
	t.Parallel()
	p, err := openProc(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.over() {
		t.Error("this process is over")
	}
	if p.hasEnv("PATH", "") || p.hasEnv("PATH", "x") {
		t.Error("a process without a launch token has one")
	}
	if err := errors.Join(p.signal(0), p.killGroup()); !errors.Is(err, errNotProven) {
		t.Errorf("signal to a process that is not proven ours: %v", err)
	}
	p.watch()
	p.detach()
	p.prove()
	if err := p.signal(9); err != nil {
		t.Errorf("signal after detach: %v, want nothing sent and no error", err)
	}
	if _, err := openProc(1 << 30); err == nil {
		t.Error("opened a process that cannot be")
	}
}

func TestSpec_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := Spec{ID: "a", Binary: "b", Dir: "c", StateDir: "d", RunDir: "e", OutLog: "f"}.withDefaults()
	if err == nil || !strings.Contains(err.Error(), "ErrLog is empty") {
		t.Errorf("%v, want ErrLog named", err)
	}
	_, err = Spec{ID: "a", Binary: "b", Dir: "c", StateDir: "d", RunDir: "e", OutLog: "f", ErrLog: "g"}.withDefaults()
	if err == nil || !strings.Contains(err.Error(), "Socket is nil") {
		t.Errorf("%v, want Socket named", err)
	}
}
