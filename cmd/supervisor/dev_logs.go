package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

// devLogs are the logs of a draft while they are shown.
type devLogs struct {
	cancel func()
	done   chan struct{}
}

// follow shows what the next run of the draft logs, until unfollow. It begins
// before the run: the supervisor empties the files at its start, and from there
// on they are read. The files are those of the home on this machine.
func (d *devRun) follow(ctx context.Context, id string) {
	if d.t.home == nil {
		d.say(plain, "its logs are in the home of the supervisor; with --home they are shown here")
		return
	}
	base := filepath.Join(d.t.home.logsDir(), id+"-draft")
	follower, err := logs.NewFollower([]logs.Source{
		{Name: "stdout", Path: base + "-out.log"}, {Name: "stderr", Path: base + "-err.log"},
	})
	if err != nil {
		d.unread(err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	d.logs = &devLogs{cancel: cancel, done: done}
	go func() {
		defer close(done)
		d.poll(ctx, follower)
	}()
}

// poll shows new lines until ctx ends, and then those that are left.
func (d *devRun) poll(ctx context.Context, follower *logs.Follower) {
	tick := time.NewTicker(devPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = follower.Poll(d.show) // what is left; nobody waits for it
			return
		case <-tick.C:
		}
		if err := follower.Poll(d.show); err != nil {
			d.unread(err)
			return
		}
	}
}

// unread says why the logs cannot be shown.
func (d *devRun) unread(err error) {
	if errors.Is(err, fs.ErrPermission) {
		d.say(yellow, "its logs may be read only by the user that the supervisor runs as")
		return
	}
	d.say(yellow, "its logs cannot be read: %v", err)
}

// unfollow ends the showing of logs.
func (d *devRun) unfollow() {
	if d.logs != nil {
		d.logs.cancel()
		<-d.logs.done
		d.logs = nil
	}
}

// show prints one line of the draft.
func (d *devRun) show(stream, line string) error {
	tint := plain
	if stream == "stderr" {
		tint = red
	}
	_, err := fmt.Fprintln(d.a.out, d.a.paint(tint, printable(line)))
	return err
}

// logsDir is where the supervisor of this home writes the formations' logs.
func (h *home) logsDir() string { return h.absolute(h.cfg.Formations.LogsDir) }
