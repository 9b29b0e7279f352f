package hub_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const repo = "acme/tiny"

// patience is how long the hub may be silent; it costs time only when a test
// fails.
const patience = 3 * time.Minute

// rig is a hub with one repository, and a client with an empty cache.
type rig struct {
	*embedtest.Hub
	files map[string][]byte
	cfg   hub.Config
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Hub: embedtest.NewHub(t), files: embedtest.Files(embedtest.NewBert(embedtest.Tiny, 1))}
	r.Add(repo, r.files)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	r.cfg = hub.Config{Dir: t.TempDir(), Endpoint: r.URL, Backoff: time.Millisecond, Stall: patience, Client: client}
	return r
}

func (r *rig) fetch(t *testing.T, model string, progress func(hub.Step)) (hub.Snapshot, error) {
	t.Helper()
	h, err := hub.New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := hub.ParseRef(model)
	if err != nil {
		t.Fatal(err)
	}
	return h.Fetch(t.Context(), ref, progress)
}

func (r *rig) mustFetch(t *testing.T) hub.Snapshot {
	t.Helper()
	s, err := r.fetch(t, "local/"+repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.same(t, s)
	return s
}

// same compares the snapshot with what the repository has.
func (r *rig) same(t *testing.T, s hub.Snapshot) {
	t.Helper()
	for name, want := range r.files {
		got, err := os.ReadFile(filepath.Join(s.Dir, filepath.FromSlash(name)))
		if name == "README.md" || name == "pytorch_model.bin" {
			if err == nil {
				t.Errorf("%s was fetched, though no embedder reads it", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s has other bytes than the hub", name)
		}
	}
}

func wantFault(t *testing.T, err error, kind fault.Kind, name string, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", name)
	}
	if fault.KindOf(err) != kind || fault.NameOf(err) != name {
		t.Errorf("got %v %s, want %v %s: %v", fault.KindOf(err), fault.NameOf(err), kind, name, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the message lacks %q: %v", w, err)
		}
	}
}

func TestFetch_BringsWhatAnEmbedderReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var steps []hub.Step
	s, err := r.fetch(t, "local/"+repo, func(s hub.Step) { steps = append(steps, s) })
	if err != nil {
		t.Fatal(err)
	}
	r.same(t, s)
	if s.Commit != embedtest.Commit || s.ONNX != "onnx/model.onnx" {
		t.Errorf("snapshot %+v", s)
	}
	last := steps[len(steps)-1]
	if last.Done != last.Total || last.Total < int64(len(r.files["onnx/model.onnx"])) {
		t.Errorf("the last step is %+v", last)
	}
	if !slices.IsSortedFunc(steps, func(a, b hub.Step) int { return int(a.Done - b.Done) }) {
		t.Errorf("progress went back: %v", steps)
	}
}

func TestFetch_DoesNotAskTheHubForWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.mustFetch(t)
	r.Calls()
	for _, model := range []string{"local/" + repo, "local/" + repo + ":" + embedtest.Commit} {
		again, err := r.fetch(t, model, nil)
		if err != nil {
			t.Fatal(err)
		}
		if again.Dir != first.Dir {
			t.Errorf("%s lies in %s, then %s", model, first.Dir, again.Dir)
		}
	}
	r.cfg.Offline = true
	if _, err := r.fetch(t, "local/"+repo, nil); err != nil {
		t.Error(err)
	}
	if calls := r.Calls(); len(calls) > 0 {
		t.Errorf("asked again: %v", calls)
	}
}

func TestFetch_FilesOfTwoRevisionsAreFetchedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mustFetch(t)
	r.Calls()
	if _, err := r.fetch(t, "local/"+repo+":v1", nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Calls() {
		if !strings.HasPrefix(c.Path, "/api/") {
			t.Errorf("fetched again: %+v", c)
		}
	}
}

