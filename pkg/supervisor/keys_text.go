package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/auth"
)

// keyText is the text of settings, in lines, and what it was read as. Each change
// is made once, to the lines: the rest of the text stays as a person wrote it. A
// change in a place that it does not understand does nothing or makes a text that
// means something else; editKeys checks.
type keyText struct {
	lines []string
	root  ast.Node // nil when the file is empty
}

func parseKeyText(text []byte) (*keyText, error) {
	f, err := parse(text)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "ConfigError", "the settings are not well-formed YAML", err)
	}
	t := &keyText{lines: strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")}
	for _, d := range f.Docs {
		if d.Body != nil {
			t.root = d.Body
		}
	}
	return t, nil
}

func (t *keyText) bytes() []byte { return []byte(strings.Join(t.lines, "\n") + "\n") }

// member returns the entry of a mapping, nil when there is none.
func member(n ast.Node, key string) *ast.MappingValueNode {
	if n == nil {
		return nil
	}
	var s settings // takes no notes of what is no mapping here
	for _, e := range s.entries(n, "") {
		if e.Key.GetToken().Value == key {
			return e
		}
	}
	return nil
}

// list returns the entry auth, and its list of keys when there is one.
func (t *keyText) list() (*ast.MappingValueNode, *ast.SequenceNode) {
	top := member(t.root, "auth")
	if top == nil {
		return nil, nil
	}
	if keys := member(top.Value, "keys"); keys != nil {
		seq, _ := keys.Value.(*ast.SequenceNode)
		return top, seq
	}
	return top, nil
}

// item returns the i-th key, nil for the one of the older form.
func (t *keyText) item(i int) (*ast.SequenceNode, ast.Node) {
	_, seq := t.list()
	if seq == nil || i >= len(seq.Values) || len(seq.Entries) != len(seq.Values) && !seq.IsFlowStyle {
		return nil, nil
	}
	return seq, seq.Values[i]
}

// keyBlock writes a key as an item of a list in lines.
func keyBlock(k auth.Key, indent int) []string {
	pad := strings.Repeat(" ", indent)
	return []string{pad + "- id: " + plain(k.ID), pad + "  secret: " + plain(string(k.Secret))}
}

// keyFlow writes it as an item of a list in brackets.
func keyFlow(k auth.Key) string {
	return "{id: " + plain(k.ID) + ", secret: " + plain(string(k.Secret)) + "}"
}

// insertKey writes a key before the i-th; behind all others when there is none.
func (t *keyText) insertKey(i int, k auth.Key) {
	top, seq := t.list()
	switch {
	case top == nil:
		t.insert(len(t.lines), append([]string{"", "auth:", "  keys:"}, keyBlock(k, 4)...)...)
	case seq == nil:
		t.insertFirst(top, k)
	case !seq.IsFlowStyle && i < len(seq.Entries):
		at := seq.Entries[i].Start.Position
		t.insert(at.Line-1, keyBlock(k, at.Column-1)...)
	case !seq.IsFlowStyle:
		t.insert(lastLine(seq), keyBlock(k, seq.Start.Position.Column-1)...)
	case i < len(seq.Values):
		t.splice(startOf(seq.Values[i]), 0, keyFlow(k)+", ")
	case len(seq.Values) == 0:
		t.splice(seq.End.Position, 0, keyFlow(k))
	default:
		t.splice(seq.End.Position, 0, ", "+keyFlow(k))
	}
}

// insertFirst writes the key where there is no list.
func (t *keyText) insertFirst(top *ast.MappingValueNode, k auth.Key) {
	if keys := member(top.Value, "keys"); keys != nil { // "keys:" and nothing
		at := keys.Key.GetToken().Position
		t.insert(at.Line, keyBlock(k, at.Column+1)...)
		return
	}
	switch n := top.Value.(type) {
	case *ast.MappingNode:
		switch {
		case n.IsFlowStyle && len(n.Values) > 0:
			t.splice(n.Start.Position, 1, "{keys: ["+keyFlow(k)+"], ")
		case n.IsFlowStyle:
			t.splice(n.Start.Position, 1, "{keys: ["+keyFlow(k)+"]")
		default:
			t.insertList(n.Values[0].Key.GetToken().Position, k)
		}
	case *ast.MappingValueNode:
		t.insertList(n.Key.GetToken().Position, k)
	default: // "auth:" and nothing
		at := top.Key.GetToken().Position
		t.insert(at.Line, append([]string{strings.Repeat(" ", at.Column+1) + "keys:"}, keyBlock(k, at.Column+3)...)...)
	}
}

// insertList writes a list with the key before the entry that begins at a place.
func (t *keyText) insertList(at *token.Position, k auth.Key) {
	t.insert(at.Line-1, append([]string{strings.Repeat(" ", at.Column-1) + "keys:"}, keyBlock(k, at.Column+1)...)...)
}

// endKey writes when the i-th key ends. One of the older form cannot say it: it
// moves to the list.
func (t *keyText) endKey(i int, until time.Time) {
	entry := "valid_until: " + strconv.Quote(until.Format(time.RFC3339))
	_, n := t.item(i)
	switch n := n.(type) {
	case *ast.MappingNode:
		if n.IsFlowStyle {
			t.splice(n.End.Position, 0, ", "+entry)
			return
		}
		column := n.Values[0].Key.GetToken().Position.Column
		t.insert(lastLine(n), strings.Repeat(" ", column-1)+entry)
	case nil:
		t.moveOlderForm(until)
	}
}

