package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// mark is what a loaded formation holds at one moment.
type mark struct {
	at     time.Duration
	load   sample
	memory memory
	files  int
}

// soakMarks is how often a soak looks; slopes are read over the second half.
const soakMarks = 20

// runSoak loads one formation with JSON and SSE in turns and fails when
// requests fail or when memory or descriptors keep growing in the second half.
func runSoak(ctx context.Context, p plan, dir string, length time.Duration) error {
	model, err := startModel(ctx, dir)
	if err != nil {
		return err
	}
	defer model.stop()
	formation := filepath.Join(dir, "formation")
	if err := writeFormation(formation, "bench-soak", model.addr); err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	ours, err := startRuntime(ctx, p.bin, formation, port)
	if err != nil {
		return err
	}
	defer ours.stop()
	if err := ours.answers(ctx); err != nil {
		return err
	}
	marks, err := soak(ctx, ours, length)
	if err != nil {
		return err
	}
	return judge(marks)
}

// soak loads the formation and prints a line per mark.
func soak(ctx context.Context, ours *process, length time.Duration) ([]mark, error) {
	w := tabwriter.NewWriter(os.Stdout, 8, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "at\tper second\tp99\terrors\tPSS\tprivate\tdescriptors\t")
	var marks []mark
	for i := range soakMarks {
		t := target{addr: ours.addr, pid: ours.pid}
		t.request, t.done = chatRequest(ours.addr, firstAgent, i%2 == 1, plainMessage)
		s, err := load{conc: 16, slice: length / soakMarks, requests: 1 << 30}.run(ctx, t)
		if err != nil {
			return nil, err
		}
		m := mark{at: length / soakMarks * time.Duration(i+1), load: s}
		if m.memory, err = readMemory(ours.pid); err != nil {
			return nil, err
		}
		if m.files, err = openFiles(ours.pid); err != nil {
			return nil, err
		}
		marks = append(marks, m)
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%d\t%s\t%s\t%d\t\n", m.at.Round(time.Second), s.rate(), ms(quantile(s.latency, .99)),
			s.errors, mb(m.memory.pss), mb(m.memory.private), m.files)
		if err := w.Flush(); err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// judge compares the last quarter of a soak with the quarter before it: what
// grows by more than a tenth and some slack between the two does not settle.
func judge(marks []mark) error {
	quarter := len(marks) / 4
	mean := func(part []mark, of func(mark) float64) float64 {
		var sum float64
		for _, m := range part {
			sum += of(m)
		}
		return sum / float64(max(len(part), 1))
	}
	before, last := marks[len(marks)-2*quarter:len(marks)-quarter], marks[len(marks)-quarter:]
	var faults []error
	for _, m := range marks {
		if m.load.errors > 0 {
			faults = append(faults, fmt.Errorf("%d requests failed until %s: %w", m.load.errors, m.at, m.load.lastErr))
		}
	}
	for _, watch := range []struct {
		name  string
		of    func(mark) float64
		slack float64
	}{
		{"private memory in MB", func(m mark) float64 { return float64(m.memory.private) / (1 << 20) }, 4},
		{"open descriptors", func(m mark) float64 { return float64(m.files) }, 8},
	} {
		a, b := mean(before, watch.of), mean(last, watch.of)
		if b > a*1.1+watch.slack {
			faults = append(faults, fmt.Errorf("%s grew from %.1f to %.1f in the last quarter", watch.name, a, b))
		}
	}
	return errors.Join(faults...)
}
