package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds below which a disk is nearly full or full, in bytes, and the days
// before its end at which a certificate is mentioned.
const (
	littleDisk = 1 << 30
	noDisk     = 100 << 20
	soonEnds   = 14 * 24 * time.Hour
)

// maxNamed is how many files a finding names.
const maxNamed = 5

func settings(_ context.Context, h *host) Result {
	file := filepath.Join(h.Home, "config.yaml")
	switch {
	case errors.Is(h.Settings, fs.ErrNotExist):
		return fail("supervisor init --home "+h.Home, "%s does not exist", file)
	case h.Settings != nil:
		return fail("change what it names, then: supervisor config check --home "+h.Home, "%s", h.Settings)
	case len(h.Warnings) > 0:
		return warn("remove the keys that it names", "%s", strings.Join(h.Warnings, "\n"))
	}
	return ok("%s is right", file)
}

func homePath(_ context.Context, h *host) Result {
	if n := len(h.Home); n > h.MaxHome {
		return fail("choose a home with a shorter path",
			"the path %s has %d bytes; at most %d leave room for the sockets below it", h.Home, n, h.MaxHome)
	}
	return ok("%s", h.Home)
}

// permissions looks for files that more users may read than should.
func permissions(_ context.Context, h *host) Result {
	var open, unseen []string
	look := func(path string, others fs.FileMode) {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unseen = append(unseen, path)
		case info.Mode().Perm()&others != 0:
			open = append(open, fmt.Sprintf("%s %s", info.Mode().Perm(), path))
		}
	}
	const readable, writable = 0o077, 0o022
	look(h.Home, writable)
	look(filepath.Join(h.Home, "run"), readable)
	for _, file := range append([]string{filepath.Join(h.Home, "config.yaml"), filepath.Join(h.Home, "registry.db")}, h.Secrets...) {
		look(file, readable)
	}
	for _, pattern := range []string{"state", "state/keys", "state/memory.db"} {
		files, err := filepath.Glob(filepath.Join(h.Formations, "*", pattern))
		if err != nil { // a directory whose name is no pattern
			return warn("", "cannot look into %s: %s", h.Formations, err)
		}
		for _, file := range files {
			look(file, readable)
		}
	}
	if len(open) > 0 {
		return fail("chmod go-rwx on each, as the user that the supervisor runs as",
			"more users than the owner may read or change: %s", few(open))
	}
	if err := unix.Access(h.Home, unix.W_OK); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return warn("run this as the user that the supervisor runs as, to be sure", "this user may not write to %s", h.Home)
	}
	if len(unseen) > 0 {
		return warn("run this as the user that the supervisor runs as", "this user cannot look at %s", few(unseen))
	}
	return ok("keys, state and settings are their owner's alone")
}

// few names the first of many.
func few(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// disk looks at each file system that the supervisor writes to.
func disk(_ context.Context, h *host) Result {
	least, where := uint64(1<<63), ""
	for _, dir := range []string{h.Home, h.Formations, h.Logs} {
		dir = existing(dir)
		var st unix.Statfs_t
		if dir == "" || unix.Statfs(dir, &st) != nil {
			continue
		}
		if st.Files > 0 && st.Ffree < 1000 {
			return fail("remove files, or make a larger file system", "%s has room for %d more files only", dir, st.Ffree)
		}
		if free := st.Bavail * uint64(st.Bsize); free < least {
			least, where = free, dir
		}
	}
	const fix = "free space: supervisor backups, old logs, unused formations; or lower formations.keep_versions"
	switch {
	case where == "":
		return warn("", "cannot see how much is free")
	case least < noDisk:
		return fail(fix, "%d MiB are free at %s", least>>20, where)
	case least < littleDisk:
		return warn(fix, "%d MiB are free at %s", least>>20, where)
	}
	return ok("%d GiB are free at %s", least>>30, where)
}

// existing returns dir, or the nearest directory above that exists.
func existing(dir string) string {
	for dir != "" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	return dir
}

func certificate(_ context.Context, h *host) Result {
	if h.Certificate == "" {
		return nothing()
	}
	const fix = "renew it; the supervisor takes the new files by itself"
	text, err := os.ReadFile(h.Certificate)
	if err != nil {
		return fail("see server.tls.cert in the settings", "the certificate cannot be read: %s", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fail("see server.tls.cert in the settings", "%s holds no PEM block", h.Certificate)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fail("see server.tls.cert in the settings", "%s: %s", h.Certificate, err)
	}
	left := time.Until(cert.NotAfter)
	switch end := cert.NotAfter.Format(time.DateOnly); {
	case left <= 0:
		return fail(fix, "the certificate ended on %s", end)
	case left < soonEnds:
		return warn(fix, "the certificate ends on %s", end)
	default:
		return ok("the certificate is valid until %s", end)
	}
}
