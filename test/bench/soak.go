package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// mark is what a loaded formation holds at one moment.
type mark struct {
	turns      int
	load       sample
	memory     memory
	files      int
	goroutines int
	processes  int // of tool servers
}

// soakMarks is how often a soak looks; slopes are read over the second half.
const soakMarks = 20

// soakSettle is how long the formation rests before each look, so that what is
// under way at the end of a load is not counted.
const soakSettle = 300 * time.Millisecond

// runSoak has one formation answer so many turns of three tool calls each, as
// JSON and SSE in turns, and fails when requests fail or when what it holds
// keeps growing in the second half.
func runSoak(ctx context.Context, p plan, dir string, turns int) error {
	model, err := startModel(ctx, dir)
	if err != nil {
		return err
	}
	defer model.stop()
	ours, err := startToolFormation(ctx, p, dir, model.addr)
	if err != nil {
		return err
	}
	defer ours.stop()
	marks, err := soak(ctx, ours, max(1, turns/soakMarks))
	if err != nil {
		return err
	}
	fmt.Println()
	return judge(marks)
}

// soak loads the formation and prints a line per mark.
func soak(ctx context.Context, ours *process, turns int) ([]mark, error) {
	w := tabwriter.NewWriter(os.Stdout, 9, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "turns\tper second\tp99\terrors\tPSS\tanonymous\tgoroutines\tdescriptors\ttool processes\t")
	var marks []mark
	for i := range soakMarks {
		t := target{addr: ours.addr, pid: ours.pid}
		t.request, t.done = chatRequest(ours.addr, toolAgent, i%2 == 1, threeCalls)
		s, err := load{conc: toolConc, slice: time.Hour, requests: turns}.run(ctx, t)
		if err != nil {
			return nil, err
		}
		m, err := look(ctx, ours)
		if err != nil {
			return nil, err
		}
		m.turns, m.load = turns*(i+1), s
		marks = append(marks, m)
		fmt.Fprintf(w, "%d\t%.0f\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t\n", m.turns, s.rate(), ms(quantile(s.latency, .99)),
			s.errors, mb(m.memory.pss), mb(m.memory.anon), m.goroutines, m.files, m.processes)
		if err := w.Flush(); err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// look reads what the formation holds.
func look(ctx context.Context, ours *process) (mark, error) {
	select {
	case <-time.After(soakSettle):
	case <-ctx.Done():
		return mark{}, ctx.Err()
	}
	var m mark
	var err error
	if m.memory, err = readMemory(ours.pid); err != nil {
		return mark{}, err
	}
	if m.files, err = openFiles(ours.pid); err != nil {
		return mark{}, err
	}
	if m.processes, err = children(ours.pid); err != nil {
		return mark{}, err
	}
	m.goroutines, err = goroutines(ctx, ours.addr)
	return m, err
}

// goroutines asks the formation how many it has.
func goroutines(ctx context.Context, addr string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-SVC-Admin-Key", adminKey)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("read the metrics: %w", err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			return strconv.Atoi(text)
		}
	}
	return 0, errors.Join(fmt.Errorf("the metrics (%s) have no go_goroutines", res.Status), lines.Err())
}

// judge looks at the second half of a soak: what grows there steadily, by more
// than its own noise and some slack, would grow for ever.
func judge(marks []mark) error {
	var faults []error
	for _, m := range marks {
		if m.load.errors > 0 {
			faults = append(faults, fmt.Errorf("%d requests failed until turn %d: %w", m.load.errors, m.turns, m.load.lastErr))
		}
	}
	second := marks[len(marks)/2:]
	for _, watch := range []struct {
		name  string
		of    func(mark) float64
		slack float64 // growth over the half that is no fault
	}{
		{"anonymous memory in MB", func(m mark) float64 { return float64(m.memory.anon) / (1 << 20) }, 2},
		{"goroutines", func(m mark) float64 { return float64(m.goroutines) }, 3},
		{"open descriptors", func(m mark) float64 { return float64(m.files) }, 3},
		{"processes of tool servers", func(m mark) float64 { return float64(m.processes) }, 0.5},
	} {
		values := make([]float64, len(second))
		for i, m := range second {
			values[i] = watch.of(m)
		}
		slope, noise := fit(values)
		growth, doubt := slope*float64(len(values)-1), 3*noise*float64(len(values)-1)
		fmt.Printf("%-26s %+.2f in the second half, noise %.2f\n", watch.name, growth, doubt)
		if growth > max(watch.slack, doubt) {
			faults = append(faults, fmt.Errorf("%s grew by %.1f in the second half", watch.name, growth))
		}
	}
	return errors.Join(faults...)
}

// fit returns the slope of the straight line through values at 0, 1, 2… and the
// standard error of that slope.
func fit(values []float64) (slope, noise float64) {
	n := float64(len(values))
	if n < 3 {
		return 0, 0
	}
	meanX, meanY := (n-1)/2, 0.0
	for _, y := range values {
		meanY += y / n
	}
	var xx, xy float64
	for i, y := range values {
		dx := float64(i) - meanX
		xx += dx * dx
		xy += dx * (y - meanY)
	}
	slope = xy / xx
	var rest float64
	for i, y := range values {
		e := y - meanY - slope*(float64(i)-meanX)
		rest += e * e
	}
	return slope, math.Sqrt(rest / (n - 2) / xx)
}
