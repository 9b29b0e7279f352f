package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// envEstate names the descriptor of the estate that a program leaves to its
// successor in the same process.
const envEstate = "SVC_ESTATE"

const (
	estateVersion = 1
	maxEstate     = 1 << 20 // bytes
)

// estate is what outlives the program when a reload replaces it in place: the
// proof that this process owns the home, the listening sockets, and the bridge
// that answers meanwhile. Descriptors that nobody claims are closed with it.
type estate struct {
	lock    *lock
	door    *door
	sockets map[int]int // descriptors of the formations' sockets by port
	bridge  *bridge     // nil when there is none
	refusal error       // why the program was not replaced, until somebody was told
}

// will is an estate as it is written down: the numbers of descriptors.
type will struct {
	Version int         `json:"version"`
	Lock    int         `json:"lock"`
	Door    int         `json:"door"`
	Sockets map[int]int `json:"sockets"`
	Bridge  *bridgeWill `json:"bridge,omitempty"`
}

type bridgeWill struct {
	PID     int `json:"pid"`
	Control int `json:"control"`
	Hatch   int `json:"hatch"`
}

// settle takes the home over: as the successor of a program that was reloaded,
// or as a supervisor that begins.
func (s *Supervisor) settle(ctx context.Context) (*estate, error) {
	if left, ok := s.cfg.LookupEnv(envEstate); ok {
		e, err := s.inherit(ctx, left)
		if err != nil {
			return nil, fmt.Errorf("take over from the former program: %w", err)
		}
		return e, nil
	}
	e := &estate{}
	var err error
	if e.lock, err = acquireLock(s.path("run")); err != nil {
		return nil, err
	}
	if e.door, err = openDoor(ctx, s.cfg.Listen); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// inherit reads the will that a former program left in a descriptor.
func (s *Supervisor) inherit(ctx context.Context, left string) (_ *estate, err error) {
	fd, err := strconv.Atoi(left)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, want the number of a descriptor", envEstate, left)
	}
	f := os.NewFile(uintptr(fd), "estate")
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxEstate))
	if err != nil {
		return nil, fmt.Errorf("read the estate: %w", err)
	}
	var w will
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, fmt.Errorf("read the estate: %w", err)
	}
	if w.Version != estateVersion {
		return nil, fmt.Errorf("the estate has version %d, this program reads %d: stop the supervisor and start it again", w.Version, estateVersion)
	}
	for _, fd := range w.all() {
		unix.CloseOnExec(fd)
	}
	e := &estate{sockets: w.Sockets}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.lock, err = inheritLock(s.path("run"), w.Lock); err != nil {
		return nil, err
	}
	if e.door, err = takeDoor(w.Door); err != nil {
		return nil, err
	}
	if w.Bridge != nil {
		if e.bridge, err = inheritBridge(*w.Bridge); err != nil {
			return nil, err
		}
	}
	return e, s.move(ctx, e)
}

// move opens another door when the settings have another address since.
func (s *Supervisor) move(ctx context.Context, e *estate) error {
	if serves(e.door.addr, s.cfg.Listen) {
		return nil
	}
	d, err := openDoor(ctx, s.cfg.Listen)
	if err != nil {
		return err
	}
	e.door.close()
	e.door = d
	return nil
}

// all are the descriptors of a will.
func (w will) all() []int {
	fds := []int{w.Lock, w.Door}
	for _, fd := range w.Sockets {
		fds = append(fds, fd)
	}
	if w.Bridge != nil {
		fds = append(fds, w.Bridge.Control, w.Bridge.Hatch)
	}
	return fds
}

func (e *estate) will() will {
	w := will{Version: estateVersion, Lock: int(e.lock.f.Fd()), Door: e.door.fd, Sockets: e.sockets}
	if b := e.bridge; b != nil {
		w.Bridge = &bridgeWill{PID: b.pid, Control: b.control, Hatch: b.hatch.fd}
	}
	return w
}

// exec replaces this program by the one at self.Path, which finds the estate. It
// returns only when that fails; then all is as it was.
func (e *estate) exec(self Self, replace func(path string, args, env []string) error) error {
	w := e.will()
	text, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("write the estate: %w", err)
	}
	fd, err := unix.MemfdCreate("estate", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("write the estate: %w", err)
	}
	f := os.NewFile(uintptr(fd), "estate")
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return fmt.Errorf("write the estate: %w", err)
	}
	fds := append(w.all(), fd)
	defer func() {
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
	}()
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	env := append(without(self.Env, envEstate, envBridge), envEstate+"="+strconv.Itoa(fd))
	return fmt.Errorf("replace the program by %s: %w", self.Path, replace(self.Path, self.Args, env))
}

// without returns env less the named variables.
func without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}

// unclaimed closes the sockets that no formation has taken.
func (e *estate) unclaimed() error {
	var errs []error
	for _, fd := range e.sockets {
		errs = append(errs, unix.Close(fd))
	}
	e.sockets = nil
	return errors.Join(errs...)
}

// close gives up the home.
func (e *estate) close() {
	_ = e.unclaimed()
	e.door.close()
	if e.lock != nil {
		e.lock.release()
	}
}

// inheritLock is acquireLock for the descriptor of a former program, which still
// has the lock.
func inheritLock(dir string, fd int) (*lock, error) {
	f := os.NewFile(uintptr(fd), filepath.Join(dir, "lock"))
	if f == nil {
		return nil, errors.New("take the lock over: it is not among the descriptors")
	}
	mine, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("take the lock over: %w", err)
	}
	now, err := os.Stat(f.Name())
	if err != nil || !os.SameFile(mine, now) {
		return nil, errors.Join(fmt.Errorf("take the lock over: %s is another file now", f.Name()), err)
	}
	return (&lock{f: f}).take(dir)
}