// moveOlderForm writes the pair auth.key and auth.secret, ending at a time, to
// the end of the list.
func (t *keyText) moveOlderForm(until time.Time) {
	top, seq := t.list()
	if top == nil || seq == nil {
		return
	}
	id, secret := member(top.Value, "key"), member(top.Value, "secret")
	if id == nil || secret == nil {
		return
	}
	k := auth.Key{ID: valueOf(id), Secret: auth.Secret(valueOf(secret))}
	t.insertKey(len(seq.Values), k)
	moved, err := parseKeyText(t.bytes())
	if err != nil {
		return
	}
	moved.endKey(len(seq.Values), until)
	t.lines = moved.lines
	if again, err := parseKeyText(t.bytes()); err == nil {
		again.cutOlderForm()
		t.lines = again.lines
	}
}

// cutKey takes the i-th key out.
func (t *keyText) cutKey(i int) {
	seq, n := t.item(i)
	if n == nil {
		t.cutOlderForm()
		return
	}
	if !seq.IsFlowStyle {
		t.cutLines(seq.Entries[i].Start.Position.Line, lastLine(n))
		return
	}
	flow, ok := n.(*ast.MappingNode)
	if !ok || !flow.IsFlowStyle {
		return
	}
	from, to := startOf(flow), behind(flow)
	switch {
	case i+1 < len(seq.Values): // with the comma behind it
		to = startOf(seq.Values[i+1])
	case i > 0: // with the comma before it
		before, ok := seq.Values[i-1].(*ast.MappingNode)
		if !ok || !before.IsFlowStyle {
			return
		}
		from = behind(before)
	}
	t.cut(from, to)
}

// cutOlderForm takes the lines of auth.key and auth.secret out.
func (t *keyText) cutOlderForm() {
	top, _ := t.list()
	if top == nil {
		return
	}
	type span struct{ first, last int }
	var spans []span
	for _, name := range []string{"key", "secret"} {
		if e := member(top.Value, name); e != nil {
			spans = append(spans, span{e.Key.GetToken().Position.Line, lastLine(e.Value)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return b.first - a.first }) // from below: those above stay where they are
	for _, s := range spans {
		t.cutLines(s.first, s.last)
	}
}

func valueOf(e *ast.MappingValueNode) string {
	text, _ := scalarText(e.Value)
	return text
}

// startOf is where a node begins: a mapping in braces at its brace.
func startOf(n ast.Node) *token.Position {
	if m, ok := n.(*ast.MappingNode); ok && m.Start != nil {
		return m.Start.Position
	}
	return n.GetToken().Position
}

// behind is the place after a mapping in braces.
func behind(n *ast.MappingNode) *token.Position {
	at := *n.End.Position
	at.Column++
	return &at
}

// insert writes lines behind the n-th.
func (t *keyText) insert(n int, lines ...string) {
	t.lines = slices.Insert(t.lines, max(0, min(n, len(t.lines))), lines...)
}

// cutLines removes the lines first to last, counted from 1.
func (t *keyText) cutLines(first, last int) {
	if first >= 1 && first <= last && last <= len(t.lines) {
		t.lines = slices.Delete(t.lines, first-1, last)
	}
}

// splice replaces n characters at a place.
func (t *keyText) splice(at *token.Position, n int, text string) {
	if at.Line < 1 || at.Line > len(t.lines) {
		return
	}
	line := []rune(t.lines[at.Line-1])
	if at.Column < 1 || at.Column-1+n > len(line) {
		return
	}
	t.lines[at.Line-1] = string(line[:at.Column-1]) + text + string(line[at.Column-1+n:])
}

// cut removes what lies between two places.
func (t *keyText) cut(from, to *token.Position) {
	if from.Line < 1 || to.Line > len(t.lines) || from.Line > to.Line || from.Column < 1 || to.Column < 1 {
		return
	}
	head, tail := []rune(t.lines[from.Line-1]), []rune(t.lines[to.Line-1])
	if from.Column-1 > len(head) || to.Column-1 > len(tail) {
		return
	}
	joined := string(head[:from.Column-1]) + string(tail[to.Column-1:])
	t.lines = slices.Replace(t.lines, from.Line-1, to.Line, joined)
}

// lastLine is the line on which a node ends.
func lastLine(n ast.Node) int {
	l := &lineFinder{}
	ast.Walk(l, n)
	return l.last
}

type lineFinder struct{ last int }

// Visit notes where a node ends.
func (l *lineFinder) Visit(n ast.Node) ast.Visitor {
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		l.last = max(l.last, tok.Position.Line)
	}
	switch n := n.(type) {
	case *ast.CommentNode, *ast.CommentGroupNode:
		return nil
	case *ast.MappingNode:
		if n.IsFlowStyle && n.End != nil {
			l.last = max(l.last, n.End.Position.Line)
		}
	case *ast.SequenceNode:
		if n.IsFlowStyle && n.End != nil {
			l.last = max(l.last, n.End.Position.Line)
		}
	}
	return l
}
