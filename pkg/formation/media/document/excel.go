package document

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The bounds of a sheet that are kept: what lies beyond is text that nobody
// typed. A gap between two cells of a row is shown as at most maxGap tabs.
const (
	maxShared = 1 << 20 // texts shared by the cells of a file
	maxGap    = 32
)

// excel writes the sheets of a workbook in their order, a row a line, cells
// apart by tabs.
func (o *office) excel(w *writer) (sheets int, err error) {
	const name = "xl/workbook.xml"
	related, err := o.relations(name)
	if err != nil {
		return 0, err
	}
	type sheet struct{ title, part string }
	var list []sheet
	b := workbook{}
	if err := o.part(name, func(t xml.Token) error {
		e, ok := t.(xml.StartElement)
		switch {
		case !ok:
		case e.Name.Local == "sheet" && len(list) < maxSlides:
			list = append(list, sheet{attr(e, "name"), related[relationID(e)]})
		case e.Name.Local == "workbookPr":
			b.since1904 = attr(e, "date1904") == "1" || attr(e, "date1904") == "true"
		}
		return nil
	}); err != nil {
		return 0, err
	}
	if err := b.read(o); err != nil {
		return len(list), err
	}
	for _, s := range list {
		if err := w.mark("sheet %s", strings.Join(strings.Fields(s.title), " ")); err != nil {
			return len(list), err
		}
		p := sheetPart{w: w, book: &b}
		if err := o.part(s.part, p.visit); err != nil {
			return len(list), err
		}
	}
	return len(list), nil
}

// workbook is what all sheets share.
type workbook struct {
	shared    []string
	dates     map[int]bool // by number of the cell style: it shows a date
	since1904 bool
}

func (b *workbook) read(o *office) error {
	var item strings.Builder
	in, phonetic := false, 0
	if err := o.part("xl/sharedStrings.xml", func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "si":
				item.Reset()
			case "rPh": // how the text is pronounced
				phonetic++
			}
			in = t.Name.Local == "t" && phonetic == 0
		case xml.EndElement:
			in = false
			switch t.Name.Local {
			case "rPh":
				phonetic--
			case "si":
				if len(b.shared) >= maxShared {
					return fmt.Errorf("it has more than %d texts", maxShared)
				}
				b.shared = append(b.shared, item.String())
			}
		case xml.CharData:
			if in {
				item.Write(t)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return b.readStyles(o)
}

// readStyles finds the cell styles that show a number as a date.
func (b *workbook) readStyles(o *office) error {
	b.dates = make(map[int]bool)
	own := make(map[string]bool) // number formats of the file's own that show dates
	inCells, n := false, 0
	return o.part("xl/styles.xml", func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "numFmt":
				own[attr(t, "numFmtId")] = showsDate(attr(t, "formatCode"))
			case "cellXfs":
				inCells = true
			case "xf":
				if inCells {
					format := attr(t, "numFmtId")
					b.dates[n] = own[format] || builtInDate(format)
					n++
				}
			}
		case xml.EndElement:
			if t.Name.Local == "cellXfs" {
				inCells = false
			}
		}
		return nil
	})
}

// builtInDate tells whether a number format that every workbook has shows a date.
func builtInDate(id string) bool {
	n, err := strconv.Atoi(id)
	return err == nil && (n >= 14 && n <= 22 || n >= 27 && n <= 36 || n >= 45 && n <= 47 || n >= 50 && n <= 58)
}

// showsDate tells whether a format code has parts of a date or time outside of
// quoted text and brackets.
func showsDate(code string) bool {
	quoted, bracket := false, false
	for i := 0; i < len(code); i++ {
		switch c := code[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '\\' || c == '_' || c == '*':
			i++
		case c == '[':
			bracket = true
		case c == ']':
			bracket = false
		case !bracket && strings.IndexByte("yYdDhH", c) >= 0:
			return true
		}
	}
	return false
}

// sheetPart is where the reading of a sheet stands.
type sheetPart struct {
	w    *writer
	book *workbook

	column int // of the cell, from 0
	last   int // column of the last cell that was written in this row, -1
	kind   string
	style  int
	in     bool // in a value
	value  strings.Builder
}

func (p *sheetPart) visit(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		p.open(t)
	case xml.EndElement:
		return p.close(t.Name.Local)
	case xml.CharData:
		if p.in {
			p.value.Write(t)
		}
	}
	return nil
}

func (p *sheetPart) open(e xml.StartElement) {
	switch e.Name.Local {
	case "row":
		p.w.line()
		p.column, p.last = -1, -1
	case "c":
		p.column++
		if c, ok := columnOf(attr(e, "r")); ok {
			p.column = c
		}
		p.kind, p.in = attr(e, "t"), false
		p.style, _ = strconv.Atoi(attr(e, "s")) // no number is the first style
		p.value.Reset()
	case "v", "t":
		p.in = true
	}
}

func (p *sheetPart) close(name string) error {
	switch name {
	case "v", "t":
		p.in = false
	case "row":
		p.w.line()
	case "c":
		return p.cell()
	}
	return nil
}

func (p *sheetPart) cell() error {
	text := p.shown(p.value.String())
	if strings.TrimSpace(text) == "" {
		return nil
	}
	// A cell's own line breaks would look like rows.
	text = strings.Join(strings.Fields(text), " ")
	gap := p.column - max(p.last, 0)
	for range min(max(gap, 0), maxGap) {
		if err := p.w.put('\t'); err != nil {
			return err
		}
	}
	p.last = p.column
	return p.w.write(text)
}

// shown is the value of a cell as its reader sees it, as far as that matters.
func (p *sheetPart) shown(value string) string {
	switch p.kind {
	case "s":
		i, err := strconv.Atoi(value)
		if err != nil || i < 0 || i >= len(p.book.shared) {
			return ""
		}
		return p.book.shared[i]
	case "b":
		if value == "1" {
			return "TRUE"
		}
		return "FALSE"
	case "", "n":
		if p.book.dates[p.style] {
			return p.book.date(value)
		}
		return trimFloat(value)
	default: // str, inlineStr, e, d
		return value
	}
}

// trimFloat takes the noise of binary fractions from a number.
func trimFloat(value string) string {
	const digits = 15 // that Excel itself keeps
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || len(value) <= digits {
		return value
	}
	return strconv.FormatFloat(f, 'g', digits, 64)
}

// date turns a count of days into a date, a time or both.
func (b *workbook) date(value string) string {
	const lastDay = 2958466 // the year 10000
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f >= lastDay {
		return value
	}
	epoch := time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)
	if b.since1904 {
		epoch = time.Date(1904, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	const secondsPerDay = 24 * 60 * 60
	days, fraction := math.Modf(f)
	seconds := math.Round(fraction * secondsPerDay)
	t := epoch.AddDate(0, 0, int(days)).Add(time.Duration(seconds) * time.Second)
	switch {
	case seconds == 0:
		return t.Format("2006-01-02")
	case days == 0:
		return t.Format("15:04:05")
	default:
		return t.Format("2006-01-02 15:04:05")
	}
}

// columnOf returns the column of a reference like "AB12", from 0.
func columnOf(ref string) (int, bool) {
	const maxColumns = 16384
	n := 0
	for i := range len(ref) {
		c := ref[i]
		if c < 'A' || c > 'Z' {
			break
		}
		if n = n*26 + int(c-'A') + 1; n > maxColumns {
			return 0, false
		}
	}
	return n - 1, n > 0
}
