package main

import (
	"fmt"

	"github.com/schollz/progressbar/v3"

	"github.com/agentformation/service/pkg/client"
)

// progress shows the steps of a deploy or start: one line that changes for a
// person, one line per stage otherwise. It goes to stderr, so that results on
// stdout stay clean.
type progress struct {
	a     *app
	label string
	stage string
	bar   *progressbar.ProgressBar // nil without a terminal
}

// newProgress begins a display for the formation with the given id.
func (a *app) newProgress(id string) *progress {
	p := &progress{a: a, label: id}
	if a.errTTY {
		p.bar = progressbar.NewOptions(100,
			progressbar.OptionSetWriter(a.err), progressbar.OptionSetPredictTime(false),
			progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(20),
		)
	}
	return p
}

// show takes one step.
func (p *progress) show(step client.Progress) {
	text := step.Stage
	if step.Message != "" {
		text += ": " + step.Message
	}
	if p.bar != nil {
		if step.MaxAttempts > 0 {
			text += fmt.Sprintf(" (%d/%d)", step.Attempt, step.MaxAttempts)
		}
		p.bar.Describe(printable(p.label + " " + text))
		_ = p.bar.Set(share(step)) // a terminal that is gone must not fail the deploy
		return
	}
	if step.Stage != p.stage {
		p.stage = step.Stage
		p.a.say("%s: %s", p.label, text)
	}
}

// close ends the display.
func (p *progress) close() {
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
	case "spawning":
		return 80
	}
	return 90
}
