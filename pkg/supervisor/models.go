package supervisor

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/fault"
)

// envHub is the variable that other programs of the hub read, too.
const envHub = "HF_ENDPOINT"

// fetchRetries of a download that gets nowhere: somebody waits for it, and the
// first formation that needs the model tries again.
const fetchRetries = 2

// modelEnv is the environment of what embeds: the settings, in which the
// variables are, and beside them the environment itself.
func (c Config) modelEnv(name string) (string, bool) {
	value := ""
	switch name {
	case "SVC_CACHE_DIR":
		value = c.CacheDir
	case envHub:
		value = string(c.Models.Hub)
	case hub.LibraryEnv:
		if value = c.Models.ONNX.Library; value != "" {
			value = c.path(value)
		}
	}
	if value == "" && c.LookupEnv != nil {
		return c.LookupEnv(name)
	}
	return value, value != ""
}

// sha256Hex is a checksum as the settings have it.
var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *settings) checkModels(cfg *Config) {
	isURL := func(a address) bool {
		u, err := url.Parse(string(a))
		return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
	}
	m := cfg.Models
	if m.Hub != "" {
		if _, err := hub.New(hub.Config{Dir: cfg.CacheDir, Endpoint: string(m.Hub)}); err != nil {
			s.wrong("models.hub", "want an address like https://host")
		}
	}
	if m.ONNX.URL != "" && !isURL(m.ONNX.URL) {
		s.wrong("models.onnxruntime.url", "want an address like https://host/file.tgz")
	}
	if m.ONNX.SHA256 != "" && !sha256Hex.MatchString(m.ONNX.SHA256) {
		s.wrong("models.onnxruntime.sha256", "want 64 lower-case hex digits")
	}
	if (m.ONNX.URL == "") != (m.ONNX.SHA256 == "") {
		s.wrong("models.onnxruntime", "url and sha256 go together: set both, or none")
	}
}

// FetchOptions say what to fetch.
type FetchOptions struct {
	// Models are ids like local/owner/name; none is the default model.
	Models []string
	// Progress is told how far a fetch is, some ten times a second, from the
	// goroutine of the call. nil is told nothing.
	Progress func(Fetching)
}

// Fetching is how far a fetch is.
type Fetching struct {
	Name        string
	Done, Total int64 // bytes; Total is 0 until it is known
	Waiting     bool  // another process fetches it
}

// Fetched is something that local embeddings need.
type Fetched struct {
	Name  string // a model's id, or ONNX Runtime
	Path  string // where it is; "" when it is not there
	Fresh bool   // it came now
	Err   error  // why it is not there, a fault
}

// RuntimeName is Fetched.Name of the library that runs models fast.
const RuntimeName = "ONNX Runtime"

// DefaultModel is what FetchModels fetches when no model is named.
const DefaultModel = hub.DefaultModel

// CheckModel tells whether a local model can have the id; its error is
// fault.Invalid and shows how it would be right.
func CheckModel(id string) error {
	_, err := hub.ParseRef(id)
	return err
}

// FetchModels brings embedding models, and the library that runs them, into the
// cache of the embedding process. Each that can't be had is told in its Err; the
// error is that of ctx, or one that concerns all of them.
func FetchModels(ctx context.Context, cfg Config, opts FetchOptions) ([]Fetched, error) {
	f, err := newFetcher(cfg, opts)
	if err != nil {
		return nil, err
	}
	if len(opts.Models) == 0 {
		opts.Models = []string{DefaultModel}
	}
	var all []Fetched
	cut := true // no model could be asked for
	for _, id := range opts.Models {
		one := f.model(ctx, id)
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		cut = cut && fault.NameOf(one.Err) == hub.NameUnreachable
		all = append(all, one)
	}
	if cut {
		return all, nil // the library would not be reached either, and is of no use without a model
	}
	library := f.library(ctx)
	if ctx.Err() != nil {
		return all, context.Cause(ctx)
	}
	return append(all, library), nil
}

// fetcher fetches for one home.
type fetcher struct {
	cfg  Config
	hub  *hub.Hub
	tell func(Fetching)
}

func newFetcher(cfg Config, opts FetchOptions) (*fetcher, error) {
	info, err := os.Stat(cfg.Home)
	if err != nil {
		return nil, fmt.Errorf("look at the home directory: %w", err)
	}
	// What root fetched, the supervisor of another user could not add to.
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return nil, fault.Errorf(fault.Forbidden, "Forbidden", "%s belongs to user %d: models are fetched by that user alone", cfg.Home, owner)
	}
	from, err := hub.FromEnv(cfg.modelEnv)
	if err != nil {
		return nil, err
	}
	from.Retries, from.Backoff, from.Log = fetchRetries, 300*time.Millisecond, cfg.Log
	h, err := hub.New(from)
	if err != nil {
		return nil, err
	}
	tell := opts.Progress
	if tell == nil {
		tell = func(Fetching) {}
	}
	return &fetcher{cfg: cfg, hub: h, tell: tell}, nil
}

// progress tells of the steps of one fetch.
func (f *fetcher) progress(name string) func(hub.Step) {
	return func(s hub.Step) { f.tell(Fetching{Name: name, Done: s.Done, Total: s.Total, Waiting: s.Waiting}) }
}

func (f *fetcher) model(ctx context.Context, id string) Fetched {
	out := Fetched{Name: id}
	ref, err := hub.ParseRef(id)
	if err != nil {
		out.Err = err
		return out
	}
	_, had := f.hub.Find(ref)
	if !had {
		f.tell(Fetching{Name: id}) // before the hub is asked, which may take a while
	}
	s, err := f.hub.Fetch(ctx, ref, f.progress(id))
	if err != nil {
		out.Err = err
		return out
	}
	out.Path, out.Fresh = s.Dir, !had
	return out
}

// library fetches the ONNX Runtime, unless the operator names one. One that came
// into the cache otherwise does where none can be fetched.
func (f *fetcher) library(ctx context.Context) Fetched {
	out := Fetched{Name: RuntimeName}
	named, isNamed := f.cfg.modelEnv(hub.LibraryEnv)
	if isNamed {
		out.Path, out.Err = hub.FindLibrary(named, f.cfg.modelEnv)
		return out
	}
	want, err := f.wanted()
	if err == nil {
		_, missing := os.Stat(f.hub.LibraryPath(want))
		if missing != nil {
			f.tell(Fetching{Name: RuntimeName})
		}
		if out.Path, err = f.hub.FetchLibrary(ctx, want, f.progress(RuntimeName)); err == nil {
			out.Fresh = missing != nil
			return out
		}
	}
	if out.Path, _ = hub.FindLibrary("", f.cfg.modelEnv, f.cfg.CacheDir); out.Path == "" {
		out.Err = err
	}
	return out
}

// wanted is the library that the settings name, or the official release.
func (f *fetcher) wanted() (hub.Library, error) {
	if c := f.cfg.Models.ONNX; c.URL != "" {
		return hub.Library{Version: c.SHA256[:12], URL: string(c.URL), SHA256: c.SHA256, Arch: runtime.GOARCH}, nil
	}
	l, ok := hub.DefaultLibrary(runtime.GOOS, runtime.GOARCH)
	if !ok {
		return l, fault.Errorf(fault.NotFound, hub.NameNotFound, "there is no release of the ONNX Runtime for %s/%s: name a library in models.onnxruntime.library", runtime.GOOS, runtime.GOARCH)
	}
	return l, nil
}
