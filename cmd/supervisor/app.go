package main

import (
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"golang.org/x/term"
)

// app is what the commands share: where they read and write, and the global
// flags. Tests make their own.
type app struct {
	in       io.Reader
	out, err io.Writer
	// inTTY, outTTY and errTTY say whether a person types the input, sees the
	// results and the progress; noColour, that the person wants no colours.
	inTTY, outTTY, errTTY bool
	noColour              bool
	// columns is how wide the terminal of the progress is, 0 when that is not
	// known; nil for never.
	columns    func() int
	lookupEnv  func(string) (string, bool)
	userHome   string // the user's home directory
	userName   string // the name of the user at the operating system
	systemHome string // the home of the host's supervisor, "" for none
	// pause is the time between two looks at something that has not come yet.
	pause time.Duration

	// The global flags.

	home, profile, server, output string
}

// getenv returns a variable of the environment, "" when it is not set.
func (a *app) getenv(name string) string {
	value, _ := a.lookupEnv(name)
	return value
}

func newApp() *app {
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, lookupEnv: os.LookupEnv,
		inTTY: isTerminal(os.Stdin), outTTY: isTerminal(os.Stdout), errTTY: isTerminal(os.Stderr), pause: time.Second,
	}
	a.columns = func() int {
		width, _, _ := term.GetSize(int(os.Stderr.Fd())) // 0 with an error
		return width
	}
	if program, err := os.Executable(); err == nil && strings.HasPrefix(program, "/usr/") {
		a.systemHome = systemHome // it is installed
	}
	a.noColour = a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb"
	if home, err := os.UserHomeDir(); err == nil {
		a.userHome = home
	}
	if u, err := user.Current(); err == nil {
		a.userName = u.Username
	}
	return a
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
