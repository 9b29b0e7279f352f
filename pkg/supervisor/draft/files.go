package draft

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// The encodings of a file's content in a call.
const (
	UTF8   = "utf-8"
	Base64 = "base64"
)

// secretsKey is the file that opens secrets.enc. It can be laid into a draft,
// but no call hands it out: it never leaves the server.
const secretsKey = ".key"

// Entry is one file or directory; a directory's name ends with a slash.
type Entry struct {
	Name string `json:"name"`
	Type string `json:"type"` // file or dir
	Size *int64 `json:"size,omitempty"`
}

// List returns what lies in the directory rel ("" is the draft itself), by
// name: 400 InvalidPath, 404 FileNotFound.
func (d *Draft) List(rel string) ([]Entry, error) {
	rel, err := clean(rel, true)
	if err != nil {
		return nil, err
	}
	if err := d.noLinks(rel); err != nil {
		return nil, err
	}
	f, err := d.root.Open(rel)
	if err != nil {
		return nil, fileError(rel, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return nil, errPath("%s is a file; list takes a directory", rel)
	}
	all, err := f.ReadDir(-1)
	if err != nil {
		return nil, fileError(rel, err)
	}
	entries := make([]Entry, 0, len(all))
	for _, e := range all {
		if Own(path.Join(rel, e.Name())) {
			continue
		}
		if e.IsDir() {
			entries = append(entries, Entry{Name: e.Name() + "/", Type: "dir"})
			continue
		}
		// What is no regular file would be refused at the deploy: not shown.
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size := info.Size()
			entries = append(entries, Entry{Name: e.Name(), Type: "file", Size: &size})
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// Read returns a file's content and the encoding that it has: base64 when it is
// asked for or when the content is no text. The errors are 400 InvalidPath, 404
// FileNotFound and 413 PayloadTooLarge.
func (d *Draft) Read(rel, encoding string) (content, used string, err error) {
	if rel, err = clean(rel, false); err != nil {
		return "", "", err
	}
	if path.Base(rel) == secretsKey {
		return "", "", errPath("%s holds the secrets key, which does not leave the server", rel)
	}
	if encoding, err = checkEncoding(encoding); err != nil {
		return "", "", err
	}
	if err := d.noLinks(rel); err != nil {
		return "", "", err
	}
	text, err := d.read(rel, MaxRead)
	if err != nil {
		return "", "", err
	}
	if encoding == Base64 || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return base64.StdEncoding.EncodeToString(text), Base64, nil
	}
	return string(text), UTF8, nil
}

// read returns a regular file of at most limit bytes.
func (d *Draft) read(rel string, limit int64) ([]byte, error) {
	info, err := d.root.Lstat(rel) // before the open, which a named pipe would block
	switch {
	case err != nil:
		return nil, fileError(rel, err)
	case !info.Mode().IsRegular():
		return nil, errPath("%s is no file", rel)
	case info.Size() > limit:
		return nil, errTooLarge(rel, info.Size(), limit)
	}
	f, err := d.root.Open(rel)
	if err != nil {
		return nil, fileError(rel, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", rel, err)
	}
	if int64(len(text)) > limit {
		return nil, errTooLarge(rel, int64(len(text)), limit)
	}
	return text, nil
}

// Write puts content into the file rel, as a whole, and makes missing parents.
// It returns the file's size. The errors are 400 InvalidPath and DecodeError,
// 413 PayloadTooLarge, and 500 WriteError.
func (d *Draft) Write(rel, content, encoding string) (int64, error) {
	rel, err := clean(rel, false)
	if err != nil {
		return 0, err
	}
	data, err := decode(content, encoding)
	if err != nil {
		return 0, err
	}
	if int64(len(data)) > MaxWrite {
		return 0, errTooLarge(rel, int64(len(data)), MaxWrite)
	}
	mode, err := d.mayWrite(rel, int64(len(data)))
	if err != nil {
		return 0, err
	}
	if err := d.root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return 0, writeError(rel, err)
	}
	tmp := tmpName + suffix()
	if err := d.root.WriteFile(tmp, data, mode); err != nil {
		return 0, writeError(rel, errors.Join(err, d.root.RemoveAll(tmp)))
	}
	if err := d.root.Rename(tmp, rel); err != nil {
		return 0, writeError(rel, errors.Join(err, d.root.RemoveAll(tmp)))
	}
	return int64(len(data)), nil
}

// mayWrite refuses a path that is or goes through something else than files
// and directories, and a draft that would grow too large. It returns the mode
// of the new file: a replaced one keeps its own.
func (d *Draft) mayWrite(rel string, size int64) (fs.FileMode, error) {
	if err := d.noLinks(rel); err != nil {
		return 0, err
	}
	mode := fs.FileMode(0o644)
	used, err := d.usage()
	if err != nil {
		return 0, err
	}
	info, err := d.root.Lstat(rel)
	switch {
	case err == nil && info.IsDir():
		return 0, errPath("%s is a directory; write takes a file", rel)
	case err == nil && !info.Mode().IsRegular():
		return 0, errPath("%s is no file", rel)
	case err == nil:
		mode = info.Mode().Perm()
		used.entries, used.bytes = used.entries-1, used.bytes-info.Size()
	case path.Base(rel) == secretsKey:
		mode = 0o600
	}
	for dir := path.Dir(rel); dir != "."; dir = path.Dir(dir) {
		info, err := d.root.Lstat(dir)
		if err == nil {
			if !info.IsDir() {
				return 0, errPath("%s is a file, so nothing can lie in it", dir)
			}
			break
		}
		if err := used.add(0, d.lim); err != nil {
			return 0, err
		}
	}
	return mode, used.add(size, d.lim)
}

// Delete removes a file, or a directory with all in it: 400 InvalidPath, 404
// FileNotFound.
func (d *Draft) Delete(rel string) error {
	rel, err := clean(rel, false)
	if err != nil {
		return err
	}
	if err := d.noLinks(path.Dir(rel)); err != nil {
		return err // a link itself may be removed
	}
	if _, err := d.root.Lstat(rel); err != nil {
		return fileError(rel, err)
	}
	if err := d.root.RemoveAll(rel); err != nil {
		return writeError(rel, err)
	}
	return nil
}

// usage counts what the draft holds now, and removes files that a write left
// when the supervisor was killed.
func (d *Draft) usage() (usage, error) {
	var u usage
	err := fs.WalkDir(d.root.FS(), ".", func(rel string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case rel == "." || rel == metaName:
			return nil
		case strings.HasPrefix(rel, tmpName):
			return d.root.RemoveAll(rel)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		u.entries++
		if info.Mode().IsRegular() {
			u.bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("measure draft: %w", err)
	}
	return u, nil
}
