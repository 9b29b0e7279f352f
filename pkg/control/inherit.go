package control

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/fault"
)

// EnvOrphanTimeout is how long a child lives without a supervisor, as a Go
// duration; unset or 0 is for ever.
const EnvOrphanTimeout = "SVC_ORPHAN_TIMEOUT"

// A child's heap grows to five times what lives in it before it is collected,
// which is a few MiB: the default would collect fifty times a second under load.
// The supervisor says so by the variable of Go's own runtime, since that would
// collect once before main, among the variables of the packages.
const (
	EnvHeapGrowth = "GOGC"
	HeapGrowth    = 400 // percent
)

// Inherited is what a child got from its supervisor.
type Inherited struct {
	FormationID   string
	LaunchID      string
	Token         string
	RunDir        string
	OrphanTimeout time.Duration
	// Log is <id>-out.log, opened for appending: one record per write.
	Log *os.File
}

// Inherit takes over what the supervisor passed. It must be the first thing a
// child's main does: until then a tool process would inherit the listening
// socket and keep the port for itself, and a panic would not reach the log.
//
// It returns nil without an error when no supervisor started this process.
// Otherwise descriptor 2 is the formation's error log from here on, SIGPIPE no
// longer kills (the supervisor may die while the child serves on), and SIGINT is
// ignored, so that ^C at a terminal reaches the supervisor alone: main asks for
// SIGTERM only.
func Inherit() (*Inherited, error) {
	if os.Getenv(cookieKey) != cookieValue { //nolint:forbidigo // the handshake is made of environment variables
		return nil, nil //nolint:nilnil // "not under a supervisor" is an answer, not a failure
	}
	for _, fd := range []int{FDListener, FDOutLog, FDErrLog} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("take over descriptor %d from the supervisor: %w", fd, err)
		}
	}
	if err := unix.Dup3(FDErrLog, unix.Stderr, 0); err != nil {
		return nil, fmt.Errorf("send descriptor 2 to the error log: %w", err)
	}
	if err := unix.Close(FDErrLog); err != nil {
		return nil, fmt.Errorf("close descriptor %d: %w", FDErrLog, err)
	}
	// A channel that nobody reads: unlike signal.Ignore, tool processes start
	// with the default action.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGINT)
	return inheritEnv()
}

//nolint:forbidigo // the supervisor speaks to its child through these variables
func inheritEnv() (*Inherited, error) {
	if err := os.Unsetenv(EnvHeapGrowth); err != nil { // it is not for tool processes
		return nil, fmt.Errorf("unset %s: %w", EnvHeapGrowth, err)
	}
	in := &Inherited{
		FormationID: os.Getenv(EnvFormationID),
		LaunchID:    os.Getenv(EnvLaunchID),
		Token:       os.Getenv(EnvLaunchToken),
		RunDir:      os.Getenv(EnvRunDir),
		Log:         os.NewFile(FDOutLog, "out.log"),
	}
	if in.LaunchID == "" || in.Token == "" || in.RunDir == "" {
		return nil, fmt.Errorf("the supervisor set no %s, %s or %s", EnvLaunchID, EnvLaunchToken, EnvRunDir)
	}
	if text := os.Getenv(EnvOrphanTimeout); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("read %s=%s: %w", EnvOrphanTimeout, strconv.Quote(text), err)
		}
		in.OrphanTimeout = d
	}
	return in, nil
}

// CheckHello refuses a caller who has not got this launch's token, in constant
// time, and one who wants another formation.
func (in *Inherited) CheckHello(req HelloRequest) error {
	if subtle.ConstantTimeCompare([]byte(req.LaunchToken), []byte(in.Token)) != 1 {
		return fault.New(fault.Unauthenticated, "", "wrong launch token")
	}
	if req.FormationID != in.FormationID {
		return fault.Errorf(fault.Conflict, "", "this process is formation %q, not %q", in.FormationID, req.FormationID)
	}
	return nil
}

// Listener is a new listener on the inherited socket. Closing it ends this
// process's acceptance only: the socket itself stays open in descriptor 3, for
// the next child and for a new supervisor. Make it when Serve is asked for, not
// before, or connections are accepted that nobody answers.
func Listener() (net.Listener, error) {
	// net.FileListener makes a copy, and os.File would close descriptor 3 when
	// collected: so a copy of our own.
	fd, err := unix.FcntlInt(FDListener, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("copy the listening socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on the inherited socket: %w", err)
	}
	return l, nil
}

// ShutdownListener ends the inherited socket's listening for every process that
// holds it: clients are refused at once instead of waiting in a queue that
// nobody empties. A drain with CloseSocket begins with it; an update must not.
func ShutdownListener() error {
	return ShutdownSocket(FDListener)
}

// ShutdownSocket is ShutdownListener for a socket held under another
// descriptor. It is no error when the socket has stopped listening already.
func ShutdownSocket(fd int) error {
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("shut down the listening socket: %w", err)
	}
	return nil
}
