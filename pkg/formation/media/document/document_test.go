package document_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/media/document"
	"github.com/agentformation/service/pkg/formation/media/document/documenttest"
)

const enough = 1 << 20

func TestExtract_ReadsWhatAReaderSees(t *testing.T) {
	t.Parallel()
	const relations = `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">`
	const r = `xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"`
	tests := []struct {
		name   string
		format document.Format
		data   []byte
		want   document.Text
	}{
		{
			"pdf: lines, words and paragraphs by their places", document.PDF,
			documenttest.PDF(
				"BT /F1 12 Tf 14 TL 50 700 Td (Hello) Tj 40 0 Td (world) Tj 0 -14 Td (next line) Tj T* (third) Tj 0 -60 Td (far below) Tj ET",
				"BT /F1 10 Tf 1 0 0 1 50 700 Tm [(Ker) -20 (ning) -400 (gap)] TJ (new) ' ET",
			),
			document.Text{
				Content:   "[page 1]\nHello world\nnext line\nthird\n\nfar below\n\n[page 2]\nKerning gap new",
				MediaType: document.TypePDF, Parts: 2,
			},
		},
		{
			"pdf: encodings", document.PDF,
			documenttest.PDF(`BT /F1 12 Tf 50 700 Td (caf\351 \200 \(x\)) Tj 0 -20 Td /F2 12 Tf <0001000200030004> Tj ET`),
			document.Text{Content: "[page 1]\ncafé € (x)\nΩabc", MediaType: document.TypePDF, Parts: 1},
		},
		{
			"pdf: an image in the content", document.PDF,
			documenttest.PDF("BI /W 2 /H 2 /BPC 8 ID \x00(<[\xff)EI> EI\nBT /F1 12 Tf 50 700 Td (after) Tj ET Q Q"),
			document.Text{Content: "[page 1]\nafter", MediaType: document.TypePDF, Parts: 1},
		},
		{
			"docx", document.Office,
			documenttest.DOCX(documenttest.Paragraphs("First &amp; foremost", "Second") +
				`<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:delText>gone</w:delText></w:r></w:p>
				<w:tbl><w:tr><w:tc><w:p><w:r><w:t>k</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>v</w:t></w:r></w:p></w:tc></w:tr>
				<w:tr><w:tc><w:p/></w:tc><w:tc><w:p><w:r><w:t>w</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
				<mc:AlternateContent><mc:Choice>` + documenttest.Paragraphs("once") + `</mc:Choice><mc:Fallback>` + documenttest.Paragraphs("twice") +
				`</mc:Fallback></mc:AlternateContent>`),
			document.Text{Content: "First & foremost\nSecond\na\tb\nc\nk\tv\n\tw\n\nonce", MediaType: document.TypeDOCX},
		},
		{
			"xlsx", document.Office,
			documenttest.Zip(
				"xl/workbook.xml", `<workbook `+r+`><sheets><sheet name="Costs &lt;1&gt;" sheetId="9" r:id="rId2"/><sheet name="Empty" r:id="rId1"/></sheets></workbook>`,
				"xl/_rels/workbook.xml.rels", relations+`<Relationship Id="rId1" Target="worksheets/e.xml"/><Relationship Id="rId2" Target="/xl/worksheets/a.xml"/></Relationships>`,
				"xl/sharedStrings.xml", `<sst><si><t>Item</t></si><si><r><t>Pr</t></r><r><t>ice</t></r><rPh><t>x</t></rPh></si></sst>`,
				"xl/styles.xml", `<styleSheet><numFmts><numFmt numFmtId="164" formatCode="&quot;day&quot; 0.0"/><numFmt numFmtId="165" formatCode="dd/mm/yy"/></numFmts>
					<cellStyleXfs><xf numFmtId="14"/></cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs></styleSheet>`,
				"xl/worksheets/a.xml", `<worksheet><sheetData>
					<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c><c r="D1" t="inlineStr"><is><t>two
lines</t></is></c></row>
					<row r="2"><c r="A2" t="b"><v>1</v></c><c r="B2"><f>1/3</f><v>0.30000000000000004</v></c><c r="C2" s="1"><v>45292</v></c></row>
					<row r="3"><c r="B3" s="2"><v>7</v></c><c r="C3" s="3"><v>45292.5</v></c><c r="D3" t="s"><v>99</v></c><c r="E3" t="e"><v>#N/A</v></c></row>
					</sheetData></worksheet>`,
				"xl/worksheets/e.xml", `<worksheet><sheetData/></worksheet>`,
			),
			document.Text{
				Content: "[sheet Costs <1>]\nItem\tPrice\t\ttwo lines\nTRUE\t0.3\t2024-01-01\n\t7\t2024-01-01 12:00:00\t\t#N/A\n\n[sheet Empty]",
				Parts:   2, MediaType: document.TypeXLSX,
			},
		},
		{
			"pptx: in the order of the show", document.Office,
			documenttest.Zip(
				"ppt/presentation.xml", `<p:presentation xmlns:p="p" `+r+`><p:sldIdLst><p:sldId id="256" r:id="b"/><p:sldId id="257" r:id="a"/></p:sldIdLst></p:presentation>`,
				"ppt/_rels/presentation.xml.rels", relations+`<Relationship Id="a" Target="slides/slide1.xml"/><Relationship Id="b" Target="slides/slide2.xml"/></Relationships>`,
				"ppt/slides/slide1.xml", `<p:sld xmlns:p="p" xmlns:a="a"><a:p><a:r><a:t>second</a:t></a:r></a:p></p:sld>`,
				"ppt/slides/slide2.xml", `<p:sld xmlns:p="p" xmlns:a="a"><a:p><a:r><a:t>fir</a:t></a:r><a:r><a:t>st</a:t></a:r></a:p><a:p><a:r><a:t>point</a:t></a:r></a:p></p:sld>`,
			),
			document.Text{Content: "[slide 1]\nfirst\npoint\n\n[slide 2]\nsecond", Parts: 2, MediaType: document.TypePPTX},
		},
		{
			"html", document.HTML,
			[]byte(`<!doctype html><html><head><title>Title</title><style>p{}</style><script>if (a < b) "</p>"</script></head>
				<body><h2>Head</h2><p>One <b>bold</b>
				word.<p>Two<ul><li>x<li>y</ul><table><tr><td>a<td>b</table><pre>  k
  v</pre><img alt="A cat" src=x> <svg><text>drawn</text></svg>caf&eacute;</body>`),
			document.Text{
				Content:   "Title\n\n## Head\n\nOne bold word.\n\nTwo\n\n- x\n- y\n\na\tb\n\nk\nv\n\n[A cat] café",
				MediaType: document.TypeHTML,
			},
		},
		{
			"html in another character set", document.HTML,
			[]byte("<meta charset=windows-1251><p>\xcf\xf0\xe8\xe2\xe5\xf2"),
			document.Text{Content: "Привет", MediaType: document.TypeHTML},
		},
		{"html: nothing", document.HTML, nil, document.Text{MediaType: document.TypeHTML}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := document.Extract(tt.format, tt.data, enough)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExtract_CutsAtTheLimit(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("äöü ", 1000)
	for name, tt := range map[string]struct {
		format document.Format
		data   []byte
	}{
		"docx": {document.Office, documenttest.DOCX(documenttest.Paragraphs(text))},
		"html": {document.HTML, []byte(text)},
		"pdf":  {document.PDF, documenttest.PDF("BT /F1 12 Tf (" + strings.Repeat("word ", 1000) + ") Tj ET")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 101
			got, err := document.Extract(tt.format, tt.data, limit)
			if err != nil || !got.Cut || len(got.Content) > limit || len(got.Content) < limit-3 {
				t.Errorf("%d bytes, cut %v, error %v", len(got.Content), got.Cut, err)
			}
		})
	}
}

func TestExtract_SaysWhatIsWrongWithADocument(t *testing.T) {
	t.Parallel()
	good := documenttest.PDF("BT /F1 12 Tf (x) Tj ET")
	tests := []struct {
		name   string
		format document.Format
		data   []byte
		want   string
	}{
		{"no such format", "exe", nil, "not read"},
		{"pdf: nothing", document.PDF, nil, "malformed"},
		{"pdf: text", document.PDF, []byte("hello"), "malformed"},
		{"pdf: cut in the middle", document.PDF, good[:len(good)/2], "malformed"},
		{"pdf: no pages", document.PDF, documenttest.Objects("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Count 0/Kids[]>>"), "no pages"},
		{"pdf: pages that are their own pages", document.PDF, documenttest.Objects("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Count 2/Kids[2 0 R 2 0 R]>>"), "no pages"},
		{
			"pdf: content with an unknown filter", document.PDF,
			documenttest.Objects("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]>>", "<</Type/Page/Contents 4 0 R>>",
				"<</Length 3/Filter/Nope>>\nstream\nabc\nendstream"), "none of its pages",
		},
		{"office: no archive", document.Office, []byte("PK\x03\x04 and then nothing"), "damaged"},
		{"office: another archive", document.Office, documenttest.Zip("a.txt", "hello"), "no Word, Excel or PowerPoint"},
		{"office: bad XML", document.Office, documenttest.Zip("word/document.xml", "<a><b></a>"), "word/document.xml"},
		{"office: an entity of its own", document.Office, documenttest.Zip("word/document.xml", `<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>`), "entity"},
		{"office: deep", document.Office, documenttest.Zip("word/document.xml", strings.Repeat("<a>", 1000)), "deeper than"},
		{"office: a bomb", document.Office, claiming(t, 65<<20), "unpacks to more than"},
		{"office: a bomb that denies it", document.Office, claiming(t, 9), "word/document.xml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, err := document.Extract(tt.format, tt.data, enough); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("text %q, error %v; want one with %q", got.Content, err, tt.want)
			}
		})
	}
}

