package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// cpu is the processor time of this process, or of its ended children.
func cpu(b *testing.B, who int) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(who, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// fleet makes n formations that nothing runs of, one directory each.
func fleet(b *testing.B, n int) []*fixture {
	b.Helper()
	home, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(home) })
	pool, err := ports.New(ports.Config{Host: "127.0.0.1", First: 20000, Last: 30000})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { pool.Close() })
	all := make([]*fixture, n)
	for i := range all {
		dir := filepath.Join(home, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		f := &fixture{home: dir, spec: specIn(dir, "ok")}
		if f.spec.Socket, err = pool.Lease(fmt.Sprint(i)); err != nil {
			b.Fatal(err)
		}
		f.m = process.NewManager(f.cfg)
		all[i] = f
	}
	return all
}

// together runs do for each formation at once.
func together(b *testing.B, all []*fixture, do func(f *fixture) error) {
	b.Helper()
	errs := make(chan error, len(all))
	for _, f := range all {
		go func() { errs <- do(f) }()
	}
	for range all {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart is one launch from nothing to serving, and its end. The child
// is this test program, which has next to nothing to load.
func BenchmarkStart(b *testing.B) {
	f := fleet(b, 1)[0]
	own, children := cpu(b, syscall.RUSAGE_SELF), cpu(b, syscall.RUSAGE_CHILDREN)
	var started time.Duration
	for b.Loop() {
		began := time.Now()
		if err := f.m.Start(b.Context(), f.spec, nil); err != nil {
			b.Fatal(err)
		}
		started += time.Since(began)
		if err := f.m.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(per(started), "start-ms")
	b.ReportMetric(per(cpu(b, syscall.RUSAGE_SELF)-own), "own-cpu-ms")
	b.ReportMetric(per(cpu(b, syscall.RUSAGE_CHILDREN)-children), "child-cpu-ms")
}

// BenchmarkFleet is fifty formations started, let go, adopted and stopped at once.
func BenchmarkFleet(b *testing.B) {
	var spent [4]time.Duration
	var own time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		all := fleet(b, 50)
		before := cpu(b, syscall.RUSAGE_SELF)
		for i, do := range []func(f *fixture) error{
			func(f *fixture) error { return f.m.Start(b.Context(), f.spec, nil) },
			func(f *fixture) error { f.m.Close(); return f.spec.Socket.Close() },
			func(f *fixture) error {
				f.m = process.NewManager(f.cfg)
				ok, err := f.m.Adopt(b.Context(), f.spec)
				if err == nil && (!ok || !f.spec.Socket.Bound()) {
					err = fmt.Errorf("adopted %v, bound %v", ok, f.spec.Socket.Bound())
				}
				return err
			},
			func(f *fixture) error { return f.m.Stop(b.Context()) },
		} {
			began := time.Now()
			together(b, all, do)
			spent[i] += time.Since(began)
			if i == 0 {
				own += cpu(b, syscall.RUSAGE_SELF) - before
			}
		}
	}
	for i, name := range []string{"start", "close", "adopt", "stop"} {
		b.ReportMetric(float64(spent[i].Milliseconds())/float64(rounds), name+"-ms")
	}
	b.ReportMetric(float64(own.Milliseconds())/float64(rounds), "start-own-cpu-ms")
}
