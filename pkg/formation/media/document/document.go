// Package document reads the text out of documents: PDF, Word, Excel,
// PowerPoint and HTML. Documents come from strangers and the formats are rich,
// so a formation never calls Extract itself: package media does, in a process of
// its own that is confined, bounded and expendable. That matters: there are PDF
// files on which the library runs on for ever or takes all memory.
//
// It promises that a text is valid UTF-8 without control characters, that an
// error says in words what is wrong with the document, and that no more is
// unpacked or written than the limits allow.
package document

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Format is how a document is read.
type Format string

// The formats. An Office file is told apart by its content, not by its name.
const (
	PDF    Format = "pdf"
	Office Format = "office" // DOCX, XLSX, PPTX
	HTML   Format = "html"
)

// The media types that Extract finds.
const (
	TypePDF  = "application/pdf"
	TypeHTML = "text/html"
	TypeDOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
	TypeXLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
	TypePPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
)

// Text is what a document says.
type Text struct {
	// Content has the marks "[page 1]", "[sheet Name]" and "[slide 1]" on lines of
	// their own where a document has such parts.
	Content string `json:"content"`
	// Parts counts the pages, sheets or slides; 0 for formats without.
	Parts     int    `json:"parts"`
	MediaType string `json:"media_type"`
	// Cut tells that the document holds more text than was asked for.
	Cut bool `json:"cut"`
	// Unread counts the pages whose content could not be understood.
	Unread int `json:"unread"`
}

// maxInflated bounds what is unpacked of one document, in bytes.
const maxInflated = 64 << 20

// Extract returns the text of a document, at most maxText bytes of it. Its
// error says in words what is wrong with the document.
func Extract(format Format, data []byte, maxText int) (out Text, err error) {
	// The libraries below panic on some malformed documents.
	defer func() {
		if r := recover(); r != nil {
			out, err = Text{}, fmt.Errorf("it is malformed: %v", r)
		}
	}()
	w := &writer{max: maxText}
	switch format {
	case PDF:
		out, err = readPDF(data, w)
	case Office:
		out, err = readOffice(data, w)
	case HTML:
		out, err = readHTML(data, w)
	default:
		return Text{}, fmt.Errorf("documents of format %q are not read", format)
	}
	if err != nil && !errors.Is(err, errFull) {
		return Text{}, err
	}
	out.Content, out.Cut = w.text(), w.full
	return out, nil
}

// errFull ends the reading of a document when enough text was found.
var errFull = errors.New("enough text")

// writer collects text up to a limit.
type writer struct {
	b        strings.Builder
	max      int
	full     bool
	newlines int // that are owed before the next character
	begun    bool
	space    bool // a space is owed
	cells    int  // of the row so far
}

// write adds text: control characters but tabs and newlines are left out, runs
// of spaces become one and more than one empty line in a row too.
func (w *writer) write(s string) error {
	for _, r := range s {
		if err := w.rune(r); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) rune(r rune) error {
	switch {
	case r == '\n' || r == '\r' || r == '\f' || r == '\v' || r == '\u2028' || r == '\u2029':
		w.space = false
		if r != '\r' {
			w.newlines++
		}
		return nil
	case r == ' ' || r == '\u00a0':
		w.space = true
		return nil
	case r == utf8.RuneError || r == '\ufeff' || r == '\u00ad' || r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0:
		return nil
	}
	return w.put(r)
}

// put writes the space or newlines that are owed, and r.
func (w *writer) put(r rune) error {
	const maxNewlines = 2
	if w.begun {
		for range min(w.newlines, maxNewlines) {
			w.b.WriteByte('\n')
		}
	}
	if w.space && w.begun && w.newlines == 0 && r != '\t' {
		w.b.WriteByte(' ')
	}
	w.space, w.newlines = false, 0
	if w.b.Len()+utf8.RuneLen(r) > w.max {
		w.full = true
		return errFull
	}
	w.b.WriteRune(r)
	w.begun = true
	return nil
}

// row begins a row of a table; cell begins its next cell.
func (w *writer) row() { w.line(); w.cells = 0 }

func (w *writer) cell() error {
	w.cells++
	if w.cells == 1 {
		return nil
	}
	return w.put('\t')
}

// gap asks for a space before what comes next.
func (w *writer) gap() { w.space = true }

// line ends a line, if one was begun; blank leaves an empty one too.
func (w *writer) line()  { w.newlines, w.space = max(w.newlines, 1), false }
func (w *writer) blank() { w.newlines, w.space = max(w.newlines, 2), false }

// mark writes the beginning of a part on a line of its own.
func (w *writer) mark(format string, args ...any) error {
	w.blank()
	if err := w.write("[" + fmt.Sprintf(format, args...) + "]"); err != nil {
		return err
	}
	w.line()
	return nil
}

// text returns what was written.
func (w *writer) text() string { return strings.TrimRight(w.b.String(), " \t\n") }
