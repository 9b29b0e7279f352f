// Package hub fetches embedding models from a model hub, and the library that
// runs them, into a cache that all processes of a host share.
//
// A fetched file has been checked against the hash that the hub names for it,
// and appears under its name at once or not at all; a download that broke goes
// on where it ended. Processes that want the same model wait for the one that
// fetches it. The cache has the layout that other programs of the hub use, so
// they see each other's models. The embedding process and the supervisor's
// commands import it.
package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/filelock"
)

// DefaultEndpoint is the hub that is asked when none is configured.
const DefaultEndpoint = "https://huggingface.co"

// dialTimeout limits one attempt to connect.
const dialTimeout = 10 * time.Second

// Names of the faults that Fetch and FetchLibrary return.
const (
	NameBadModel    = "INVALID_EMBEDDING_MODEL"     // Invalid: no such model id can be
	NameNotFound    = "EMBEDDING_MODEL_NOT_FOUND"   // NotFound: the hub knows no such repository or revision
	NameForbidden   = "EMBEDDING_MODEL_FORBIDDEN"   // Forbidden: it wants a token that may read it
	NameUnsuitable  = "EMBEDDING_MODEL_UNSUITABLE"  // Unprocessable: it is there, but no ONNX sentence embedder
	NameUnreachable = "EMBEDDING_HUB_UNREACHABLE"   // Unavailable: no network, or the hub is in trouble
	NameBroken      = "EMBEDDING_DOWNLOAD_BROKEN"   // BadGateway: what came is not what the hub announced
	NameTooLarge    = "EMBEDDING_MODEL_TOO_LARGE"   // TooLarge: over a limit of Config
	NameNoSpace     = "EMBEDDING_CACHE_FULL"        // Unavailable: the disk of the cache is full
	NameOffline     = "EMBEDDING_MODEL_NOT_FETCHED" // Unavailable: not in the cache, and fetching is off
)

// Config is what a Hub needs. Only Dir must be set.
type Config struct {
	// Dir is the root of the cache, which Fetch makes; models lie in its
	// folder "hub", as under HF_HOME.
	Dir string
	// Endpoint is the address of the hub without a path; "" is DefaultEndpoint.
	Endpoint string
	// Token is sent to the Endpoint, and nowhere else; "" sends none.
	Token string
	// Offline never asks the hub.
	Offline bool
	// MaxFile and MaxTotal limit one file and one model, in bytes; 0 is 4 and 8 GiB.
	MaxFile, MaxTotal int64
	// Stall is the longest silence of the hub; 0 is 30 s.
	Stall time.Duration
	// Retries is how often a download that gets nowhere is begun again; 0 is 4,
	// below 0 is never. Each piece that arrives sets the count back.
	Retries int
	// Backoff is the pause before the first retry, which doubles; 0 is 500 ms.
	Backoff time.Duration
	// Client is used for all requests; nil is one with the limits above.
	Client *http.Client
	Log    zerolog.Logger
}

// Hub fetches models. It is safe for concurrent use.
type Hub struct {
	cfg      Config
	endpoint *url.URL
	client   *http.Client
}

// Step is how far a fetch is.
type Step struct {
	File        string // the file that is fetched now
	Done, Total int64  // bytes of the whole model; Total is 0 until it is known
	Waiting     bool   // another process fetches it
}

// Snapshot is a model in the cache.
type Snapshot struct {
	Ref    Ref
	Commit string // what Ref.Revision stood for
	Dir    string // holds the files under their names
	ONNX   string // path of the model within Dir, "onnx/model.onnx" for example
}

// New checks the configuration. It touches neither disk nor network.
func New(cfg Config) (*Hub, error) {
	if cfg.Dir == "" {
		return nil, errors.New("hub: no cache directory")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("hub: cache directory: %w", err)
	}
	cfg.Dir = dir
	if cfg.Endpoint == "" {
		cfg.Endpoint = DefaultEndpoint
	}
	endpoint, err := url.Parse(strings.TrimRight(cfg.Endpoint, "/"))
	if err != nil || endpoint.Host == "" || (endpoint.Scheme != "http" && endpoint.Scheme != "https") || endpoint.RawQuery != "" {
		return nil, fmt.Errorf("hub: the address %q is not like https://host", cfg.Endpoint)
	}
	setDefault(&cfg.MaxFile, 4<<30)
	setDefault(&cfg.MaxTotal, 8<<30)
	setDefault(&cfg.Stall, 30*time.Second)
	setDefault(&cfg.Retries, 4)
	setDefault(&cfg.Backoff, 500*time.Millisecond)
	h := &Hub{cfg: cfg, endpoint: endpoint, client: cfg.Client}
	if h.client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.ResponseHeaderTimeout = cfg.Stall
		// A host without a way out shall not keep people waiting.
		transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
		transport.DisableCompression = true // sizes and ranges count the bytes of the file
		h.client = &http.Client{Transport: transport}
	}
	return h, nil
}

