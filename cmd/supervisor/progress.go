package main

import (
	"fmt"
	"strings"
	"sync"

	"github.com/schollz/progressbar/v3"

	"github.com/agentformation/service/pkg/client"
)

// progress shows the steps of deploys, updates and starts: one line that
// changes for a person, one line per stage otherwise. It goes to stderr, so
// that results on stdout stay clean.
type progress struct {
	a     *app
	count int // of formations

	mu     sync.Mutex // guards the fields that follow
	stages map[string]string
	ended  int
	bar    *progressbar.ProgressBar // nil without a terminal
}

// newProgress begins a display for formations.
func (a *app) newProgress(ids ...string) *progress {
	p := &progress{a: a, count: len(ids), stages: map[string]string{}}
	if a.errTTY {
		p.bar = a.newBar(100)
	}
	return p
}

// newBar begins a bar that goes up to total, or turns in place for -1.
func (a *app) newBar(total int64, more ...progressbar.Option) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, append([]progressbar.Option{
		progressbar.OptionSetWriter(a.err), progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(20),
		// Otherwise a goroutine of the library turns the spinner, and reads without
		// a lock what we write.
		progressbar.OptionSetSpinnerChangeInterval(0),
	}, more...)...)
}

// show takes one step of a formation.
func (p *progress) show(id string, step client.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := step.Stage
	if step.Message != "" {
		text += ": " + step.Message
	}
	left := step.MaxAttempts - step.Attempt
	if p.bar != nil {
		if step.MaxAttempts > 0 && left >= 0 {
			text += fmt.Sprintf(" (%d s left)", left)
		}
		percent := share(step)
		if p.count > 1 {
			text, percent = p.sum()+text, 100*p.ended/p.count
		}
		p.bar.Describe(p.fit(strings.Map(noBreak, printable(id+" "+text))))
		_ = p.bar.Set(percent) // a terminal that is gone must not fail the deploy
		return
	}
	if step.Stage != p.stages[id] {
		p.stages[id] = step.Stage
		if step.MaxAttempts > 0 && left > 0 { // it is not shown how they pass
			text += fmt.Sprintf(" (up to %d s)", left)
		}
		p.a.say("%s: %s", id, text)
	}
}

// barRoom is what a bar needs beside its words, in columns.
const barRoom = 20

// fit cuts words that would make a line longer than the terminal is wide: a line
// that breaks is not overwritten by the next.
func (p *progress) fit(text string) string {
	if p.a.columns == nil {
		return text
	}
	if width := p.a.columns(); width > 2*barRoom {
		return short(text, width-barRoom)
	}
	return text
}

// done says that the work for one formation has ended.
func (p *progress) done(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	if p.bar != nil && p.count > 1 {
		p.bar.Describe(printable(id + " " + p.sum() + "done"))
		_ = p.bar.Set(100 * p.ended / p.count)
	}
}

// sum counts the formations that are done.
func (p *progress) sum() string { return fmt.Sprintf("(%d of %d) ", p.ended, p.count) }

// say prints a line between the steps.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear() // as in show
	}
	p.a.say(format, args...)
}

// close ends the display.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// share is how much of the way a step is, in percent: half for the upload, the
// rest for the stages in their order.
func share(step client.Progress) int {
	switch step.Stage {
	case client.StageUploading:
		if step.Percent != nil {
			return int(*step.Percent / 2)
		}
		return 0
	case client.StageUploaded:
		return 50
	case "extracting":
		return 60
	case "validating":
		return 70
	case "resolving_runtime":
		return 75
	case "stopping":
		return 77
	case "spawning", "spawning_staging", "spawning_previous":
		return 80
	case "swapping":
		return 95
	case "stopping_old", "stopping_current":
		return 98
	}
	return 90
}
