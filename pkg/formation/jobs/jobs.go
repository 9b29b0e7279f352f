// Package jobs runs the formation's background work. It is the only importer
// of River: other rooms know a Queue and a Handler.
//
// A job commits together with what it belongs to (EnqueueTx) and runs at least
// once; handlers are idempotent by the Key they get. Jobs that a dead process
// left running are released at the next start instead of waiting for the
// engine's own rescue, which takes an hour.
//
// On SQLite the engine has no notifications, and a job that our transaction
// inserts is found by the next poll, within two seconds. What should begin
// sooner is begun by whoever enqueued it, with the job as its place in the
// queue when it can't (see turn.Service).
package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/store"
)

const (
	defaultWorkers = 16
	// A job waits at most this long for its fetch: the engine is told of
	// nothing that a transaction of ours inserts.
	pollInterval  = 2 * time.Second
	fetchCooldown = 5 * time.Millisecond // River's lowest is 1 ms
	stopTimeout   = 5 * time.Second
	fencedTimeout = 100 * time.Millisecond // the engine would try for seconds to store what is refused
	// The engine deadlocks when it is stopped while it is being elected
	// (internal/leadership/elector.go: a send under the mutex that the leaving
	// reader wants). Election is the first thing it does, so a stop waits until
	// this long after the start.
	settleTime = 500 * time.Millisecond
)

// ErrBusy tells that jobs did not end although they were cancelled.
var ErrBusy = errors.New("jobs: some do not end")

// Job is one run of a job.
type Job struct {
	Kind    string
	Key     string // what the job is about, for example a request id
	Attempt int    // from 1
}

// Handler does the work of one kind. An error runs the job again later, with
// the engine's back-off; ctx ends when the queue stops.
type Handler func(ctx context.Context, job Job) error

// Config is what a Queue needs.
type Config struct {
	DB         *store.DB
	Handlers   map[string]Handler // by kind; two characters at least
	MaxWorkers int                // jobs at once; 0 means 16
	Log        zerolog.Logger
}

// Queue is the background queue of one formation.
type Queue struct {
	client *river.Client[*sql.Tx] // adds jobs and works none
	cfg    Config
	wanted chan struct{} // capacity 1: a job was enqueued
}

// args is what the engine stores. Its kind travels in the job row.
type args struct {
	kind string
	Key  string `json:"key"`
}

// Kind implements river.JobArgs.
func (a args) Kind() string { return a.kind }

type worker struct {
	river.WorkerDefaults[args]
	queue *Queue
	run   Handler
}

// Work implements river.Worker. The engine knows no fences: a replaced process
// that fetched a job gives it back and fetches no more.
func (w worker) Work(ctx context.Context, job *river.Job[args]) error {
	if err := w.queue.cfg.DB.CheckFence(ctx); errors.Is(err, store.ErrFenced) {
		return river.JobSnooze(0)
	}
	return w.run(ctx, Job{Kind: job.Kind, Key: job.Args.Key, Attempt: job.Attempt})
}

// Timeout lifts the engine's limit of one minute: a turn bounds itself.
func (w worker) Timeout(*river.Job[args]) time.Duration { return -1 }

// New migrates the engine's tables and returns a queue that accepts jobs.
// Nothing runs before Run.
func New(ctx context.Context, cfg Config) (*Queue, error) {
	if cfg.MaxWorkers == 0 {
		cfg.MaxWorkers = defaultWorkers
	}
	q := &Queue{cfg: cfg, wanted: make(chan struct{}, 1)}
	if err := q.migrate(ctx); err != nil {
		return nil, err
	}
	var err error
	if q.client, err = river.NewClient(riversqlite.New(cfg.DB.Pool()), &river.Config{Logger: q.logger()}); err != nil {
		return nil, fmt.Errorf("prepare job engine: %w", err)
	}
	return q, nil
}

func (q *Queue) logger() *slog.Logger { return slog.New(logHandler{log: q.cfg.Log}) }

