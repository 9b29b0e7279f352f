package document

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ledongthuc/pdf"
	"golang.org/x/text/encoding/charmap"
)

// defaultWidth is how wide a character is of which the file does not say it, in
// thousandths of the font's size.
const defaultWidth = 500

// font turns the codes of strings into text and advance.
type font struct {
	wide   bool              // a code has two bytes
	text   map[uint16]string // what the file says that codes mean
	plain  [256]string       // what they mean otherwise, of one byte
	ucs2   bool              // codes are UTF-16
	widths map[uint16]float64
	usual  float64 // width of the codes not in widths
}

// newFont reads a font's dictionary.
func newFont(v pdf.Value, left *int64) *font {
	f := &font{widths: make(map[uint16]float64), usual: defaultWidth}
	if m := v.Key("ToUnicode"); m.Kind() == pdf.Stream {
		var b bytes.Buffer
		if readStream(&b, m, left) == nil {
			f.text = readToUnicode(b.Bytes())
		}
	}
	if v.Key("Subtype").Name() == "Type0" {
		f.wide = true
		f.ucs2 = strings.Contains(v.Key("Encoding").Name(), "UCS2") || strings.Contains(v.Key("Encoding").Name(), "UTF16")
		f.wideWidths(v.Key("DescendantFonts").Index(0))
		return f
	}
	f.encoding(v)
	first, widths := v.Key("FirstChar").Int64(), v.Key("Widths")
	for i := range min(widths.Len(), 256) {
		f.widths[uint16(first+int64(i))] = widths.Index(i).Float64()
	}
	if v.Key("Subtype").Name() == "Type3" { // its widths are in a space of its own
		f.widths = nil
	}
	return f
}

// wideWidths reads the list of widths: "code [w w w]" or "code code w".
func (f *font) wideWidths(v pdf.Value) {
	f.usual = 1000
	if dw := v.Key("DW"); !dw.IsNull() {
		f.usual = dw.Float64()
	}
	const most = 1 << 16
	w := v.Key("W")
	for i := 0; i+1 < w.Len() && len(f.widths) < most; {
		first := w.Index(i).Int64()
		if list := w.Index(i + 1); list.Kind() == pdf.Array {
			for k := range min(list.Len(), most) {
				f.widths[uint16(first+int64(k))] = list.Index(k).Float64()
			}
			i += 2
			continue
		}
		last, width := w.Index(i+1).Int64(), w.Index(i+2).Float64()
		for code := first; code <= last && code-first < most; code++ {
			f.widths[uint16(code)] = width
		}
		i += 3
	}
}

// encoding fills plain: by what the library makes of the font's encoding, and
// by the names of characters that it does not know.
func (f *font) encoding(v pdf.Value) {
	dict := v.Key("Encoding").Kind() == pdf.Dict
	decode := func(code string) string { return "\xff" }
	if f.text == nil || !v.Key("Encoding").IsNull() { // else the library reads ToUnicode, which is done
		of := pdf.Font{V: v}
		decode = of.Encoder().Decode
	}
	for code := range 256 {
		s := decode(string([]byte{byte(code)}))
		if !utf8.ValidString(s) || dict && s == string(rune(code)) {
			s = string(charmap.Windows1252.DecodeByte(byte(code)))
		}
		f.plain[code] = s
	}
	if !dict {
		return
	}
	code, list := int64(0), v.Key("Encoding").Key("Differences")
	for i := range list.Len() {
		x := list.Index(i)
		if x.Kind() == pdf.Integer {
			code = x.Int64()
			continue
		}
		if s := uniName(x.Name()); s != "" && code >= 0 && code < 256 {
			f.plain[code] = s
		}
		code++
	}
}

// uniName returns the character behind a name of the form uni20AC or u20AC.
func uniName(name string) string {
	digits, ok := strings.CutPrefix(name, "uni")
	if !ok {
		digits, ok = strings.CutPrefix(name, "u")
	}
	if !ok || len(digits) < 4 || len(digits) > 6 {
		return ""
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || !utf8.ValidRune(rune(n)) {
		return ""
	}
	return string(rune(n))
}

// shown is what a string shows: its text, its width in thousandths of the
// font's size, and its codes and spaces, which may be set further apart.
type shown struct {
	text   string
	width  float64
	codes  int
	spaces int
}

func (f *font) show(raw string) shown {
	var s shown
	var b strings.Builder
	step := 1
	if f.wide {
		step = 2
	}
	for i := 0; i+step <= len(raw); i += step {
		code := uint16(raw[i])
		if f.wide {
			code = code<<8 | uint16(raw[i+1])
		}
		s.codes++
		if !f.wide && code == ' ' {
			s.spaces++
		}
		width, ok := f.widths[code]
		if !ok {
			width = f.usual
		}
		s.width += width
		b.WriteString(f.meaning(code))
	}
	s.text = ligatures.Replace(b.String())
	return s
}

func (f *font) meaning(code uint16) string {
	if s, ok := f.text[code]; ok {
		return s
	}
	switch {
	case f.ucs2:
		return string(utf16.Decode([]uint16{code}))
	case f.wide:
		return "" // the number of a drawing, which means nothing elsewhere
	default:
		return f.plain[code&0xff]
	}
}

// ligatures are single characters for several letters, which no search finds.
var ligatures = strings.NewReplacer("\ufb00", "ff", "\ufb01", "fi", "\ufb02", "fl", "\ufb03", "ffi", "\ufb04", "ffl", "\ufb05", "st", "\ufb06", "st")

// readToUnicode reads a table from codes to text.
func readToUnicode(b []byte) map[uint16]string {
	const most = 1 << 16
	out := make(map[uint16]string)
	l := lexer{b: b}
	_ = l.operators(func(op string, args []token) error {
		switch op {
		case "endbfchar":
			for i := 0; i+1 < len(args); i += 2 {
				out[codeOf(args[i].text)] = utf16Text(args[i+1].text)
			}
		case "endbfrange":
			for i := 0; i+2 < len(args) && len(out) < most; i += 3 {
				addRange(out, codeOf(args[i].text), codeOf(args[i+1].text), args[i+2])
			}
		}
		return nil
	})
	return out
}

func addRange(out map[uint16]string, from, to uint16, target token) {
	if target.kind == tokenOpen {
		for i, t := range target.list {
			if int(from)+i <= int(to) {
				out[from+uint16(i)] = utf16Text(t.text)
			}
		}
		return
	}
	units := utf16Units(target.text)
	if len(units) == 0 {
		return
	}
	for code := int(from); code <= int(to); code++ {
		out[uint16(code)] = string(utf16.Decode(units))
		units[len(units)-1]++
	}
}

func codeOf(s string) uint16 {
	n := uint16(0)
	for i := range len(s) {
		n = n<<8 | uint16(s[i])
	}
	return n
}

func utf16Units(s string) []uint16 {
	if len(s) == 1 {
		return []uint16{uint16(s[0])}
	}
	units := make([]uint16, 0, len(s)/2)
	for i := 0; i+1 < len(s); i += 2 {
		units = append(units, uint16(s[i])<<8|uint16(s[i+1]))
	}
	return units
}

func utf16Text(s string) string { return string(utf16.Decode(utf16Units(s))) }
