package hub

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
)

// onnxFiles are where exporters leave the model, best first. Quantised variants
// are not taken: which of them is good is for people to say.
var onnxFiles = []string{"onnx/model.onnx", "model.onnx"}

// wanted are the other files that a sentence embedder has at its root.
var wanted = []string{
	"config.json", "tokenizer.json", "tokenizer_config.json", "modules.json",
	"sentence_bert_config.json", "config_sentence_transformers.json",
}

// moduleConfig is the configuration of a module, as 1_Pooling/config.json.
var moduleConfig = lazily(`^\d{1,2}_[A-Za-z]{1,30}/config\.json$`)

// spare is what a download leaves free on the disk of the cache, in bytes.
const spare = 64 << 20

// progressEvery is the least time between two reports of progress.
const progressEvery = 100 * time.Millisecond

// fetch is one download, of a model under the lock of its repository, or of the
// ONNX Runtime.
type fetch struct {
	hub      *Hub
	what     string // is fetched, for messages
	host     string // of whom it is asked first
	ref      Ref    // of a model; zero for the library
	dir      string // holds the folder blobs
	progress func(Step)

	commit string
	step   Step
	told   time.Time
}

// file is one file to fetch. hash is the name of its blob.
type file struct {
	name string
	size int64 // -1: the hub didn't say
	hash string
	at   *url.URL // nil: the hub's address for the name
}

func (f *fetch) run(ctx context.Context) error {
	all, err := f.describe(ctx)
	if err != nil {
		return err
	}
	files, err := f.choose(all)
	if err != nil {
		return err
	}
	for i := range files {
		if files[i].hash == "" {
			if err := f.look(ctx, &files[i]); err != nil {
				return err
			}
		}
		f.step.Total += max(files[i].size, 0)
	}
	if err := f.fits(files); err != nil {
		return err
	}
	for _, file := range files {
		f.step.File = file.name
		f.tell(true)
		if err := f.blob(ctx, file); err != nil {
			return err
		}
	}
	f.tell(true)
	if err := f.link(files); err != nil {
		return cacheFault(f.what, err)
	}
	return nil
}

// choose picks the files of a sentence embedder; the model itself comes last,
// so that a snapshot with a model is whole.
func (f *fetch) choose(all []file) ([]file, error) {
	byName := map[string]file{}
	for _, file := range all {
		byName[file.name] = file
	}
	model := ""
	for _, name := range onnxFiles {
		if _, ok := byName[name]; ok {
			model = name
			break
		}
	}
	if model == "" {
		return nil, f.unfit("it has no %s%s", strings.Join(onnxFiles, " or "), others(all))
	}
	for _, name := range []string{"tokenizer.json", "config.json"} {
		if _, ok := byName[name]; !ok {
			return nil, f.unfit("it has no %s", name)
		}
	}
	var files []file
	for _, file := range all {
		data := strings.HasPrefix(file.name, model+"_data") || strings.HasPrefix(file.name, model+".data")
		if data || slices.Contains(wanted, file.name) || moduleConfig().MatchString(file.name) {
			files = append(files, file)
		}
	}
	return append(files, byName[model]), nil
}

// others names the ONNX files that were not taken.
func others(all []file) string {
	var names []string
	for _, file := range all {
		if path.Ext(file.name) == ".onnx" && len(names) < 5 {
			names = append(names, file.name)
		}
	}
	if names == nil {
		return ", nor any other ONNX file"
	}
	return " (but " + strings.Join(names, ", ") + ")"
}

// fits compares the sizes with the limits and with the free space.
func (f *fetch) fits(files []file) error {
	limit := f.hub.cfg
	for _, file := range files {
		if file.size > limit.MaxFile {
			return f.tooLarge(file.name, file.size, limit.MaxFile)
		}
	}
	if f.step.Total > limit.MaxTotal {
		return f.tooLarge("the whole", f.step.Total, limit.MaxTotal)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(f.dir, &fs); err != nil {
		return cacheFault(f.what, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if have := f.present(files); f.step.Total-have+spare > free {
		return fault.New(fault.Unavailable, NameNoSpace, fmt.Sprintf("%s needs %s more in %s, where %s are free",
			f.what, mebi(f.step.Total-have+spare), f.hub.cfg.Dir, mebi(free)))
	}
	return nil
}

// present is how many bytes of the files are in the cache.
func (f *fetch) present(files []file) int64 {
	sum := int64(0)
	for _, file := range files {
		for _, p := range []string{f.blobPath(file), f.blobPath(file) + incomplete} {
			if info, err := os.Stat(p); err == nil {
				sum += info.Size()
				break
			}
		}
	}
	return sum
}

func (f *fetch) tooLarge(what string, size, limit int64) error {
	return fault.New(fault.TooLarge, NameTooLarge, fmt.Sprintf("%s: %s has %s, more than the limit of %s", f.what, what, mebi(size), mebi(limit)))
}

func mebi(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func (f *fetch) tell(always bool) {
	if now := time.Now(); always || now.Sub(f.told) >= progressEvery {
		f.told = now
		f.progress(f.step)
	}
}

func (f *fetch) blobPath(file file) string { return filepath.Join(f.dir, "blobs", file.hash) }

// link makes the snapshot: a link per file, then the name of the revision,
// which is what makes it visible.
func (f *fetch) link(files []file) error {
	snapshot := filepath.Join(f.dir, "snapshots", f.commit)
	for _, file := range files {
		at := filepath.Join(snapshot, filepath.FromSlash(file.name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil { //nolint:gosec // formations of other users read the cache
			return err
		}
		to, err := filepath.Rel(filepath.Dir(at), f.blobPath(file))
		if err != nil {
			return err
		}
		if err := replace(at, func(tmp string) error { return os.Symlink(to, tmp) }); err != nil {
			return err
		}
	}
	refs := filepath.Join(f.dir, "refs")
	if err := os.MkdirAll(refs, 0o755); err != nil { //nolint:gosec // as above
		return err
	}
	for _, name := range []string{f.commit, f.ref.Revision} {
		write := func(tmp string) error { return os.WriteFile(tmp, []byte(f.commit), 0o644) } //nolint:gosec // as above
		if err := replace(filepath.Join(refs, name), write); err != nil {
			return err
		}
	}
	return nil
}

// replace makes a file beside its place and renames it there.
func replace(at string, write func(tmp string) error) error {
	tmp := at + ".new"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, at)
}
