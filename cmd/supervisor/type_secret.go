package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// maxLine bounds a secret that does not come from a terminal, in bytes.
const maxLine = 4 << 10

// readSecret asks for a line that is not shown. It ends with ctx: an interrupt
// leaves a terminal that shows what is typed.
func (a *app) readSecret(ctx context.Context, prompt string) (string, error) {
	f, ok := a.in.(*os.File)
	if !ok || !a.inTTY {
		return readLine(a.in)
	}
	fd := int(f.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("look at the terminal: %w", err)
	}
	fmt.Fprint(a.err, printable(prompt))
	defer fmt.Fprintln(a.err)
	type line struct {
		text []byte
		err  error
	}
	typed := make(chan line, 1)
	go func() { // what waits for a terminal ends with the program only
		text, err := term.ReadPassword(fd)
		typed <- line{text, err}
	}()
	select {
	case l := <-typed:
		return strings.TrimSpace(string(l.text)), l.err
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(fd, before))
	}
}

// readLine reads one line and nothing behind it.
func readLine(in io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < maxLine; {
		n, err := in.Read(one)
		if n > 0 {
			if one[0] == '\n' {
				break
			}
			line = append(line, one[0])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(line)), nil
}
