package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
)

// maxToken bounds one tag or one run of text of an HTML document, in bytes.
const maxToken = 4 << 20

// readHTML writes the text of a page as a reader sees it. It reads tokens and
// builds no tree: that takes the same time whatever the nesting.
func readHTML(data []byte, w *writer) (Text, error) {
	out := Text{MediaType: TypeHTML}
	decoded, err := charset.NewReader(bytes.NewReader(data), "")
	if errors.Is(err, io.EOF) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("its character set is not known: %w", err)
	}
	z := html.NewTokenizer(decoded)
	z.SetMaxBuf(maxToken)
	p := page{w: w}
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return out, fmt.Errorf("it is malformed: %w", err)
			}
			return out, nil
		case html.TextToken:
			err = p.text(string(z.Text()))
		case html.StartTagToken:
			err = p.open(z.Token(), false)
		case html.SelfClosingTagToken:
			err = p.open(z.Token(), true)
		case html.EndTagToken:
			name, _ := z.TagName()
			p.close(atom.Lookup(name))
		default:
		}
		if err != nil {
			return out, err
		}
	}
}

// page is where the reading of an HTML document stands.
type page struct {
	w      *writer
	hidden atom.Atom // the element whose content is not shown, and its depth
	depth  int
	pre    int // depth of pre
}

func (p *page) text(s string) error {
	if p.hidden != 0 {
		return nil
	}
	if p.pre > 0 {
		return p.w.write(s)
	}
	words := strings.Fields(s)
	if len(words) == 0 || strings.ContainsRune(" \t\r\n\f", rune(s[0])) {
		p.w.gap()
	}
	for i, word := range words {
		if i > 0 {
			p.w.gap()
		}
		if err := p.w.write(word); err != nil {
			return err
		}
	}
	if len(words) > 0 && strings.ContainsRune(" \t\r\n\f", rune(s[len(s)-1])) {
		p.w.gap()
	}
	return nil
}

func (p *page) open(t html.Token, closed bool) error {
	if p.hidden != 0 {
		if t.DataAtom == p.hidden && !closed {
			p.depth++
		}
		return nil
	}
	switch t.DataAtom {
	case atom.Script, atom.Style, atom.Noscript, atom.Template, atom.Svg, atom.Math, atom.Iframe, atom.Object:
		if !closed {
			p.hidden, p.depth = t.DataAtom, 1
		}
	case atom.Br:
		p.w.line()
	case atom.Li:
		p.w.line()
		return p.w.write("- ")
	case atom.Tr:
		p.w.row()
	case atom.Td, atom.Th:
		return p.w.cell()
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		p.w.blank()
		return p.w.write(strings.Repeat("#", int(t.Data[1]-'0')) + " ")
	case atom.Img:
		for _, a := range t.Attr {
			if a.Key == "alt" && strings.TrimSpace(a.Val) != "" {
				return p.w.write("[" + strings.TrimSpace(a.Val) + "]")
			}
		}
	case atom.Pre:
		p.pre++
		p.w.blank()
	default:
		p.space(t.DataAtom)
	}
	return nil
}

func (p *page) close(a atom.Atom) {
	if p.hidden != 0 {
		if a == p.hidden {
			if p.depth--; p.depth == 0 {
				p.hidden = 0
			}
		}
		return
	}
	switch a {
	case atom.Pre:
		p.pre = max(p.pre-1, 0)
		p.w.blank()
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		p.w.blank()
	default:
		p.space(a)
	}
}

// space keeps apart what a browser shows apart.
func (p *page) space(a atom.Atom) {
	switch a {
	case atom.P, atom.Blockquote, atom.Table, atom.Ul, atom.Ol, atom.Dl, atom.Hr, atom.Title, atom.Section, atom.Article:
		p.w.blank()
	case atom.Div, atom.Tr, atom.Dt, atom.Dd, atom.Header, atom.Footer, atom.Nav, atom.Main, atom.Aside, atom.Figure,
		atom.Figcaption, atom.Form, atom.Fieldset, atom.Option, atom.Address, atom.Caption, atom.Li, atom.Summary:
		p.w.line()
	default:
	}
}