func TestFetch_ContinuesWhereItWasCut(t *testing.T) {
	t.Parallel()
	const cut = 50_000
	for name, r := range map[string]*rig{"with sizes": newRig(t), "without": newRig(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "without" {
				r.Plain()
			}
			r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: cut, Times: 2})
			r.mustFetch(t)
			var ranges []string
			for _, c := range r.Calls() {
				if strings.HasPrefix(c.Path, "/storage/") && c.Method == http.MethodGet {
					ranges = append(ranges, c.Range)
				}
			}
			if diff := cmp.Diff([]string{"", "bytes=50000-", "bytes=100000-"}, ranges); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFetch_ContinuesAfterTheProcessDied(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cfg.Retries = -1
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 60_000})
	_, err := r.fetch(t, "local/"+repo, nil)
	wantFault(t, err, fault.Unavailable, hub.NameUnreachable)
	r.Fail("onnx/model.onnx", embedtest.Fault{})
	r.Calls()
	r.mustFetch(t)
	calls := r.Calls()
	if last := calls[len(calls)-1]; last.Range != "bytes=60000-" {
		t.Errorf("the last request was %+v", last)
	}
}

func TestFetch_BeginsAnewWhereTheHubCannotContinue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 60_000, Times: 1})
	r.cfg.Retries = -1
	if _, err := r.fetch(t, "local/"+repo, nil); err == nil {
		t.Fatal("the cut was not felt")
	}
	r.Fail("onnx/model.onnx", embedtest.Fault{NoRange: true})
	r.mustFetch(t)
}

func TestFetch_RefusesOtherContentThanAnnounced(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"onnx/model.onnx", "tokenizer.json"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.Fail(file, embedtest.Fault{Corrupt: true})
			_, err := r.fetch(t, "local/"+repo, nil)
			wantFault(t, err, fault.BadGateway, hub.NameBroken, "hash", file)
			h, _ := hub.New(r.cfg)
			ref, _ := hub.ParseRef("local/" + repo)
			if _, ok := h.Find(ref); ok {
				t.Error("a model with a wrong hash is in the cache")
			}
			r.Fail(file, embedtest.Fault{})
			r.mustFetch(t)
		})
	}
}

func TestFetch_MendsABadPartOfAnEarlierDownload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	data := r.files["onnx/model.onnx"]
	part := filepath.Join(r.cfg.Dir, "hub", "models--acme--tiny", "blobs", embedtest.ETag("onnx/model.onnx", data)+".incomplete")
	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(part, bytes.Repeat([]byte("x"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	r.mustFetch(t)
}

func TestFetch_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	without := func(r *rig, names ...string) {
		for _, n := range names {
			delete(r.files, n)
		}
	}
	tests := map[string]struct {
		model string
		set   func(*rig)
		kind  fault.Kind
		name  string
		words []string
	}{
		"unknown repository": {"local/acme/none", nil, fault.NotFound, hub.NameNotFound, []string{"acme/none", "private"}},
		"unknown revision":   {"local/acme/tiny:v9", nil, fault.NotFound, hub.NameNotFound, []string{`no revision "v9"`}},
		"gated":              {"local/acme/tiny", func(r *rig) { r.Gate(repo, "t0ken") }, fault.Forbidden, hub.NameForbidden, []string{"HF_TOKEN"}},
		"no network": {"local/acme/tiny", func(r *rig) {
			r.cfg.Endpoint = "http://127.0.0.1:1"
		}, fault.Unavailable, hub.NameUnreachable, []string{"127.0.0.1:1", "refused"}},
		"in trouble": {"local/acme/tiny", func(r *rig) {
			r.Fail("", embedtest.Fault{Status: 503})
		}, fault.Unavailable, hub.NameUnreachable, []string{"503"}},
		"no hub at all": {"local/acme/tiny", func(r *rig) {
			r.Fail("", embedtest.Fault{Status: 200, Body: "<html>"})
		}, fault.BadGateway, hub.NameBroken, []string{"no description"}},
		"no ONNX": {"local/acme/tiny", func(r *rig) {
			r.files["onnx/model_int8.onnx"] = []byte("x")
			without(r, "onnx/model.onnx")
		}, fault.Unprocessable, hub.NameUnsuitable, []string{"onnx/model.onnx", "onnx/model_int8.onnx"}},
		"no tokenizer": {"local/acme/tiny", func(r *rig) { without(r, "tokenizer.json") }, fault.Unprocessable, hub.NameUnsuitable, []string{"tokenizer.json"}},
		"path escapes": {"local/acme/tiny", func(r *rig) {
			r.files["../evil"] = []byte("x")
		}, fault.BadGateway, hub.NameBroken, []string{"../evil"}},
		"file too large":  {"local/acme/tiny", func(r *rig) { r.cfg.MaxFile = 1000 }, fault.TooLarge, hub.NameTooLarge, []string{"limit"}},
		"model too large": {"local/acme/tiny", func(r *rig) { r.cfg.MaxTotal = 1000 }, fault.TooLarge, hub.NameTooLarge, []string{"whole"}},
		"offline":         {"local/acme/tiny", func(r *rig) { r.cfg.Offline = true }, fault.Unavailable, hub.NameOffline, []string{"cache"}},
		"silent": {"local/acme/tiny", func(r *rig) {
			r.cfg.Stall, r.cfg.Retries = 50*time.Millisecond, -1
			r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 10, Stall: make(chan struct{})})
		}, fault.Unavailable, hub.NameUnreachable, []string{"sent nothing"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if tt.set != nil {
				tt.set(r)
			}
			_, err := r.fetch(t, tt.model, nil)
			wantFault(t, err, tt.kind, tt.name, tt.words...)
		})
	}
}

