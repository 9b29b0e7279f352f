package process

import (
	"io"
	"os"
	"strings"
)

// How much of a child's error log a failure carries.
const (
	tailLines = 20
	tailBytes = 32 << 10
)

// tail returns the last lines that were written to the file at path after
// offset. What cannot be read is left out: a missing tail must not hide the
// failure that it explains. A file that was truncated since is read from its
// start.
func tail(path string, offset int64) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	size := info.Size()
	if size < offset {
		offset = 0
	}
	cut := size-offset > tailBytes
	if cut {
		offset = size - tailBytes
	}
	text, err := io.ReadAll(io.NewSectionReader(f, offset, size-offset))
	if err != nil {
		return nil
	}
	return lastLines(string(text), cut)
}

// lastLines splits text; cut says that its first line is only the end of one.
func lastLines(text string, cut bool) []string {
	text = strings.TrimRight(strings.ToValidUTF8(text, "\uFFFD"), "\r\n\t ")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	if cut && len(lines) > 1 {
		lines = lines[1:]
	}
	lines = lines[max(0, len(lines)-tailLines):]
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, "\r")
	}
	return lines
}
