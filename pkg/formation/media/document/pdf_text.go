package document

import (
	"bytes"
	"math"
	"strings"

	"github.com/ledongthuc/pdf"
)

// matrix is a b c d e f of the format: x' = ax + cy + e, y' = bx + dy + f.
type matrix [6]float64

var identity = matrix{1, 0, 0, 1, 0, 0}

// times returns the matrix that does m first and then n.
func (m matrix) times(n matrix) matrix {
	return matrix{
		m[0]*n[0] + m[1]*n[2], m[0]*n[1] + m[1]*n[3],
		m[2]*n[0] + m[3]*n[2], m[2]*n[1] + m[3]*n[3],
		m[4]*n[0] + m[5]*n[2] + n[4], m[4]*n[1] + m[5]*n[3] + n[5],
	}
}

// state is what the operators set.
type state struct {
	ctm                       matrix
	font                      *font
	size, leading, rise       float64
	charSpace, wordSpace      float64
	scale                     float64 // horizontal
	textMatrix, textLineStart matrix
}

// reader runs the operators of one page.
type reader struct {
	layout *layout
	fonts  map[string]*font
	left   *int64
	forms  int
}

// run interprets one content stream with its resources.
func (r *reader) run(content []byte, resources pdf.Value, depth int) error {
	return r.runFrom(state{ctm: identity, scale: 1, textMatrix: identity, textLineStart: identity}, content, resources, depth)
}

func (r *reader) runFrom(s state, content []byte, resources pdf.Value, depth int) error {
	const maxSaved = 256
	var saved []state
	l := lexer{b: content}
	return l.operators(func(op string, args []token) error {
		switch op {
		case "q":
			if len(saved) < maxSaved {
				saved = append(saved, s)
			}
		case "Q":
			if n := len(saved); n > 0 {
				s, saved = saved[n-1], saved[:n-1]
			}
		case "cm":
			s.ctm = matrixOf(args).times(s.ctm)
		case "Tf":
			if n := len(args); n >= 2 {
				s.font, s.size = r.font(resources, args[n-2].text), args[n-1].number
			}
		case "Do":
			if len(args) > 0 {
				return r.form(s, resources, args[len(args)-1].text, depth)
			}
		case "Tj", "'", "\"", "TJ":
			return r.show(&s, op, args)
		default:
			s.set(op, args)
		}
		return nil
	})
}

// set does the operators that only place text.
func (s *state) set(op string, args []token) {
	switch op {
	case "BT":
		s.textMatrix, s.textLineStart = identity, identity
	case "Tc":
		s.charSpace = number(args, 0)
	case "Tw":
		s.wordSpace = number(args, 0)
	case "Tz":
		s.scale = number(args, 0) / 100
	case "TL":
		s.leading = number(args, 0)
	case "Ts":
		s.rise = number(args, 0)
	case "Tm":
		s.textMatrix = matrixOf(args)
		s.textLineStart = s.textMatrix
	case "Td":
		s.move(number(args, 0), number(args, 1))
	case "TD":
		s.leading = -number(args, 1)
		s.move(number(args, 0), number(args, 1))
	case "T*":
		s.move(0, -s.leading)
	}
}

func (s *state) move(x, y float64) {
	s.textLineStart = matrix{1, 0, 0, 1, x, y}.times(s.textLineStart)
	s.textMatrix = s.textLineStart
}

func number(args []token, i int) float64 {
	if i < len(args) {
		return args[i].number
	}
	return 0
}

func matrixOf(args []token) matrix {
	if len(args) < len(identity) {
		return identity
	}
	var m matrix
	for i := range m {
		m[i] = args[i].number
	}
	return m
}

// font returns a font of the page by its name there. Pages share fonts, and
// reading one is slow.
func (r *reader) font(resources pdf.Value, name string) *font {
	const maxKey = 4096
	v := resources.Key("Font").Key(name)
	if v.Kind() != pdf.Dict {
		return nil
	}
	key := v.String()
	if f, ok := r.fonts[key]; ok {
		return f
	}
	f := newFont(v, r.left)
	if len(key) <= maxKey {
		r.fonts[key] = f
	}
	return f
}

