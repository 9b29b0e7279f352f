// Package documenttest makes small documents for tests, byte by byte, so that
// what a test expects stands beside what the document says. Only tests import
// it.
package documenttest

import (
	"archive/zip"
	"bytes"
	"compress/zlib"
	"fmt"
	"strings"
)

// Zip packs files given as name and content in turn.
func Zip(files ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i+1 < len(files); i += 2 {
		w, err := z.Create(files[i])
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			panic(err) // a buffer takes everything
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// DOCX is a Word file with a body of WordprocessingML.
func DOCX(body string) []byte {
	return Zip("word/document.xml", `<?xml version="1.0" encoding="UTF-8"?>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"
 xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><w:body>`+body+`</w:body></w:document>`)
}

// Paragraphs are paragraphs for DOCX.
func Paragraphs(texts ...string) string {
	var b strings.Builder
	for _, t := range texts {
		b.WriteString("<w:p><w:r><w:t>" + t + "</w:t></w:r></w:p>")
	}
	return b.String()
}

// PDF is a file with one page per content stream, which shows text with the
// fonts /F1 (Helvetica, WinAnsi) and /F2 (two bytes a code, with ToUnicode: code
// 0001 is "Ω", 0002 to 0004 are "a" to "c").
func PDF(pages ...string) []byte {
	objects := []string{
		"<</Type/Catalog/Pages 2 0 R>>",
		"", // the pages, when their numbers are known
		"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
		"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/ToUnicode 5 0 R/DescendantFonts[<</Subtype/CIDFontType2/DW 500>>]>>",
		stream("", "1 begincodespacerange <0000> <ffff> endcodespacerange 1 beginbfchar <0001> <03A9> endbfchar "+
			"1 beginbfrange <0002> <0004> <0061> endbfrange"),
	}
	var kids []string
	for _, content := range pages {
		var packed bytes.Buffer
		z := zlib.NewWriter(&packed)
		_, _ = z.Write([]byte(content))
		_ = z.Close()
		n := len(objects) + 1
		objects = append(objects,
			fmt.Sprintf("<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents %d 0 R/Resources<</Font<</F1 3 0 R/F2 4 0 R>>>>>>", n+1),
			stream("/Filter/FlateDecode", packed.String()))
		kids = append(kids, fmt.Sprintf("%d 0 R", n))
	}
	objects[1] = fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]>>", len(kids), strings.Join(kids, " "))
	return Objects(objects...)
}

func stream(entries, data string) string {
	return fmt.Sprintf("<</Length %d%s>>\nstream\n%s\nendstream", len(data), entries, data)
}

// Objects is a PDF of these objects, numbered from 1; the first is its catalog.
func Objects(objects ...string) []byte {
	var b bytes.Buffer
	b.WriteString("%PDF-1.7\n")
	offsets := make([]int, len(objects))
	for i, o := range objects {
		offsets[i] = b.Len()
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	xref := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, at := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", at)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, xref)
	return b.Bytes()
}
