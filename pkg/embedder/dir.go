package embedder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// DirEnv names the directory of the socket in the environment of a child whose
// supervisor keeps the process.
const DirEnv = "SVC_EMBEDDER_DIR"

const (
	socketName = "embedder.sock"
	startLock  = "start.lock" // held while somebody starts the process
	// ServeLock is held by the process itself, so that there is one.
	ServeLock = "serve.lock"
	logName   = "embedder.log"
	// maxSocketPath is what Linux takes, less its NUL.
	maxSocketPath = 107
)

func socketPath(dir string) string { return filepath.Join(dir, socketName) }

// SocketPath is where the process of a directory listens.
func SocketPath(dir string) string { return socketPath(dir) }

// DefaultDir is the directory that the processes of one user share: in
// XDG_RUNTIME_DIR where there is one, else in the directory for temporary files.
func DefaultDir(lookup func(string) (string, bool)) string {
	if dir, ok := lookup("XDG_RUNTIME_DIR"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "agentformation-embedder")
	}
	return filepath.Join(os.TempDir(), "agentformation-embedder-"+strconv.Itoa(os.Getuid()))
}

// passed are the variables that the process is given: where it finds models and
// the library, and how it reaches the hub. Keys of formations are not among them.
var passed = []string{
	"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
	"SVC_CACHE_DIR", "SVC_ONNXRUNTIME_LIB", "HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"GOMAXPROCS", "GODEBUG", "GOTRACEBACK",
}

// frugal is for the C library under the ONNX Runtime. With a heap per thread, its
// default, the batches leave holes in all of them. One heap is as fast here.
const frugal = "MALLOC_ARENA_MAX=1"

// Environ is the environment of the process: its part of another, as of
// os.Environ, and what keeps its memory small.
func Environ(environ []string) []string {
	out := []string{frugal}
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(passed, name) {
			out = append(out, kv)
		}
	}
	return out
}

// EnvironOf is Environ for a caller who looks variables up.
func EnvironOf(lookup func(string) (string, bool)) []string {
	out := []string{frugal}
	for _, name := range passed {
		if v, ok := lookup(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// makeDir makes the directory of the socket, for this user alone. One that
// somebody else could write in is refused: he could listen in our stead.
func makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory of the embedding process: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at the directory of the embedding process: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if !info.IsDir() || int(owner) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user (%d) can write in", dir, os.Getuid())
	}
	return nil
}

// dial connects to the process and sees that it is one of the owner of the
// directory, of this user or of root.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
	if err != nil {
		return nil, err
	}
	uid, err := PeerUID(conn)
	if err == nil && uid != 0 && int(uid) != os.Getuid() {
		var info fs.FileInfo
		if info, err = os.Lstat(dir); err == nil && info.Sys().(*syscall.Stat_t).Uid != uid {
			err = fmt.Errorf("the process behind %s is of the user %d, who is not the owner of its directory", socketPath(dir), uid)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// PeerUID is the user of the process at the other end of a unix connection.
func PeerUID(conn net.Conn) (uint32, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("a %T has no credentials", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask for the peer's credentials: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return 0, fmt.Errorf("ask for the peer's credentials: %w", errors.Join(err, credErr))
	}
	return cred.Uid, nil
}