// form draws what is kept apart from the page and drawn by name.
func (r *reader) form(s state, resources pdf.Value, name string, depth int) error {
	v := resources.Key("XObject").Key(name)
	if v.Kind() != pdf.Stream || v.Key("Subtype").Name() != "Form" || depth >= maxFormDepth {
		return nil
	}
	if r.forms++; r.forms > maxForms {
		return nil
	}
	var b bytes.Buffer
	if err := readStream(&b, v, r.left); err != nil {
		return err
	}
	if m := v.Key("Matrix"); m.Len() == len(identity) {
		var own matrix
		for i := range own {
			own[i] = m.Index(i).Float64()
		}
		s.ctm = own.times(s.ctm)
	}
	if own := v.Key("Resources"); own.Kind() == pdf.Dict {
		resources = own
	}
	return r.runFrom(s, b.Bytes(), resources, depth+1)
}

// show does the operators that show text.
func (r *reader) show(s *state, op string, args []token) error {
	if len(args) == 0 {
		return nil
	}
	switch op {
	case "\"":
		s.wordSpace, s.charSpace = number(args, 0), number(args, 1)
		s.move(0, -s.leading)
	case "'":
		s.move(0, -s.leading)
	}
	last := args[len(args)-1]
	if last.kind == tokenString {
		return r.put(s, last.text)
	}
	for _, t := range last.list {
		if t.kind == tokenString {
			if err := r.put(s, t.text); err != nil {
				return err
			}
		} else {
			s.advance(-t.number / 1000 * s.size)
		}
	}
	return nil
}

// advance moves on along the line, in text space before scaling.
func (s *state) advance(by float64) {
	s.textMatrix = matrix{1, 0, 0, 1, by * s.scale, 0}.times(s.textMatrix)
}

// put writes one string where it stands.
func (r *reader) put(s *state, raw string) error {
	if s.font == nil {
		return nil
	}
	text := s.font.show(raw)
	at := s.textMatrix.times(s.ctm)
	s.advance(text.width/1000*s.size + float64(text.codes)*s.charSpace + float64(text.spaces)*s.wordSpace)
	end := s.textMatrix.times(s.ctm)
	height := s.size * math.Hypot(at[2], at[3])
	return r.layout.add(run{
		text: text.text, x: at[4], y: at[5], endX: end[4], endY: end[5], height: math.Abs(height),
		dirX: at[0], dirY: at[1],
	})
}

// run is a piece of text on the page.
type run struct {
	text       string
	x, y       float64 // where it begins
	endX, endY float64 // and ends
	height     float64 // of the font, on the page
	dirX, dirY float64 // along the line
}

// layout joins runs to lines by where they stand: a gap is a space, another
// baseline another line, one further away another paragraph.
type layout struct {
	w    *writer
	last run
	any  bool
}

func (l *layout) add(r run) error {
	if strings.TrimSpace(r.text) == "" {
		if r.text != "" {
			l.w.gap()
		}
		return nil
	}
	if l.any {
		l.apart(r)
	}
	l.last, l.any = r, true
	return l.w.write(r.text)
}

// apart puts between the last run and r what their places say.
func (l *layout) apart(r run) {
	const (
		lineGap      = 0.5 // of the height: more is another line
		paragraphGap = 1.9
		wordGap      = 0.18
	)
	height := math.Max(r.height, l.last.height)
	length := math.Hypot(r.dirX, r.dirY)
	if height == 0 || length == 0 || math.IsNaN(height) || math.IsNaN(length) {
		l.w.gap()
		return
	}
	dx, dy := r.x-l.last.endX, r.y-l.last.endY
	along := (dx*r.dirX + dy*r.dirY) / length
	across := math.Abs(dy*r.dirX-dx*r.dirY) / length
	switch {
	case across > paragraphGap*height:
		l.w.blank()
	case across > lineGap*height:
		l.w.line()
	case along > wordGap*height || along < -height:
		l.w.gap()
	}
}
