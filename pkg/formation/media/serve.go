package media

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/media/document"
)

// Command is the first argument of a process that works on one file; a job as
// JSON follows.
const Command = "extract"

// The bounds of such a process beside those that its parent sets.
const (
	// maxInput is the size of a file, in bytes.
	maxInput = 128 << 20
	// maxProblem bounds what is told of a bad file, in characters.
	maxProblem = 200
	// heap is where the collector begins to work hard, in bytes.
	heap = 192 << 20
	// life ends a process whose parent is gone or has forgotten it.
	life = time.Minute
)

// job is what is to be done with the file on the standard input.
type job struct {
	// Format and MaxText ask for the text of a document.
	Format  document.Format `json:"format,omitempty"`
	MaxText int             `json:"max_text,omitempty"`
	// Image asks for an image within bounds.
	Image *bounds `json:"image,omitempty"`
}

// reply is what the process writes: what was asked for, or what is wrong with
// the file.
type reply struct {
	Text      document.Text `json:"text"`
	Image     []byte        `json:"image,omitempty"`
	MediaType string        `json:"media_type,omitempty"` // of the image
	Problem   string        `json:"problem,omitempty"`
}

// Serve works on one file: it reads it from in and writes what was asked for to
// out. Its error is one of the process, not of the file. args follow Command.
func Serve(args []string, in io.Reader, out io.Writer) error {
	var j job
	if len(args) != 1 {
		return fmt.Errorf("%s: want a job as JSON", Command)
	}
	if err := json.Unmarshal([]byte(args[0]), &j); err != nil {
		return fmt.Errorf("%s: read the job: %w", Command, err)
	}
	// The parent kills it long before; a parent that died does not.
	defer time.AfterFunc(life, func() { os.Exit(1) }).Stop()
	debug.SetMemoryLimit(heap)
	runtime.GOMAXPROCS(1)
	data, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return fmt.Errorf("%s: read the file: %w", Command, err)
	}
	if err := json.NewEncoder(out).Encode(j.do(data)); err != nil {
		return fmt.Errorf("%s: write the reply: %w", Command, err)
	}
	return nil
}

func (j *job) do(data []byte) (r reply) {
	defer func() {
		if p := recover(); p != nil {
			r = reply{Problem: printable(fmt.Sprintf("it is malformed: %v", p))}
		}
	}()
	var err error
	switch {
	case len(data) > maxInput:
		err = fmt.Errorf("it is larger than %d MiB", maxInput>>20)
	case j.Image != nil:
		r.Image, r.MediaType, err = j.Image.fit(data)
	default:
		r.Text, err = document.Extract(j.Format, data, j.MaxText)
	}
	if err != nil {
		return reply{Problem: printable(err.Error())}
	}
	return r
}

// printable makes one short line of a text that may quote the file.
func printable(s string) string {
	out := make([]rune, 0, maxProblem)
	for _, r := range s {
		if len(out) == maxProblem {
			return string(out) + "…"
		}
		if r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
