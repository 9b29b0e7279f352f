package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agentformation/service/pkg/client"
)

// stages shows on stderr what a formation does before it answers and between
// the parts of the answer.
type stages struct {
	a       *app
	on, all bool
	last    string
	open    bool // the last line of the answer is not ended, and the terminal is the same
}

// show prints a line for a stage, unless it is the line before again.
func (s *stages) show(tok client.Token) {
	text := stageText(tok, s.all)
	if !s.on || text == "" || text == s.last {
		return
	}
	s.last = text
	s.endLine()
	fmt.Fprintln(s.a.err, s.a.paintErr(dim, "· "+strings.Map(noBreak, printable(text))))
}

// endLine ends the line of the answer before another line comes.
func (s *stages) endLine() {
	if s.open {
		s.open = false
		fmt.Fprintln(s.a.err)
	}
}

// wrote takes note of a part of the answer.
func (s *stages) wrote(text string) {
	s.open = s.a.outTTY && s.a.errTTY && !strings.HasSuffix(text, "\n")
}

// stageText puts a frame into words, "" for those that are not shown: that a
// request was taken in and that its answer comes are news to nobody.
func stageText(tok client.Token, all bool) string {
	switch {
	case tok.Type != "progress" && tok.Type != "planning":
		return ""
	case !all && (tok.Stage == "init" || strings.HasPrefix(tok.Stage, "response_")):
		return ""
	case tok.Content == "":
		return strings.TrimSpace(strings.ReplaceAll(tok.Stage, "_", " ") + " " + tok.ToolName)
	case tok.ToolName != "" && !strings.Contains(tok.Content, tok.ToolName):
		return tok.ToolName + ": " + tok.Content
	}
	return tok.Content
}

// asked takes note of what the next message may answer.
func (c *chat) asked(ui []client.Widget, asks bool) {
	c.pending = nil
	i := slices.IndexFunc(ui, func(w client.Widget) bool { return w.Type == client.WidgetOptions })
	if asks && i >= 0 {
		c.pending = &ui[i]
	}
}

// choice finds the option of a widget that a message names, by its value, its
// label or its number.
func choice(w *client.Widget, message string) (int, bool) {
	if w == nil {
		return 0, false
	}
	text := strings.TrimSpace(message)
	i := slices.IndexFunc(w.Options, func(o client.Option) bool {
		return strings.EqualFold(o.Value, text) || strings.EqualFold(strings.TrimSpace(o.Label), text)
	})
	if i < 0 {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > len(w.Options) {
			return 0, false
		}
		i = n - 1
	}
	return i, true
}

// after prints what goes with an answer: its widgets, and on stderr how the
// conversation goes on.
func (c *chat) after(answer string, ui []client.Widget, request string) error {
	for _, w := range ui {
		for _, line := range widgetLines(w, answer) {
			if err := c.a.result("%s", line); err != nil {
				return err
			}
		}
	}
	if c.one && c.pending != nil && (c.a.errTTY || c.verbose) {
		c.a.say("answer it with --session %s and a number or a name", c.req.SessionID)
	}
	if c.verbose && request != "" {
		fmt.Fprintln(c.a.err, c.a.paintErr(dim, printable("· request "+request+" of session "+c.req.SessionID)))
	}
	return nil
}

// widgetLines puts a widget into words; those of later versions have none.
func widgetLines(w client.Widget, answer string) []string {
	switch w.Type {
	case client.WidgetOptions:
		return optionLines(w, answer)
	case client.WidgetActionLink:
		line := w.Label + ": " + w.URL
		if w.Hint != "" {
			line += " (" + w.Hint + ")"
		}
		return []string{line}
	case client.WidgetMCPResource:
		size := len(w.Data)
		if w.Encoding == "base64" {
			size = size / 4 * 3
		}
		return []string{fmt.Sprintf("%s from %s of %s, %s", w.Resource, orDash(w.Tool), orDash(w.Server),
			strings.TrimPrefix(w.MIMEType+", "+bytesText(int64(size)), ", "))}
	}
	return nil
}

// optionLines lists the options, unless the answer does so itself.
func optionLines(w client.Widget, answer string) []string {
	var lines []string
	listed := true
	for i, o := range w.Options {
		lines = append(lines, strconv.Itoa(i+1)+". "+o.Label)
		listed = listed && strings.Contains(answer, lines[i])
	}
	switch {
	case listed:
		return nil
	case w.Prompt != "" && !strings.Contains(answer, w.Prompt):
		return append([]string{w.Prompt}, lines...)
	}
	return lines
}

// maxSent is how much files may have together, in bytes: what a formation takes
// in one request, less their encoding.
const maxSent = 59 << 20

// readFiles reads what goes with a message.
func readFiles(paths []string) ([]client.File, error) {
	var files []client.File
	left := int64(maxSent)
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, usagef("--file: %v", err)
		}
		if !info.Mode().IsRegular() {
			return nil, usagef("--file %s: it is no regular file", path)
		}
		if left -= info.Size(); left < 0 {
			return nil, usagef("--file: the files have more than %s together", bytesText(maxSent))
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a file to send: %w", err)
		}
		files = append(files, client.File{Filename: filepath.Base(path), Content: content})
	}
	return files, nil
}
