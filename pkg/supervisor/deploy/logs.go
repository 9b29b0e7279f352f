package deploy

import (
	"context"
	"time"

	"github.com/agentformation/service/pkg/supervisor/logs"
)

// followEvery is how often a followed log is looked at.
const followEvery = 250 * time.Millisecond

// Stream names one log of a formation.
type Stream string

// The streams: the child's log records and what it wrote to descriptor 2.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// LogTail is the end of one log.
type LogTail = logs.Text

func (s *Service) logPath(id string, stream Stream) string {
	if stream == Stderr {
		return s.cfg.Dirs.errLog(id)
	}
	return s.cfg.Dirs.outLog(id)
}

// TailLog returns the last n lines (1 to 10000) of a log, from its rotated parts
// too; a log that was never written has none. The error is 404 for an unknown
// formation.
func (s *Service) TailLog(ctx context.Context, id string, stream Stream, n int) (LogTail, error) {
	if _, err := s.member(id); err != nil {
		return LogTail{}, err
	}
	return logs.Tail(ctx, s.logPath(id, stream), n)
}

// LogFollower is a position in logs of a formation. It is used by one goroutine.
type LogFollower struct {
	s  *Service
	id string
	at *logs.Follower
}

// FollowLog returns a follower at the present ends of a formation's logs: its Run
// hands on what is written from now on, whenever it is called. The error is 404
// for an unknown formation.
func (s *Service) FollowLog(id string, streams []Stream) (*LogFollower, error) {
	if _, err := s.member(id); err != nil {
		return nil, err
	}
	sources := make([]logs.Source, len(streams))
	for i, stream := range streams {
		sources[i] = logs.Source{Name: string(stream), Path: s.logPath(id, stream)}
	}
	at, err := logs.NewFollower(sources)
	if err != nil {
		return nil, err
	}
	return &LogFollower{s: s, id: id, at: at}, nil
}

// Run hands every line to sink, until ctx ends, the formation is deleted or sink
// returns an error. A rotation neither loses nor doubles a line; a log that is
// emptied is read from its start again.
func (f *LogFollower) Run(ctx context.Context, sink func(Stream, string) error) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := f.at.Poll(func(name, line string) error { return sink(Stream(name), line) }); err != nil {
			return err
		}
		if _, err := f.s.member(f.id); err != nil {
			return nil // deleted: nothing more will come
		}
	}
}