// claiming is a Word file of 1000 bytes that says that it has another size.
func claiming(t *testing.T, size uint64) []byte {
	t.Helper()
	var packed, b bytes.Buffer
	f, err := flate.NewWriter(&packed, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.Write([]byte("<a>" + strings.Repeat(" ", 993) + "</a>"))
	_ = f.Close()
	z := zip.NewWriter(&b)
	w, err := z.CreateRaw(&zip.FileHeader{
		Name: "word/document.xml", Method: zip.Deflate, CompressedSize64: uint64(packed.Len()), UncompressedSize64: size,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(packed.Bytes())
	_ = z.Close()
	return b.Bytes()
}

func TestExtract_SkipsThePageThatItCannotRead(t *testing.T) {
	t.Parallel()
	data := documenttest.Objects("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R 4 0 R]>>",
		"<</Type/Page/Contents 5 0 R>>", "<</Type/Page/Contents 6 0 R/Resources<</Font<</F 7 0 R>>>>>>",
		"<</Length 3/Filter/LZWDecode>>\nstream\nabc\nendstream",
		"<</Length 24>>\nstream\nBT /F 9 Tf (readable) Tj\nendstream",
		"<</Type/Font/Subtype/Type1/Encoding/WinAnsiEncoding>>")
	got, err := document.Extract(document.PDF, data, enough)
	if err != nil {
		t.Fatal(err)
	}
	want := document.Text{Content: "[page 1]\n\n[page 2]\nreadable", Parts: 2, Unread: 1, MediaType: document.TypePDF}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func fuzz(f *testing.F, format document.Format, seeds ...[]byte) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 4096
		out, err := document.Extract(format, data, limit)
		if err != nil {
			return
		}
		checkText(t, out, limit)
	})
}

func checkText(t *testing.T, out document.Text, limit int) {
	t.Helper()
	if len(out.Content) > limit {
		t.Errorf("%d bytes of text, the limit is %d", len(out.Content), limit)
	}
	if bad := strings.IndexFunc(out.Content, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0xfffd }); bad >= 0 {
		t.Errorf("the text has a control character or is no UTF-8 at %d: %q", bad, out.Content)
	}
}