// migrate brings the engine's tables up to date. Its own look at them costs
// more than the rest of a start, so it is asked only when they are not.
func (q *Queue) migrate(ctx context.Context) error {
	migrator, err := rivermigrate.New(riversqlite.New(q.cfg.DB.Pool()), &rivermigrate.Config{Logger: q.logger()})
	if err != nil {
		return fmt.Errorf("prepare job migrations: %w", err)
	}
	all := migrator.AllVersions()
	var have int
	err = q.cfg.DB.QueryRow(ctx, `SELECT MAX(version) FROM river_migration WHERE line = 'main'`, nil, &have)
	if err == nil && have >= all[len(all)-1].Version {
		return nil
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate job tables: %w", err)
	}
	return nil
}

// engine returns what works jobs, for one Run: it can't be started twice.
func (q *Queue) engine() (*river.Client[*sql.Tx], error) {
	workers := river.NewWorkers()
	for kind, handler := range q.cfg.Handlers {
		river.AddWorkerArgs(workers, args{kind: kind}, worker{queue: q, run: handler})
	}
	client, err := river.NewClient(riversqlite.New(q.cfg.DB.Pool()), &river.Config{
		ID:                q.cfg.DB.LaunchID(),
		Logger:            q.logger(),
		Workers:           workers,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: q.cfg.MaxWorkers}},
		FetchPollInterval: pollInterval,
		FetchCooldown:     fetchCooldown,
		JobTimeout:        -1,
		// A job that failed 25 times over three weeks is discarded; River keeps
		// it visible.
		MaxAttempts: river.MaxAttemptsDefault,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare job engine: %w", err)
	}
	return client, nil
}

// EnqueueTx adds a job of a kind about a key in the caller's commit.
func (q *Queue) EnqueueTx(ctx context.Context, tx *store.Tx, kind, key string) error {
	if _, err := q.client.InsertTx(ctx, tx.SQL(), args{kind: kind, Key: key}, nil); err != nil {
		return fmt.Errorf("enqueue %s: %w", kind, err)
	}
	select {
	case q.wanted <- struct{}{}:
	default: // the engine runs, or is told already
	}
	return nil
}

// ReleaseOrphans makes the jobs of fenced launches available again. It runs
// before Run, when every launch but this one is known to be dead or fenced.
func (q *Queue) ReleaseOrphans(ctx context.Context) error {
	return q.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE river_job
			SET state = 'available', scheduled_at = datetime('now', 'subsec')
			WHERE state IN ('running', 'retryable')
			  AND json_extract(attempted_by, '$[#-1]') IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL)`)
		if err != nil {
			return fmt.Errorf("release jobs of dead launches: %w", err)
		}
		// A dead leader would keep its office until its term ends.
		if _, err := tx.Exec(`DELETE FROM river_leader WHERE leader_id IN (SELECT id FROM launches WHERE fenced_at IS NOT NULL)`); err != nil {
			return fmt.Errorf("release the leadership of dead launches: %w", err)
		}
		return nil
	})
}

// Run works jobs until ctx ends or the launch is fenced, then cancels those
// that run. It returns nil once they have ended, so that another launch may
// take the work over; when they have not within five seconds, ErrBusy. It may
// be called again after it has returned.
//
// The engine wakes twenty times a second even when idle, so it is started with
// the first job: a formation that has none pays nothing.
func (q *Queue) Run(ctx context.Context) error {
	if open, err := q.hasOpenJobs(ctx); err != nil {
		return err
	} else if !open {
		select {
		case <-ctx.Done():
			return nil
		case <-q.wanted:
		}
	}
	client, err := q.engine()
	if err != nil {
		return err
	}
	// The engine's own context lives on until Stop, so that it can put its
	// running jobs back.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start job engine: %w", err)
	}
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	wait := stopTimeout
	select {
	case <-ctx.Done():
	case <-q.cfg.DB.Fenced():
		wait = fencedTimeout
	}
	<-settled.C
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	err = client.StopAndCancel(stopCtx)
	select {
	case <-q.cfg.DB.Fenced(): // nothing of what it did last was stored
		return store.ErrFenced
	default:
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrBusy
	} else if err != nil {
		return fmt.Errorf("stop job engine: %w", err)
	}
	return nil
}

// hasOpenJobs tells whether an earlier process left jobs to do.
func (q *Queue) hasOpenJobs(ctx context.Context) (open bool, err error) {
	err = q.cfg.DB.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM river_job WHERE state NOT IN ('completed', 'cancelled', 'discarded'))`, nil, &open)
	if err != nil && ctx.Err() == nil {
		return false, fmt.Errorf("look for open jobs: %w", err)
	}
	return open, nil
}
