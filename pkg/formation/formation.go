// Package formation puts the parts of a formation together, in the order of
// its floors, and is the child's side of the control protocol. It is the only
// room that knows all others; cmd/formation-runtime imports it.
//
//	New ── Load ──► loaded ── Serve ──► serving ── Drain ──► draining ── Stop ──► stopped
//	                                     │  ▲ Serve
//	                               Pause ▼  │
//	                                    paused ── Drain ──► …
//
// Load leaves a formation that could serve: manifest and secrets read, store
// open, what dead launches left taken in hand. Serve accepts connections and
// does the background work. During an update two children share socket and
// store: Pause leaves accepting and background work to the other and goes on
// with the rest. Stop cuts what is still open; it resumes in another process.
package formation

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/spool"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/redact"
	"github.com/agentformation/service/pkg/version"
)

// Config is what the process brings.
type Config struct {
	// FormationID is the id that the manifest must have; "" accepts any.
	FormationID string
	LaunchID    string
	// CheckHello refuses a stranger on the control socket; nil lets everybody in.
	CheckHello func(control.HelloRequest) error
	// Listen opens the formation's port, at Serve and not before.
	Listen func() (net.Listener, error)
	// CloseSocket un-listens the port for every process that holds it; nil
	// when nobody else does.
	CloseSocket func() error
	// SecretsKey is the text of the key to secrets.enc; "" means the file .key.
	SecretsKey string
	// Redact is told every secret value and key. Log must write through it; nil
	// makes one for error replies and records.
	Redact *redact.Redactor
	// Env looks up variables that ${{ env.NAME }} may name.
	Env func(name string) (string, bool)
	// Embedder asks the embedding process of this host for "local/…" models; nil
	// refuses them.
	Embedder *embedder.Client
	// Alone tells that no other process may write to the store, whatever its
	// launch: every earlier launch is fenced.
	Alone bool
	// Fatal is told when the formation can't go on by itself; it ends the
	// process. nil does nothing.
	Fatal func(error)
	Log   zerolog.Logger
	// Tap is what Log writes to behind its redactor; nil keeps the log out of
	// /v1/logs.
	Tap *LogTap
	// KeepLevel tells that who started the process chose the level of the log;
	// else it is logging.system.level.
	KeepLevel bool
}

// Formation is one running formation. It implements control.Formation.
type Formation struct {
	cfg     Config
	started time.Time
	beat    atomic.Uint64

	work    *work
	conns   *newConns
	closing atomic.Bool // answers close their connections: another child accepts, or none
	stopped atomic.Bool
	ending  chan struct{} // closed by the first Drain or Stop, which no Load keeps waiting
	end     sync.Once

	mu       sync.Mutex // guards the fields that follow
	parts    *parts     // nil before Load
	server   *http.Server
	accept   *accepting
	paused   bool // another child accepts
	drained  bool // nothing is accepted any more
	stopOnce sync.Once

	background *errgroup.Group
	cancel     context.CancelFunc
}

var _ control.Formation = (*Formation)(nil)

// New returns a formation that has loaded nothing.
func New(cfg Config) *Formation {
	if cfg.Redact == nil {
		cfg.Redact = redact.New()
	}
	cfg.Redact.Add(strings.Split(cfg.SecretsKey, ",")...)
	return &Formation{cfg: cfg, started: time.Now(), work: newWork(), conns: newNewConns(), ending: make(chan struct{})}
}

// Hello implements control.Formation.
func (f *Formation) Hello(_ context.Context, req control.HelloRequest) (control.Hello, error) {
	if f.cfg.CheckHello != nil {
		if err := f.cfg.CheckHello(req); err != nil {
			return control.Hello{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.Hello{
		FormationID: f.cfg.FormationID, LaunchID: f.cfg.LaunchID, Build: version.String(), PID: os.Getpid(),
		StartedAt: f.started, Serving: f.server != nil, ControlVersion: control.Version,
	}, nil
}

var errNotLoaded = fault.New(fault.Conflict, "", "the formation is not loaded")

func (f *Formation) loaded() (*parts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.parts == nil {
		return nil, errNotLoaded
	}
	return f.parts, nil
}

// Manifest returns what was loaded. It is called from Config.Listen, when the
// formation is loaded and locked.
func (f *Formation) Manifest() *manifest.Formation { return f.parts.manifest }

// Health implements control.Formation. It takes no lock that a turn could hold.
func (f *Formation) Health(context.Context) (control.Health, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.Health{
		Ready: f.parts != nil, Serving: f.server != nil && !f.paused && !f.drained, Heartbeat: f.beat.Load(),
	}, nil
}

// Status implements control.Formation.
func (f *Formation) Status(context.Context) (control.Status, error) {
	p, err := f.loaded()
	if err != nil {
		return control.Status{}, err
	}
	total, active := p.turns.Counts()
	return control.Status{
		FormationID: p.manifest.ID, Version: p.manifest.Version, Agents: len(p.manifest.Agents),
		ActiveRequests: active, TotalRequests: total, Uptime: time.Since(f.started),
	}, nil
}

// Records implements control.Formation.
func (f *Formation) Records(ctx context.Context, after uint64, sink func(control.Record) error) error {
	p, err := f.loaded()
	if err != nil {
		return err
	}
	return p.spool.Follow(ctx, after, func(r spool.Record) error {
		return sink(control.Record{
			Seq: r.Seq, Time: r.Time, Kind: control.RecordKind(r.Kind),
			Action: r.Action, Actor: r.Actor, Result: r.Result, Message: r.Message, Detail: r.Detail,
		})
	})
}