// FuzzPDF changes what pages draw and what codes mean. The objects of a file are
// the library's to read, and some make it run on: package media shows that this
// is the end of its process only.
func FuzzPDF(f *testing.F) {
	f.Add("BT /F1 12 Tf 50 700 Td (Hello) Tj [(a) -500 (b)] TJ /F2 1 Tf <00010002> Tj /X Do ET", "1 beginbfchar <01> <0041> endbfchar")
	f.Add("q BI ID x EI [[(]] Q 1 0 0 1 2 3 cm ' \" %\n<</A (\\101)>>", "2 beginbfrange <00> <ff> <d800> <01> <02> [<41>] endbfrange")
	f.Fuzz(func(t *testing.T, content, unicode string) {
		stream := func(s string) string { return fmt.Sprintf("<</Length %d>>\nstream\n%s\nendstream", len(s), s) }
		data := documenttest.Objects("<</Pages<</Kids[2 0 R]>>>>",
			"<</Contents 3 0 R/Resources<</Font<</F1 4 0 R/F2 5 0 R>>/XObject<</X 7 0 R>>>>>>",
			stream(content), "<</ToUnicode 6 0 R/Widths[1 2]/Encoding<</Differences[1/uni0041/B]>>>>", "<</Subtype/Type0/ToUnicode 6 0 R>>",
			stream(unicode), "<</Subtype/Form/Length 8/Resources<</XObject<</X 7 0 R>>>>>>\nstream\n/X Do\n/X Do\nendstream")
		const limit = 4096
		out, err := document.Extract(document.PDF, data, limit)
		if err == nil {
			checkText(t, out, limit)
		} else if !strings.Contains(err.Error(), "none of its pages") {
			t.Error(err)
		}
	})
}

func FuzzHTML(f *testing.F) {
	fuzz(f, document.HTML, []byte("<p>a<b>c<script>x</script><pre> y"), []byte("<meta charset=utf-16le>\xff\xfe<\x00"))
}

// FuzzOffice changes the parts inside the archive: a change to the archive
// itself rarely leaves its checksums right.
func FuzzOffice(f *testing.F) {
	f.Add("<w:p><w:r><w:t>a</w:t></w:r></w:p>", "<row><c r=\"B1\" t=\"s\"><v>0</v></c></row>", "<si><t>x</t></si>")
	f.Fuzz(func(t *testing.T, word, sheet, shared string) {
		const limit = 4096
		for _, data := range [][]byte{
			documenttest.Zip("word/document.xml", word),
			documenttest.Zip("xl/workbook.xml", `<w xmlns:r="http://x/relationships"><sheet name="s" r:id="a"/></w>`,
				"xl/_rels/workbook.xml.rels", `<r><Relationship Id="a" Target="s.xml"/></r>`,
				"xl/s.xml", sheet, "xl/sharedStrings.xml", shared, "xl/styles.xml", shared),
			[]byte(word),
		} {
			if out, err := document.Extract(document.Office, data, limit); err == nil {
				checkText(t, out, limit)
			}
		}
	})
}

func ExampleExtract() {
	text, err := document.Extract(document.HTML, []byte("<h1>Report</h1><p>All is <em>well</em>."), 1000)
	fmt.Println(text.Content, err)
	// Output:
	// # Report
	//
	// All is well. <nil>
}
