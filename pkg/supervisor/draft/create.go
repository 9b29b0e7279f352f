package draft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentformation/service/pkg/fault"
)

// Place says where a draft will lie.
type Place struct {
	Dir     string // its parent is made when missing
	Staging string // an existing directory on the same file system, for the time before
	Limits  Limits
}

// Minimal are the files of a new draft: the least that loads and answers, by
// the offline model, until its author changes them.
func Minimal(id string) map[string]string {
	return map[string]string{
		"formation.afs": fmt.Sprintf(`schema: "1.0.0"
id: %[1]s
name: %[1]s
description: A new formation
version: 0.1.0

llm:
  models:
    - text: demo/hello   # an offline model; name a provider's, for example openai/gpt-4o

agents:
  - assistant
`, id),
		"agents/assistant.afs": `schema: "1.0.0"
id: assistant
name: Assistant
description: Answers questions

system_message: You are a helpful assistant.
`,
	}
}

// Create makes a draft of the given files (slash paths): 409 DraftAlreadyExists
// when there is one, 500 CreateError or WriteError.
func Create(p Place, meta Meta, files map[string]string) error {
	return p.make(meta, func(root *os.Root) error {
		for name, text := range files {
			if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return writeError(name, err)
			}
			if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
				return writeError(name, err)
			}
		}
		return nil
	})
}

// Clone makes a draft of the formation that lies in src. Only regular files and
// directories are copied; the error is 409 DraftAlreadyExists, 413
// PayloadTooLarge, or 500 CopyError.
func Clone(ctx context.Context, p Place, meta Meta, src string) error {
	from, err := os.OpenRoot(src)
	if err != nil {
		return copyError(err)
	}
	defer from.Close()
	return p.make(meta, func(root *os.Root) error {
		c := &copier{ctx: ctx, from: from, to: root, lim: p.Limits}
		err := fs.WalkDir(from.FS(), ".", c.visit)
		if fault.NameOf(err) == "PayloadTooLarge" || err == nil {
			return err
		}
		return copyError(err)
	})
}

// make fills a directory in staging and puts it in place by one rename.
func (p Place) make(meta Meta, fill func(*os.Root) error) error {
	if Exists(p.Dir) {
		return errExists()
	}
	tmp := filepath.Join(p.Staging, "draft-"+suffix())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fault.Wrap(fault.Failed, "CreateError", "the draft's directory cannot be made", err)
	}
	defer os.RemoveAll(tmp)
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return fault.Wrap(fault.Failed, "CreateError", "the draft's directory cannot be opened", err)
	}
	defer root.Close()
	text, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("write %s: %w", metaName, err)
	}
	if err := root.WriteFile(metaName, text, 0o600); err != nil {
		return writeError(metaName, err)
	}
	if err := fill(root); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.Dir), 0o700); err != nil {
		return fault.Wrap(fault.Failed, "CreateError", "the formation's directory cannot be made", err)
	}
	if err := os.Rename(tmp, p.Dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return errExists()
		}
		return fault.Wrap(fault.Failed, "CreateError", "the draft cannot be moved into place", err)
	}
	return nil
}

func errExists() error {
	return fault.New(fault.Conflict, "DraftAlreadyExists", "there is a draft already; discard or deploy it first")
}

func writeError(name string, err error) error {
	return fault.Wrap(fault.Failed, "WriteError", name+" cannot be written: "+cause(err), err)
}

func copyError(err error) error {
	return fault.Wrap(fault.Failed, "CopyError", "the deployed version cannot be copied: "+cause(err), err)
}

// cause is the last word of the system, without our paths.
func cause(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// copier copies one directory tree into another.
type copier struct {
	ctx      context.Context //nolint:containedctx // fs.WalkDir has no other way to learn that the caller left
	from, to *os.Root
	lim      Limits
	used     usage
}

// visit is an fs.WalkDirFunc.
func (c *copier) visit(rel string, e fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	info, err := e.Info()
	switch {
	case err != nil:
		return err
	case rel == "." || Own(rel):
		return nil
	case e.IsDir():
		if err := c.used.add(0, c.lim); err != nil {
			return err
		}
		return c.to.Mkdir(rel, 0o755)
	case !info.Mode().IsRegular():
		return nil
	}
	if err := c.used.add(info.Size(), c.lim); err != nil {
		return err
	}
	return c.file(rel, info.Mode().Perm())
}

func (c *copier) file(rel string, mode fs.FileMode) error {
	src, err := c.from.Open(rel)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := c.to.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// usage is what a draft holds.
type usage struct {
	entries int
	bytes   int64
}

// add counts one more entry.
func (u *usage) add(size int64, lim Limits) error {
	u.entries++
	u.bytes += size
	switch {
	case lim.MaxEntries > 0 && u.entries > lim.MaxEntries:
		return fault.Errorf(fault.TooLarge, "PayloadTooLarge",
			"the draft would have more than %d files and directories (limits.bundle.max_entries)", lim.MaxEntries)
	case lim.MaxBytes > 0 && u.bytes > lim.MaxBytes:
		return fault.Errorf(fault.TooLarge, "PayloadTooLarge",
			"the draft would have more than %d bytes (limits.bundle.max_unpacked_bytes)", lim.MaxBytes)
	}
	return nil
}
