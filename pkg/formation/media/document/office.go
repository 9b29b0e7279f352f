package document

import (
	"archive/zip"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// maxDepth bounds the nesting of XML elements; Word's own files stay under 40.
const maxDepth = 512

// office is an opened Office file.
type office struct {
	files map[string]*zip.File
	left  int64 // bytes that may still be unpacked
}

// readOffice writes the text of a Word, Excel or PowerPoint file.
func readOffice(data []byte, w *writer) (Text, error) {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return Text{}, fmt.Errorf("its archive is damaged: %w", err)
	}
	o := &office{files: make(map[string]*zip.File, len(z.File)), left: maxInflated}
	for _, f := range z.File {
		if _, twice := o.files[f.Name]; !twice {
			o.files[f.Name] = f
		}
	}
	switch {
	case o.has("word/document.xml"):
		return Text{MediaType: TypeDOCX}, o.word(w)
	case o.has("xl/workbook.xml"):
		sheets, err := o.excel(w)
		return Text{MediaType: TypeXLSX, Parts: sheets}, err
	case o.has("ppt/presentation.xml"):
		slides, err := o.powerPoint(w)
		return Text{MediaType: TypePPTX, Parts: slides}, err
	default:
		return Text{}, errors.New("it is a ZIP archive, but no Word, Excel or PowerPoint file")
	}
}

func (o *office) has(name string) bool { return o.files[name] != nil }

// part reads the XML of one part, element by element. visit gets each start,
// end and text; a part that is missing has none.
func (o *office) part(name string, visit func(xml.Token) error) error {
	f := o.files[name]
	if f == nil {
		return nil
	}
	if f.UncompressedSize64 > uint64(o.left) { // the reader holds a part to what it says
		return errInflated
	}
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	d := xml.NewDecoder(&bounded{r: r, left: &o.left})
	d.CharsetReader = func(charset string, _ io.Reader) (io.Reader, error) {
		return nil, fmt.Errorf("character set %q is not read", charset)
	}
	depth := 0
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		switch t.(type) {
		case xml.StartElement:
			if depth++; depth > maxDepth {
				return fmt.Errorf("%s: elements are nested deeper than %d", name, maxDepth)
			}
		case xml.EndElement:
			depth--
		}
		if err := visit(t); err != nil {
			return err
		}
	}
}

var errInflated = fmt.Errorf("it unpacks to more than %d MiB", maxInflated>>20)

// bounded reads until a budget, shared by all parts of a file, is used up.
type bounded struct {
	r    io.Reader
	left *int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if *b.left <= 0 {
		return 0, errInflated
	}
	n, err := b.r.Read(p[:min(int64(len(p)), *b.left)])
	*b.left -= int64(n)
	return n, err
}

// relations returns the targets of a part's relations by id, as names of parts.
func (o *office) relations(name string) (map[string]string, error) {
	dir, file := path.Split(name)
	out := make(map[string]string)
	err := o.part(dir+"_rels/"+file+".rels", func(t xml.Token) error {
		if e, ok := t.(xml.StartElement); ok && e.Name.Local == "Relationship" {
			target := attr(e, "Target")
			if strings.HasPrefix(target, "/") {
				target = target[1:]
			} else {
				target = path.Join(dir, target)
			}
			out[attr(e, "Id")] = target
		}
		return nil
	})
	return out, err
}

// attr returns an attribute by its local name, "" when there is none.
func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// relationID returns the attribute r:id, which stands beside an id of another kind.
func relationID(e xml.StartElement) string {
	for _, a := range e.Attr {
		if a.Name.Local == "id" && strings.Contains(a.Name.Space, "relationships") {
			return a.Value
		}
	}
	return ""
}

// word writes the paragraphs and tables of a Word document, then its notes.
func (o *office) word(w *writer) error {
	for i, name := range []string{"word/document.xml", "word/footnotes.xml", "word/endnotes.xml"} {
		if i > 0 && o.has(name) {
			w.blank()
		}
		p := wordPart{w: w}
		if err := o.part(name, p.visit); err != nil {
			return err
		}
	}
	return nil
}

// wordPart is where the reading of a part of a Word document stands.
type wordPart struct {
	w       *writer
	inText  bool
	skipped int // depth inside what is a second form of the same content
	cells   int // depth of table cells
}

func (p *wordPart) visit(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		return p.open(t.Name.Local)
	case xml.EndElement:
		p.close(t.Name.Local)
	case xml.CharData:
		if p.inText && p.skipped == 0 {
			return p.w.write(string(t))
		}
	}
	return nil
}

func (p *wordPart) open(name string) error {
	if p.skipped > 0 || name == "Fallback" {
		p.skipped++
		return nil
	}
	switch name {
	case "t":
		p.inText = true
	case "tab":
		return p.w.write("\t")
	case "br", "cr":
		p.w.line()
	case "tr":
		p.w.row()
	case "tc":
		p.cells++
		return p.w.cell()
	}
	return nil
}

func (p *wordPart) close(name string) {
	if p.skipped > 0 {
		p.skipped--
		return
	}
	switch name {
	case "t":
		p.inText = false
	case "p":
		if p.cells > 0 {
			p.w.gap() // a row stays on its line
		} else {
			p.w.line()
		}
	case "tc":
		p.cells--
	case "tr":
		p.w.line()
	case "tbl":
		p.w.blank()
	}
}

// maxSlides bounds the slides and sheets of one file.
const maxSlides = 5000

// powerPoint writes the text of the slides in their order.
func (o *office) powerPoint(w *writer) (int, error) {
	const name = "ppt/presentation.xml"
	related, err := o.relations(name)
	if err != nil {
		return 0, err
	}
	var slides []string
	if err := o.part(name, func(t xml.Token) error {
		if e, ok := t.(xml.StartElement); ok && e.Name.Local == "sldId" && len(slides) < maxSlides {
			slides = append(slides, related[relationID(e)])
		}
		return nil
	}); err != nil {
		return 0, err
	}
	for i, slide := range slides {
		if err := w.mark("slide %d", i+1); err != nil {
			return len(slides), err
		}
		p := slidePart{w: w}
		if err := o.part(slide, p.visit); err != nil {
			return len(slides), err
		}
	}
	return len(slides), nil
}

// slidePart is where the reading of a slide stands.
type slidePart struct {
	w       *writer
	inText  bool
	skipped int
	inCell  bool
}

func (p *slidePart) visit(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		switch {
		case p.skipped > 0 || t.Name.Local == "Fallback":
			p.skipped++
		case t.Name.Local == "t":
			p.inText = true
		case t.Name.Local == "br":
			p.w.line()
		case t.Name.Local == "tr":
			p.w.row()
		case t.Name.Local == "tc":
			p.inCell = true
			return p.w.cell()
		}
	case xml.EndElement:
		switch {
		case p.skipped > 0:
			p.skipped--
		case t.Name.Local == "t":
			p.inText = false
		case t.Name.Local == "p" && p.inCell:
			p.w.gap()
		case t.Name.Local == "p", t.Name.Local == "tr":
			p.w.line()
		case t.Name.Local == "tc":
			p.inCell = false
		}
	case xml.CharData:
		if p.inText && p.skipped == 0 {
			return p.w.write(string(t))
		}
	}
	return nil
}
