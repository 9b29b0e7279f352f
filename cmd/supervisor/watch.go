package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// maxWatched is how many files a watched directory may have.
const maxWatched = 50_000

// changes are the changes of a formation's files.
type changes struct {
	// names has the name of a changed file, after all was quiet for a moment. It
	// is closed when the watching ends.
	names  chan string
	cancel func()
	wg     sync.WaitGroup
}

// fileMark tells one state of a file from another.
type fileMark struct {
	size  int64
	mtime time.Time
	mode  fs.FileMode
}

// dirWatch is a directory with the state that was last reported.
type dirWatch struct {
	dir  string
	w    *fsnotify.Watcher
	seen map[string]fileMark
}

// watchDir watches the files below dir that a deploy would send.
func watchDir(ctx context.Context, dir string) (*changes, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	d := &dirWatch{dir: dir, w: w}
	if d.seen, err = d.scan(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &changes{names: make(chan string), cancel: cancel}
	c.wg.Go(func() {
		defer close(c.names)
		d.run(ctx, c.names)
	})
	return c, nil
}

// close ends the watching.
func (c *changes) close() {
	c.cancel()
	c.wg.Wait()
}

// run reports changes. Events only say when to look: what counts is that a file
// is another than before, since a draft or an editor may touch files for
// nothing.
func (d *dirWatch) run(ctx context.Context, names chan<- string) {
	defer d.w.Close()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-d.w.Events:
			if !ok {
				return
			}
			if rel, err := filepath.Rel(d.dir, ev.Name); err == nil && isOurs(rel) {
				quiet.Reset(devQuiet)
			}
		case _, ok := <-d.w.Errors: // such as a queue that ran over: look at all
			if !ok {
				return
			}
			quiet.Reset(devQuiet)
		case <-quiet.C:
			name, err := d.changed()
			if err != nil {
				return
			}
			if name == "" {
				continue
			}
			select {
			case names <- name:
			case <-ctx.Done():
				return
			}
		}
	}
}

// changed compares the files with what was last seen and names one that is
// another, "" when none is.
func (d *dirWatch) changed() (string, error) {
	now, err := d.scan()
	if err != nil {
		return "", err
	}
	before := d.seen
	d.seen = now
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if mark, known := before[name]; !known || mark != now[name] {
			return name, nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := now[name]; !there {
			return name, nil
		}
	}
	return "", nil
}

// scan takes the state of all files and watches every directory.
func (d *dirWatch) scan() (map[string]fileMark, error) {
	marks := map[string]fileMark{}
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != d.dir:
			return nil // removed meanwhile
		case err != nil:
			return err
		}
		rel, err := filepath.Rel(d.dir, path)
		if err != nil {
			return err
		}
		if rel != "." && !isOurs(rel) {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		return d.mark(marks, rel, path, entry)
	})
	return marks, err
}

// mark takes the state of one entry.
func (d *dirWatch) mark(marks map[string]fileMark, rel, path string, entry fs.DirEntry) error {
	if entry.IsDir() {
		if err := d.w.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("watch %s: %w (the limit is fs.inotify.max_user_watches)", path, err)
		}
		return nil
	}
	if len(marks) >= maxWatched {
		return fmt.Errorf("it has more than %d files", maxWatched)
	}
	info, err := os.Stat(path) // through links, as the formation reads it
	if err != nil {
		return nil //nolint:nilerr // removed meanwhile, or a link to nowhere: the manifest's check tells
	}
	marks[rel] = fileMark{size: info.Size(), mtime: info.ModTime(), mode: info.Mode()}
	return nil
}

// isOurs tells whether a change of the file concerns the formation: what a
// deploy leaves out and what editors keep beside a file do not.
func isOurs(rel string) bool {
	keep := keepsName(false)
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		hidden := strings.HasPrefix(part, ".") && part != ".key"
		if !keep(part) || hidden || strings.HasSuffix(part, "~") || slices.Contains([]string{".swp", ".swx", ".bak"}, filepath.Ext(part)) {
			return false
		}
	}
	return true
}