func TestFetch_ATokenOpensAGatedModelAndStaysWithTheHub(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Gate(repo, "t0ken")
	r.cfg.Token = "t0ken"
	r.mustFetch(t)
	for _, c := range r.Calls() {
		if c.Authorization != "Bearer t0ken" {
			t.Errorf("%s without the token", c.Path)
		}
	}
	r.cfg.Token, r.cfg.Dir = "s3cret", t.TempDir()
	_, err := r.fetch(t, "local/"+repo, nil)
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v", err)
	}
}

func TestFetch_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Fail("onnx/model.onnx", embedtest.Fault{CutAt: 10, Stall: make(chan struct{})})
	h, err := hub.New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := hub.ParseRef("local/" + repo)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = h.Fetch(ctx, ref, func(s hub.Step) {
		if s.File == "onnx/model.onnx" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFetch_OneOfManyProcessesFetches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	for range 5 {
		// A Hub of its own each: what they share is the directory.
		wg.Go(func() {
			if _, err := r.fetch(t, "local/"+repo, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	described := 0
	for _, c := range r.Calls() {
		if strings.HasPrefix(c.Path, "/api/") {
			described++
		}
	}
	if described != 1 {
		t.Errorf("the hub was asked %d times for the files", described)
	}
}

func TestParseRef_ShowsHowItWouldBeRight(t *testing.T) {
	t.Parallel()
	good := map[string]hub.Ref{
		"local/a/b":                               {Owner: "a", Name: "b", Revision: "main"},
		"local/a/b:v1.0":                          {Owner: "a", Name: "b", Revision: "v1.0"},
		"local/nomic-ai/nomic-embed-text-v1.5":    {Owner: "nomic-ai", Name: "nomic-embed-text-v1.5", Revision: "main"},
		"local/a/b:" + embedtest.Commit:           {Owner: "a", Name: "b", Revision: embedtest.Commit},
		"local/sentence-transformers/all_MiniLM-": {Owner: "sentence-transformers", Name: "all_MiniLM-", Revision: "main"},
	}
	for model, want := range good {
		got, err := hub.ParseRef(model)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", model, got, err)
		}
		if again, err := hub.ParseRef(got.String()); err != nil || again != got {
			t.Errorf("%s does not read back: %+v, %v", got, again, err)
		}
	}
	bad := map[string]string{
		"all-MiniLM-L6-v2":       `begins with "local/"`,
		"openai/text-embedding":  `begins with "local/"`,
		"local/all-MiniLM-L6-v2": "local/sentence-transformers/all-MiniLM-L6-v2",
		"local/some-model":       "local/<owner>/some-model",
		"local/some-model:v1":    "local/<owner>/some-model",
		"local/a/b:":             `nothing follows the ":"`,
		"local/a/b:../x":         "no branch",
		"local/a/b:x/y":          "no branch",
		"local/a/b/c":            "local/<owner>/<name>",
		"local/../b":             "local/<owner>/<name>",
		"local/a/..":             "local/<owner>/<name>",
		"local//b":               "local/<owner>/<name>",
		"local/":                 "local/<owner>/<name>",
	}
	for model, words := range bad {
		_, err := hub.ParseRef(model)
		if err == nil {
			t.Errorf("%s was taken", model)
			continue
		}
		wantFault(t, err, fault.Invalid, hub.NameBadModel, words)
	}
}

func TestFromEnv_ReadsWhatOthersSet(t *testing.T) {
	t.Parallel()
	lookup := func(env map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	}
	tests := map[string]struct {
		env  map[string]string
		want hub.Config
	}{
		"all": {
			map[string]string{"SVC_CACHE_DIR": "/c", "HF_HOME": "/h", "HF_ENDPOINT": "http://hub", "HF_TOKEN": "t", "HF_HUB_OFFLINE": "1"},
			hub.Config{Dir: "/c", Endpoint: "http://hub", Token: "t", Offline: true},
		},
		"the cache of others": {map[string]string{"HF_HOME": "/h", "HF_HUB_OFFLINE": "0"}, hub.Config{Dir: "/h"}},
		"not offline":         {map[string]string{"SVC_CACHE_DIR": "/c", "HF_HUB_OFFLINE": "False"}, hub.Config{Dir: "/c"}},
	}
	for name, tt := range tests {
		got, err := hub.FromEnv(lookup(tt.env))
		if err != nil || got.Dir != tt.want.Dir || got.Endpoint != tt.want.Endpoint || got.Token != tt.want.Token || got.Offline != tt.want.Offline {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, endpoint := range []string{"hub.example", "ftp://hub", "http://", "http://hub?x=1"} {
		if _, err := hub.New(hub.Config{Dir: "/c", Endpoint: endpoint}); err == nil || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%s: got %v", endpoint, err)
		}
	}
}

func TestFetch_SaysThatTheDiskIsTooSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cfg.MaxFile, r.cfg.MaxTotal = 1<<61, 1<<61
	r.Fail("", embedtest.Fault{Status: 200, Body: `{"sha": "` + embedtest.Commit + `", "siblings": [
		{"rfilename": "tokenizer.json", "size": 10, "blobId": "` + embedtest.Commit + `"},
		{"rfilename": "config.json", "size": 10, "blobId": "` + embedtest.Commit + `"},
		{"rfilename": "model.onnx", "size": 1, "lfs": {"sha256": "` + strings.Repeat("ab", 32) + `", "size": 1152921504606846976}}]}`})
	_, err := r.fetch(t, "local/"+repo, nil)
	wantFault(t, err, fault.Unavailable, hub.NameNoSpace, "are free")
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"local/a/b", "local/a/b:c", "local/../..", "local/a/b:", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, model string) {
		ref, err := hub.ParseRef(model)
		if err != nil {
			return
		}
		for _, s := range []string{ref.Owner, ref.Name, ref.Revision} {
			if !filepath.IsLocal(s) || strings.ContainsAny(s, `/\`) {
				t.Errorf("%q leaves the cache: %+v", model, ref)
			}
		}
	})
}
