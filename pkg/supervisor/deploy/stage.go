package deploy

import (
	"errors"

	"github.com/agentformation/service/pkg/fault"
)

// Stage is a step of an operation, as clients see it (server.md 4.2).
type Stage string

// The stages of deploy, start and restart.
const (
	StageExtracting Stage = "extracting"
	StageStopping   Stage = "stopping"
	StageValidating Stage = "validating"
	StageResolving  Stage = "resolving_runtime"
	StageSpawning   Stage = "spawning"
	StageHealth     Stage = "health_check"
)

// The further stages of update and rollback.
const (
	StageSpawningStaging  Stage = "spawning_staging"
	StageSpawningPrevious Stage = "spawning_previous"
	StageSwapping         Stage = "swapping" // also the probation; attempt counts its seconds
	StageStoppingOld      Stage = "stopping_old"
	StageStoppingCurrent  Stage = "stopping_current"
)

// Progress tells how an operation goes.
type Progress struct {
	Stage       Stage
	Message     string
	Version     string // semantic, when known
	Attempt     int    // of health_check: seconds without news, up to MaxAttempts
	MaxAttempts int    // 0 outside health_check
}

// Sink takes progress; it is called by one goroutine at a time and must not
// block for long. A nil Sink is allowed.
type Sink func(Progress)

// Rollback tells what became of the half-done work of a failed operation.
type Rollback string

// The rollback results.
const (
	RollbackNotNeeded Rollback = "not_needed"
	RollbackDone      Rollback = "success"
	RollbackFailed    Rollback = "failed"
)

// StageError is the error of an operation, with where it happened. Its cause is
// always a fault.
type StageError struct {
	Stage    Stage
	Rollback Rollback
	Err      error
}

// Error returns the text of the fault.
func (f *StageError) Error() string { return f.Err.Error() }

// Unwrap returns the fault.
func (f *StageError) Unwrap() error { return f.Err }

// track follows the stages of one operation.
type track struct {
	sink    Sink
	stage   Stage
	version string
}

func (t *track) enter(stage Stage, message string) { t.report(stage, message, 0, 0) }

// report has the form of process.Progress after conversion of the stage.
func (t *track) report(stage Stage, message string, attempt, attempts int) {
	t.stage = stage
	if t.sink != nil {
		t.sink(Progress{Stage: stage, Message: message, Version: t.version, Attempt: attempt, MaxAttempts: attempts})
	}
}

// launch adapts t to process.Progress.
func (t *track) launch(stage, message string, attempt, attempts int) {
	t.report(Stage(stage), message, attempt, attempts)
}

// failure names the stage of err. Secrets that are missing show only when the
// child loads, but they belong to the stage in which files are judged.
func (t *track) failure(err error, rollback Rollback) error {
	stage := t.stage
	switch fault.NameOf(err) {
	case "SecretsError", "ParseError":
		stage = StageValidating
	}
	if _, ok := errors.AsType[*StageError](err); ok {
		return err
	}
	return &StageError{Stage: stage, Rollback: rollback, Err: err}
}
