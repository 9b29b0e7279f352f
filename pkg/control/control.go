// Package control is what the supervisor and a formation say to each other:
// the Formation interface, its gRPC client and server over go-plugin, the
// handshake, and the file descriptors a child inherits.
//
// Both sides import it; it imports neither (see test/arch). The order of a
// launch is Hello, Load, Health, Serve; of an end Drain, Stop. In an update
// two children share the socket: Serve(new), Pause(old), then Drain(old),
// Stop(old), Fence(new, old's launch); or, when the new one fails, Serve(old).
// Section 16 of the design lists the go-plugin traps this package deals with.
package control

import (
	"context"
	"time"
)

// File descriptors that the supervisor passes to a child, after stdin, stdout
// and stderr. ExtraFiles[i] becomes descriptor 3+i.
const (
	FDListener = 3 // the formation's listening socket
	FDOutLog   = 4 // <id>-out.log, opened O_APPEND: the child's log records
	FDErrLog   = 5 // <id>-err.log, opened O_APPEND: becomes descriptor 2
)

// Environment variables by which the supervisor tells a child who it is.
const (
	EnvFormationID = "FORMATION_ID"
	EnvLaunchID    = "SVC_LAUNCH_ID"
	EnvLaunchToken = "SVC_LAUNCH_TOKEN" // also marks a child's tool processes
	EnvRunDir      = "SVC_RUN_DIR"      // 0700; holds the control socket and the TLS material
)

// Formation is the child's side of the contract. formation.Formation
// implements it in the child; Client implements it in the supervisor.
//
// Calls come concurrently: Health at any time, and Drain and Stop also before or
// during Load, when a signal or the end of the supervisor asks for them.
type Formation interface {
	// Hello refuses a wrong launch token with fault.Unauthenticated.
	Hello(ctx context.Context, req HelloRequest) (Hello, error)
	// Load reports progress through the callback (never nil) and returns when
	// the formation could serve. Faults of the bundle are fault.Invalid with
	// Name ParseError, SecretsError, ...; they name file, line and column.
	Load(ctx context.Context, req LoadRequest, progress func(message string)) (Loaded, error)
	Serve(ctx context.Context) error
	// Pause ends the acceptance of new connections, and of background jobs, while
	// another child serves on the same socket. Turns and streams go on, answers
	// carry "Connection: close". Serve takes it back.
	Pause(ctx context.Context) error
	// Fence makes launches that have ended unable to commit ever again, takes
	// over the turns they left open, and returns how many.
	Fence(ctx context.Context, launchIDs []string) (resumed int, err error)
	Health(ctx context.Context) (Health, error)
	Status(ctx context.Context) (Status, error)
	Drain(ctx context.Context, req DrainRequest) (Drained, error)
	Stop(ctx context.Context) error
	// Records calls sink for every record after the given sequence until ctx
	// ends. A record is acknowledged when sink returns nil.
	Records(ctx context.Context, after uint64, sink func(Record) error) error
}

// HelloRequest opens the conversation.
type HelloRequest struct {
	FormationID string
	LaunchToken string
}

// Hello says who answered.
type Hello struct {
	FormationID    string
	LaunchID       string
	Build          string
	PID            int
	StartedAt      time.Time
	Serving        bool
	ControlVersion int
}

// LoadRequest names what to load.
type LoadRequest struct {
	Dir      string   // manifest directory, read-only
	StateDir string   // mutable state
	Fence    []string // launch ids that must never commit again
	ServerID string
	// HeaderPrefix replaces SVC in header names ("" means SVC).
	HeaderPrefix string
	// Budgets is the operator's budget policy as JSON, in the shape of the
	// manifest's budgets; nil is none.
	Budgets []byte
}

// Loaded is the result of a successful Load.
type Loaded struct {
	Warnings []string // file:line:col: text
	Agents   int
}

// Health is answered from memory.
type Health struct {
	Ready     bool
	Serving   bool
	Heartbeat uint64
	Message   string
}

// Status is a snapshot for people and metrics.
type Status struct {
	FormationID    string
	Version        string
	Agents         int
	ActiveRequests int64
	TotalRequests  int64
	Uptime         time.Duration
}

// DrainRequest bounds the end of a child's work.
type DrainRequest struct {
	Timeout time.Duration
	// CloseSocket un-listens the port for every holder (stop, delete). It is
	// false when another child shares the socket.
	CloseSocket bool
	// LameDuck is how long idle client connections are waited out.
	LameDuck time.Duration
}

// Drained tells what was left.
type Drained struct {
	Unfinished int // turns that resume at the next start
}

// RecordKind says what a Record is.
type RecordKind uint8

// The kinds of records.
const (
	RecordAudit RecordKind = 1
	RecordAlert RecordKind = 2
)

// Record is an audit or alert record on its way to the supervisor.
type Record struct {
	Seq     uint64
	Time    time.Time
	Kind    RecordKind
	Action  string
	Actor   string
	Result  string
	Message string
	Detail  []byte // JSON object or nil
}
