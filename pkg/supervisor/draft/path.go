package draft

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/fault"
)

// clean returns the relative slash path that a caller means. What could mean
// different places to different programs is refused rather than repaired. The
// draft itself is "." and only allowed when top is true.
func clean(rel string, top bool) (string, error) {
	switch {
	case len(rel) > maxPath:
		return "", errPath("the path has %d bytes; at most %d are allowed", len(rel), maxPath)
	case !utf8.ValidString(rel):
		return "", errPath("the path %q is not valid UTF-8", rel)
	case strings.ContainsRune(rel, '\\'):
		return "", errPath("the path %q has a backslash; separate directories with /", rel)
	case strings.IndexFunc(rel, func(r rune) bool { return r < 0x20 || r == 0x7f }) >= 0:
		return "", errPath("the path %q has control characters", rel)
	case strings.HasPrefix(rel, "/") && (!top || rel != "/"):
		return "", errPath("the path %q is absolute; name it relative to the draft", rel)
	}
	rel = strings.TrimPrefix(rel, "/")
	for part := range strings.SplitSeq(rel, "/") {
		if part == ".." {
			return "", errPath("the path %q has ..; it would leave the draft", rel)
		}
		if len(part) > maxName {
			return "", errPath("the path %q has a name of more than %d bytes", rel, maxName)
		}
	}
	rel = path.Clean(rel)
	switch {
	case rel == "." && !top:
		return "", errPath("path is missing; name a file of the draft")
	case strings.Count(rel, "/")+1 > maxDepth:
		return "", errPath("the path %q is more than %d levels deep", rel, maxDepth)
	case Own(rel):
		return "", errPath("%s belongs to the draft itself; names that begin with %s are reserved", rel, reserved)
	}
	return rel, nil
}

// noLinks refuses a path that is or goes through a symbolic link. os.Root keeps
// links from leaving the draft; this one tells the caller what is wrong, and
// keeps two names for one file away from the limits.
func (d *Draft) noLinks(rel string) error {
	for at := rel; at != "."; at = path.Dir(at) {
		if info, err := d.root.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return errPath("%s is a symbolic link; a draft has files and directories only", at)
		}
	}
	return nil
}

func errPath(format string, args ...any) error {
	return fault.Errorf(fault.Invalid, "InvalidPath", format, args...)
}

func errTooLarge(rel string, size, limit int64) error {
	return fault.Errorf(fault.TooLarge, "PayloadTooLarge", "%s has %d bytes; at most %d are allowed", rel, size, limit)
}

// fileError names what the system said about a path.
func fileError(rel string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fault.Wrap(fault.NotFound, "FileNotFound", "the draft has no "+rel, err)
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(fault.Failed, "WriteError", rel+": "+cause(err), err)
	}
	return fault.Wrap(fault.Invalid, "InvalidPath", rel+" cannot be opened: "+cause(err), err)
}

func checkEncoding(encoding string) (string, error) {
	switch strings.ToLower(encoding) {
	case "", UTF8, "utf8":
		return UTF8, nil
	case Base64:
		return Base64, nil
	}
	return "", fault.Errorf(fault.Invalid, "DecodeError", "encoding %q is unknown; it is %s or %s", encoding, UTF8, Base64)
}

// decode returns the bytes of a written file.
func decode(content, encoding string) ([]byte, error) {
	encoding, err := checkEncoding(encoding)
	if err != nil {
		return nil, err
	}
	if encoding == UTF8 {
		return []byte(content), nil
	}
	data, err := base64.StdEncoding.DecodeString(content)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "DecodeError", "content is no standard base64: %w", err)
	}
	return data, nil
}
