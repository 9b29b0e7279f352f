package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/fault"
)

// The exit codes, which rootHelp tells people.
const (
	exitOK           = 0
	exitFailed       = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitConflict     = 4
	exitUnauthorised = 5
	exitUnavailable  = 6
	exitInterrupted  = 130
)

// usageError is a fault of the command line that only the command could see.
type usageError struct{ text string }

// Error returns the text.
func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// hint is an error with advice what to do about it.
type hint struct {
	error
	advice string
}

// Unwrap returns the error itself.
func (h *hint) Unwrap() error { return h.error }

// Error returns the error and the advice in one line.
func (h *hint) Error() string { return h.error.Error() + ": " + h.advice }

// stopError is an error that an interrupt does not explain: the end itself
// went wrong.
type stopError struct{ error }

// Unwrap returns the error itself.
func (e *stopError) Unwrap() error { return e.error }

// explain prints what went wrong, one line, and returns the exit code.
func (a *app) explain(ctx context.Context, cmd *cobra.Command, err error) int {
	_, unclean := errors.AsType[*stopError](err)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && !unclean:
		a.say("interrupted")
		return exitInterrupted
	}
	var usage *usageError
	if _, called := errors.AsType[*failure](err); !called || errors.As(err, &usage) {
		text := strings.Join(strings.Fields(err.Error()), " ") // cobra's suggestions come in lines
		if usage == nil && strings.Contains(text, " arg(s), ") {
			text = "usage: " + cmd.UseLine()
		}
		a.say("%s; see `%s --help`", text, cmd.CommandPath())
		return exitUsage
	}
	if text := err.Error(); text != "" {
		a.say("%s", text)
	}
	return exitCode(err)
}

// say prints one line for the person.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.err, printable(fmt.Sprintf(format, args...)))
}

func exitCode(err error) int {
	if many, ok := asSeveral(err); ok {
		return many.worst()
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		if fault.KindOf(err) == fault.Conflict {
			return exitConflict
		}
		return exitFailed
	}
	switch e.Status {
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusConflict:
		return exitConflict
	case http.StatusUnauthorized, http.StatusForbidden:
		return exitUnauthorised
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return exitUnavailable
	case 0:
		if e.Name == client.NameUnreachable {
			return exitUnavailable
		}
	}
	return exitFailed
}

// advise adds to an error of the management API what the person can do.
func (t *target) advise(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if _, advised := errors.AsType[*hint](err); !ok || advised {
		return err
	}
	switch {
	case e.Name == client.NameUnreachable && t.home != nil && t.from == "":
		return &hint{&replaced{err, "no supervisor answers at " + t.url}, "start it with `supervisor serve --home " + t.home.dir + "`"}
	case e.Name == client.NameUnreachable:
		return &hint{&replaced{err, "no supervisor answers at " + t.url}, "check the address, which is from " + cmp.Or(t.from, t.origin)}
	case isForeign(e):
		return &hint{err, "check that " + t.url + " is a supervisor; the address is from " + cmp.Or(t.from, t.origin)}
	case e.Status == http.StatusUnauthorized && strings.Contains(e.Message, "expired"):
		return &hint{err, "compare the clocks of this machine and of " + t.url}
	case e.Status == http.StatusUnauthorized:
		return &hint{err, "the supervisor at " + t.url + " refuses the key, which is from " + t.origin}
	case e.Name == "SecretsError" && strings.Contains(e.Message, "${{ secrets."):
		return &replaced{err, err.Error() + "\n`supervisor secrets setup` asks for all that is missing"}
	case e.Name == "FormationUnavailable":
		return &hint{err, "`supervisor status` shows how it ended, `supervisor start` starts it"}
	case e.Name == "FormationNotFound":
		return &hint{err, "`supervisor list` shows what is deployed"}
	case e.Name == "DraftNotFound":
		return &hint{err, "`supervisor draft init` begins one, `supervisor up` runs one"}
	case e.Name == "DraftRunning":
		return &hint{err, "`supervisor down` stops it"}
	case e.Name == "VersionNotFound":
		return &hint{err, "without --version it is the one before"}
	case e.Name == "UpdateInProgress":
		return &hint{err, "wait for it, or end it with `supervisor cancel-update`"}
	}
	return err
}

// isForeign tells whether an error is that of something else than a supervisor,
// such as a formation's own port: it does not know the route, or has no words of
// the service.
func isForeign(e *client.Error) bool {
	switch e.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return e.Message == "Endpoint not found" || strings.HasPrefix(e.Message, "the server answered ")
	}
	return false
}

// replaced is an error told in other words.
type replaced struct {
	error
	text string
}

// Unwrap returns the error itself.
func (r *replaced) Unwrap() error { return r.error }

// Error returns the other words.
func (r *replaced) Error() string { return r.text }

// printable drops what a terminal would obey: control characters other than
// tabs and newlines. Logs, answers and names come from formations.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || (r >= 0x20 && r != 0x7f && (r < 0x80 || r > 0x9f)) {
			return r
		}
		return -1
	}, s)
}
