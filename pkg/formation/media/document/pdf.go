package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ledongthuc/pdf"
)

// The bounds of a PDF: its tree of pages, the content of one page, and the
// forms that are drawn on one.
const (
	maxNodes     = 20_000
	maxTreeDepth = 64
	maxContent   = 32 << 20 // bytes, unpacked
	maxForms     = 1000
	maxFormDepth = 8
)

// readPDF writes the text of the pages. The library reads the objects of the
// file; how pages are laid out is understood here, because it runs together
// what stands on different lines.
func readPDF(data []byte, w *writer) (Text, error) {
	out := Text{MediaType: TypePDF}
	r, err := pdf.NewReader(&patient{r: bytes.NewReader(data), left: workPerByte*int64(len(data)) + workAtLeast}, int64(len(data)))
	if errors.Is(err, pdf.ErrInvalidPassword) {
		return out, errors.New("it is protected by a password")
	}
	if err != nil {
		return out, fmt.Errorf("it is malformed: %s", plain(err))
	}
	t := pageTree{fonts: make(map[string]*font)}
	t.walk(r.Trailer().Key("Root").Key("Pages"), 0)
	if len(t.pages) == 0 {
		return out, errors.New("it is malformed: it has no pages")
	}
	out.Parts = len(t.pages)
	left := int64(maxInflated)
	for i, page := range t.pages {
		if err := w.mark("page %d", i+1); err != nil {
			return out, err
		}
		l := layout{w: w}
		err := readPage(page, &reader{layout: &l, fonts: t.fonts, left: &left})
		if errors.Is(err, errFull) || errors.Is(err, errInflated) {
			return out, err
		}
		if err != nil {
			out.Unread++
		}
	}
	if out.Unread == len(t.pages) {
		return out, errors.New("it is malformed: none of its pages could be read")
	}
	return out, nil
}

// How much of a file may be read in all, again and again, in bytes: the library
// follows links that lead in a circle.
const (
	workPerByte = 100
	workAtLeast = 64 << 20
)

// patient reads until that was too much.
type patient struct {
	r    io.ReaderAt
	left int64
}

var errWork = errors.New("it takes too much work to read")

func (p *patient) ReadAt(b []byte, off int64) (int, error) {
	if p.left -= int64(len(b)); p.left < 0 {
		return 0, errWork
	}
	return p.r.ReadAt(b, off)
}

func plain(err error) string { return strings.TrimPrefix(err.Error(), "malformed PDF: ") }

// pageTree collects the pages of a file in their order.
type pageTree struct {
	pages []pdf.Value
	nodes int
	fonts map[string]*font // by what their dictionary says
}

func (t *pageTree) walk(v pdf.Value, depth int) {
	if t.nodes++; t.nodes > maxNodes || depth > maxTreeDepth || v.Kind() != pdf.Dict {
		return
	}
	kids := v.Key("Kids")
	if kids.Kind() != pdf.Array {
		t.pages = append(t.pages, v)
		return
	}
	for i := range kids.Len() {
		if t.nodes > maxNodes {
			return
		}
		t.walk(kids.Index(i), depth+1)
	}
}

// inherited looks a key up in a page and above it.
func inherited(page pdf.Value, key string) pdf.Value {
	for range maxTreeDepth {
		if v := page.Key(key); !v.IsNull() {
			return v
		}
		page = page.Key("Parent")
	}
	return pdf.Value{}
}

// readPage writes the text of one page. What the library cannot read ends the
// page and not the document.
func readPage(page pdf.Value, r *reader) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read a page: %v", p)
		}
	}()
	content, err := contentOf(page.Key("Contents"), r.left)
	if err != nil {
		return err
	}
	return r.run(content, inherited(page, "Resources"), 0)
}

// contentOf reads what a page draws: a stream, or several that are one.
func contentOf(v pdf.Value, left *int64) ([]byte, error) {
	var b bytes.Buffer
	switch v.Kind() {
	case pdf.Stream:
		err := readStream(&b, v, left)
		return b.Bytes(), err
	case pdf.Array:
		for i := range v.Len() {
			if err := readStream(&b, v.Index(i), left); err != nil {
				return nil, err
			}
			b.WriteByte('\n')
		}
	default: // an empty page
	}
	return b.Bytes(), nil
}

// readStream unpacks a stream. A stream that ends early or is damaged gives
// what came before: producers get the ends wrong.
func readStream(b *bytes.Buffer, v pdf.Value, left *int64) error {
	if v.Kind() != pdf.Stream {
		return nil
	}
	source := v.Reader()
	defer source.Close()
	_, err := io.Copy(b, io.LimitReader(&bounded{r: source, left: left}, int64(max(maxContent-b.Len(), 0))))
	if errors.Is(err, errInflated) {
		return err
	}
	return nil
}
