package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// The rhythm of a dev run: how long the files must be quiet before a change
// counts, how often a draft is asked whether it lives, and how long its end may
// take.
const (
	devQuiet   = 300 * time.Millisecond
	devPoll    = 200 * time.Millisecond // of the logs
	devLook    = 2 * time.Second
	devStopped = time.Minute
)

func (a *app) devCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dev DIR",
		Short: "Run a directory as a draft, reload it when a file changes, show its logs",
		Long: `Run a directory as a draft, reload it when a file changes, show its logs.

The draft runs in place under /draft/ID/ of a supervisor on this machine, beside
a version that is deployed. Its memory is kept apart from both. A fault in the
files is shown, and the next change is tried. Ctrl-C stops the draft.`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeDir,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("find the directory: %w", err)
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			d := &devRun{a: a, t: t, s: s, dir: dir, started: make(chan started)}
			return t.advise(d.run(cmd.Context()))
		}),
	}
}

// devRun is one directory at work.
type devRun struct {
	a   *app
	t   *target
	s   *client.Server
	dir string

	started chan started // the result of a launch
	id      string       // of the draft that runs, "" when none does
	ended   bool         // that it is no longer alive was said
	logs    *devLogs     // nil while none are shown
}

// started is what became of a launch.
type started struct {
	dev *client.Dev
	err error
}

// run launches the directory, and again after each change, until ctx ends.
func (d *devRun) run(ctx context.Context) error {
	if err := d.s.Ping(ctx); err != nil {
		return err // without a supervisor there is nothing to wait for
	}
	changes, err := watchDir(ctx, d.dir)
	if err != nil {
		return err
	}
	defer changes.close()
	defer d.unfollow()
	defer d.stop(ctx)
	look := time.NewTicker(devLook)
	defer look.Stop()
	launching := d.launch(ctx)
	for again := false; ; {
		select {
		case <-ctx.Done():
			if launching {
				if got := <-d.started; got.dev != nil {
					d.id = got.dev.FormationID // for stop
				}
			}
			return nil // an interrupt is how this ends
		case got := <-d.started:
			launching = false
			d.took(got)
		case name, ok := <-changes.names:
			if !ok {
				return errors.New("the directory can no longer be watched: start again")
			}
			d.say(bold, "%s changed", name)
			again = true
		case <-look.C:
			if !launching {
				d.look(ctx)
			}
		}
		if again && !launching {
			again = false
			d.stop(ctx)
			d.unfollow()
			launching = d.launch(ctx)
		}
	}
}

// say tells the person about the run itself, apart from the draft's log.
func (d *devRun) say(c colour, format string, args ...any) {
	tint := d.a.paintErr(c, printable(fmt.Sprintf(format, args...)))
	fmt.Fprintln(d.a.err, d.a.paintErr(dim, "dev |")+" "+tint)
}

// launch checks the files and begins to run them; it tells whether it did.
func (d *devRun) launch(ctx context.Context) bool {
	_, id, err := d.a.formationAt(d.dir)
	if err != nil {
		d.fault(err)
		return false
	}
	d.say(plain, "%s starts", id)
	d.follow(ctx, id)
	go func() {
		dev, err := d.s.DevRunDir(ctx, d.dir)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Name == "DraftRunning" {
			// One that an earlier run left behind.
			if _, err = d.s.DevStop(ctx, id); err == nil {
				dev, err = d.s.DevRunDir(ctx, d.dir)
			}
		}
		if err != nil && ctx.Err() != nil { // the supervisor may have taken it
			dev = &client.Dev{FormationID: id}
		}
		d.started <- started{dev, err}
	}()
	return true
}

// fault shows what is wrong with the files, and that the run goes on.
func (d *devRun) fault(err error) {
	for line := range strings.Lines(err.Error()) {
		d.say(red, "%s", strings.TrimRight(line, "\n"))
	}
	d.say(yellow, "waiting for a change in %s", d.dir)
}

// took takes the result of a launch.
func (d *devRun) took(got started) {
	if got.dev != nil {
		d.id, d.ended = got.dev.FormationID, false
	}
	if got.err != nil {
		d.fault(d.t.advise(stageOf(got.err, false)))
		return
	}
	d.say(green, "%s runs on port %d, %s/draft/%s", d.id, got.dev.Port, d.t.url, d.id)
	d.say(plain, "talk to it: supervisor chat %s --draft%s", d.id, d.flags())
}

// flags repeats the global flags for a command that is shown to the person.
func (d *devRun) flags() string {
	switch {
	case d.a.home != "":
		return " --home " + d.a.home
	case d.a.profile != "":
		return " --profile " + d.a.profile
	}
	return ""
}

// look tells the person when the draft has ended.
func (d *devRun) look(ctx context.Context) {
	if d.id == "" || d.ended {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, devLook)
	defer cancel()
	f, err := d.t.formation(d.id, client.FormationConfig{Draft: true})
	if err != nil {
		return
	}
	defer f.Close()
	_, err = f.Health(ctx)
	if e, ok := errors.AsType[*client.Error](err); ok && (e.Status == http.StatusServiceUnavailable || e.Status == http.StatusNotFound) {
		d.ended = true
		d.say(red, "%s", e.Message)
		d.say(yellow, "waiting for a change in %s", d.dir)
	}
}

// stop ends the draft that runs. It works on after an interrupt.
func (d *devRun) stop(ctx context.Context) {
	if d.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devStopped)
	defer cancel()
	_, err := d.s.DevStop(ctx, d.id)
	if err != nil && client.StatusOf(err) != http.StatusNotFound {
		d.say(red, "%s could not be stopped: %v; try `supervisor down %s`", d.id, err, d.id)
	} else if err == nil {
		d.say(plain, "%s is stopped", d.id)
	}
	d.id = ""
}
