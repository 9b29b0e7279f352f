package chaos

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

// kills is how many times TestKills kills; "make chaos" asks for a hundred.
var kills = flag.Int("kills", 9, "how many processes TestKills kills")

// fault is one kind of death, with what was seen of it.
type fault struct {
	name   string
	strike func(r *raid, f *harness.Formation)
	back   []time.Duration // from the kill to the next answer on the formation's port
}

func faults() []*fault {
	child := func(f *harness.Formation) { harness.KillProcess(f.TB(), f.LastPID()) }
	return []*fault{
		{name: "child", strike: func(_ *raid, f *harness.Formation) { child(f) }},
		{name: "supervisor", strike: func(r *raid, _ *harness.Formation) {
			r.s.Kill()
			r.forge()
			r.s.Serve()
		}},
		{name: "both at once", strike: func(r *raid, f *harness.Formation) {
			r.s.Kill()
			child(f)
			r.forge()
			r.s.Serve()
		}},
	}
}

// raid is a fleet under load whose processes are killed at random.
type raid struct {
	t      *testing.T
	s      *harness.Supervisor
	fleet  []*harness.Formation
	loads  []*crowd
	faults []*fault
	// foreign is a process of somebody else that stands in run records.
	foreign *exec.Cmd
	ended   chan struct{} // closed when foreign has ended
}

func TestKills_AtRandomUnderLoadLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	// The policy gives up after so many failures by design; here they are ours.
	s := suite.Start(t, harness.Options{Formations: "  restart:\n    max: 10000\n    base_ms: 10\n    max_ms: 100\n"})
	model := fakellm.Start(t, fakellm.Options{Record: -1})
	model.Add(fakellm.Rule{Reply: fakellm.Reply{Text: crowdText, Chunks: 6, ChunkDelayMS: 30}})
	r := &raid{t: t, s: s, faults: faults(), ended: make(chan struct{})}
	r.hireForeign()
	for _, id := range []string{"alpha", "beta"} {
		f := s.Deploy(id, suite.Pair(t, id, model.URL()))
		r.fleet = append(r.fleet, f)
		r.loads = append(r.loads, gather(t, f, 16))
	}
	for n := range *kills {
		r.one(r.faults[n%len(r.faults)])
	}
	for _, l := range r.loads {
		l.finish()
	}
	r.print()
	select {
	case <-r.ended:
		t.Error("a process that is not ours was signalled")
	default:
	}
	s.RPC(http.MethodGet, "/rpc/audit/verify").Want(t, http.StatusOK, "data.valid", "true", "data.broken_at", "null")
	for _, l := range r.loads {
		l.check()
	}
}

// one kills after a random while and waits until all is well again.
func (r *raid) one(f *fault) {
	r.t.Helper()
	victim := r.fleet[rand.IntN(len(r.fleet))]
	pause := time.Duration(50+rand.IntN(250)) * time.Millisecond
	harness.Throughout(r.t, pause, "waiting for the next kill", func() bool { return true })
	for _, g := range r.fleet {
		g.NotePID()
	}
	begin := time.Now()
	f.strike(r, victim)
	harness.Until(r.t, victim.ID+" answers after the death of "+f.name, func() bool {
		reply, err := harness.Fresh(r.t).Do(r.t.Context(), harness.Request{Method: http.MethodGet, URL: victim.Own() + "/v1/health"})
		return err == nil && reply.Status == http.StatusOK
	})
	f.back = append(f.back, time.Since(begin))
	for _, g := range r.fleet {
		g.UntilStatus("running")
		if all := r.s.Runtimes(g.ID); len(all) != 1 {
			r.t.Fatalf("after the death of %s: %s has the processes %v", f.name, g.ID, all)
		}
	}
}

// hireForeign starts a process that a supervisor must never signal.
func (r *raid) hireForeign() {
	r.t.Helper()
	r.foreign = exec.Command("sleep", "600")
	if err := r.foreign.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.foreign.Wait() // the channel tells
	}()
	r.t.Cleanup(func() {
		_ = r.foreign.Process.Kill()
		<-r.ended
	})
}

// forge leaves a run record that names the foreign process with its true start
// time, as after a child's number was given to somebody else within a tick.
func (r *raid) forge() {
	r.t.Helper()
	records, err := filepath.Glob(filepath.Join(r.s.Home, "run", "*", "launch-*.json"))
	if err != nil || len(records) == 0 {
		r.t.Fatalf("run records: %v, %v", records, err)
	}
	text, err := os.ReadFile(records[0])
	if err != nil {
		r.t.Fatal(err)
	}
	var record map[string]any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&record); err != nil {
		r.t.Fatal(err)
	}
	pid := r.foreign.Process.Pid
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		r.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	record["pid"], record["start_time"] = pid, json.Number(strings.Fields(after)[19])
	record["launch_id"] = "forged"
	text, err = json.Marshal(record)
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(records[0]), "launch-forged.json"), text, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// print shows the faults and what came of them.
func (r *raid) print() {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tkills\tanswers again, median\tslowest")
	for _, f := range r.faults {
		if len(f.back) == 0 {
			continue
		}
		slices.Sort(f.back)
		round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		fmt.Fprintf(w, "SIGKILL of %s\t%d\t%s\t%s\n", f.name, len(f.back), round(f.back[len(f.back)/2]), round(f.back[len(f.back)-1]))
	}
	fmt.Fprintln(w, "\t\t\t")
	fmt.Fprintln(w, "formation\tacknowledged\tconnections cut\tlost\tdoubled")
	for _, l := range r.loads {
		lost, doubled := l.verdict()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", l.f.ID, len(l.acknowledged), l.cut, lost, doubled)
	}
	_ = w.Flush() // a strings.Builder takes everything
	r.t.Log("\n" + b.String())
}