func setDefault[T int | int64 | time.Duration](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

// CacheDir is the cache that the environment names: SVC_CACHE_DIR, HF_HOME, or
// a folder of the user's own cache.
func CacheDir(lookup func(string) (string, bool)) (string, error) {
	for _, name := range []string{"SVC_CACHE_DIR", "HF_HOME"} {
		if dir, ok := lookup(name); ok && dir != "" {
			return dir, nil
		}
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for models: %w; set SVC_CACHE_DIR", err)
	}
	return filepath.Join(dir, "agentformation"), nil
}

// FromEnv is the configuration that the environment asks for: the cache of
// CacheDir, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.
func FromEnv(lookup func(string) (string, bool)) (Config, error) {
	dir, err := CacheDir(lookup)
	if err != nil {
		return Config{}, err
	}
	get := func(name string) string { v, _ := lookup(name); return v }
	offline := get("HF_HUB_OFFLINE")
	return Config{
		Dir: dir, Endpoint: get("HF_ENDPOINT"), Token: get("HF_TOKEN"),
		Offline: offline != "" && offline != "0" && !strings.EqualFold(offline, "false"),
	}, nil
}

// Find returns a model that is in the cache whole, and never asks the hub.
func (h *Hub) Find(ref Ref) (Snapshot, bool) {
	s, err := h.cached(ref)
	return s, err == nil
}

// Fetch returns the model, from the cache when it is there: a branch that has
// moved on the hub since then is not fetched again. progress, when not nil, is
// called from one goroutine at a time, at most some ten times a second. The
// error is a fault with one of the names above, or that of ctx.
func (h *Hub) Fetch(ctx context.Context, ref Ref, progress func(Step)) (Snapshot, error) {
	if s, ok := h.Find(ref); ok {
		return s, nil
	}
	if h.cfg.Offline {
		return Snapshot{}, fault.New(fault.Unavailable, NameOffline, fmt.Sprintf("embedding model %s is not in the cache %s, and fetching is switched off (HF_HUB_OFFLINE)", ref, h.cfg.Dir))
	}
	if progress == nil {
		progress = func(Step) {}
	}
	dir := h.repo(ref)
	if err := os.MkdirAll(filepath.Join(dir, "blobs"), 0o755); err != nil { //nolint:gosec // formations of other users read the cache
		return Snapshot{}, cacheFault(ref.what(), err)
	}
	unlock, err := filelock.Take(ctx, filepath.Join(dir, ".lock"), 0o644, func() { progress(Step{Waiting: true}) })
	if err != nil {
		return Snapshot{}, cacheFault(ref.what(), err)
	}
	defer unlock()
	if s, ok := h.Find(ref); ok { // somebody else was quicker
		return s, nil
	}
	f := &fetch{hub: h, what: ref.what(), host: h.endpoint.Host, ref: ref, dir: dir, progress: progress}
	if err := f.run(ctx); err != nil {
		if ctx.Err() != nil {
			return Snapshot{}, fmt.Errorf("fetch embedding model %s: %w", ref, context.Cause(ctx))
		}
		return Snapshot{}, err
	}
	s, err := h.cached(ref)
	if err != nil {
		return Snapshot{}, cacheFault(ref.what(), err)
	}
	return s, nil
}

// repo is the directory of a repository.
func (h *Hub) repo(ref Ref) string {
	return filepath.Join(h.cfg.Dir, "hub", "models--"+ref.Owner+"--"+ref.Name)
}

var commit = lazily(`^[0-9a-f]{40}$`)

// cached finds the snapshot a revision stands for; every file that is wanted
// must be there.
func (h *Hub) cached(ref Ref) (Snapshot, error) {
	dir, sha := h.repo(ref), ref.Revision
	if !commit().MatchString(sha) {
		data, err := readSmall(filepath.Join(dir, "refs", ref.Revision), 200)
		if err != nil {
			return Snapshot{}, err
		}
		sha = strings.TrimSpace(string(data))
		if !commit().MatchString(sha) {
			return Snapshot{}, fmt.Errorf("refs/%s holds no commit", ref.Revision)
		}
	}
	s := Snapshot{Ref: ref, Commit: sha, Dir: filepath.Join(dir, "snapshots", sha)}
	for _, name := range []string{"tokenizer.json", "config.json"} {
		if _, err := os.Stat(filepath.Join(s.Dir, name)); err != nil {
			return Snapshot{}, err
		}
	}
	for _, name := range onnxFiles {
		if _, err := os.Stat(filepath.Join(s.Dir, filepath.FromSlash(name))); err == nil {
			s.ONNX = name
			return s, nil
		}
	}
	return Snapshot{}, fmt.Errorf("%s holds no ONNX model", s.Dir)
}

// readSmall reads a file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, want at most %d", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}
