package scaffold

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// errUnclear says that an edit found no place that it understands.
var errUnclear = errors.New("the list is written in a way that is not edited here")

// listed is where an item stands in a list.
type listed struct {
	text []byte
	line int // of the item, from 1
	// already tells that the item was there before, and text is unchanged.
	already bool
}

// addItem appends a text to the list at the path keys of a YAML file. Blocks
// that are missing are made. All other lines stay as they are, with their
// comments: the syntax tree only says where to write. The outcome is read
// again: when it says anything but the old file and the item, the error is
// errUnclear. An item that is there in its own words, a block with that id, is
// an error too.
func addItem(text []byte, keys []string, item string) (_ listed, err error) {
	defer func() {
		if r := recover(); r != nil { // the parser's, at what it does not expect
			err = errUnclear
		}
	}()
	bom := []byte("\ufeff")
	body := bytes.TrimPrefix(text, bom)
	e := &edit{lines: strings.SplitAfter(string(body), "\n"), keys: keys, item: item}
	if n := len(e.lines); e.lines[n-1] == "" {
		e.lines = e.lines[:n-1]
	}
	root, err := e.root(body)
	if err != nil {
		return listed{}, err
	}
	found, err := e.run(root)
	if err != nil {
		return listed{}, err
	}
	if found.already {
		found.text = text
		return found, nil
	}
	changed := []byte(strings.Join(e.lines, ""))
	if err := e.check(body, changed); err != nil {
		return listed{}, err
	}
	if len(body) < len(text) {
		changed = append(slices.Clone(bom), changed...)
	}
	found.text = changed
	return found, nil
}

// edit is one change of a text.
type edit struct {
	lines []string // with their ends
	keys  []string
	item  string
}

// root returns the mapping that the file holds.
func (e *edit) root(text []byte) (ast.Node, error) {
	// The tree counts lines; a foreign line end is one of them.
	file, err := parser.ParseBytes(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), 0)
	if err != nil {
		return nil, fmt.Errorf("it is not well-formed YAML; `supervisor validate` shows where: %w", errUnclear)
	}
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil {
			bodies = append(bodies, d.Body)
		}
	}
	if len(bodies) != 1 || entriesOf(bodies[0]) == nil {
		return nil, errUnclear
	}
	return bodies[0], nil
}

func entriesOf(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// run walks down to the list and writes the item.
func (e *edit) run(node ast.Node) (listed, error) {
	for depth, key := range e.keys {
		entries := entriesOf(node)
		i := slices.IndexFunc(entries, func(m *ast.MappingValueNode) bool { return m.Key.GetToken().Value == key })
		if i < 0 {
			return e.newBlock(node, depth)
		}
		entry := entries[i]
		node = entry.Value
		if a, ok := node.(*ast.AnchorNode); ok {
			node = a.Value
		}
		if _, null := node.(*ast.NullNode); null {
			return e.fillBlock(entry, depth+1)
		}
	}
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return listed{}, errUnclear
	}
	for _, v := range list.Values {
		if l, done, err := e.same(v); done {
			return l, err
		}
	}
	if list.IsFlowStyle {
		return e.inFlow(list.End.Position.Line, list.End.Position.Column, scalar(e.item))
	}
	return e.behind(list)
}

// same tells whether v is the item already.
func (e *edit) same(v ast.Node) (l listed, done bool, err error) {
	line := v.GetToken().Position.Line
	if s, ok := v.(*ast.StringNode); ok && s.Value == e.item {
		return listed{line: line, already: true}, true, nil
	}
	for _, m := range entriesOf(v) {
		if s, ok := m.Value.(*ast.StringNode); ok && m.Key.GetToken().Value == "id" && s.Value == e.item {
			return listed{}, true, &ownWordsError{line: m.Key.GetToken().Position.Line}
		}
	}
	return listed{}, false, nil
}

// ownWordsError says that the list holds the item's whole block.
type ownWordsError struct{ line int }

// Error tells the line.
func (e *ownWordsError) Error() string { return fmt.Sprintf("line %d has one of that id", e.line) }

// behind writes the item below the last one of a list with dashes.
func (e *edit) behind(list *ast.SequenceNode) (listed, error) {
	dash := list.Start.Position.Column - 1
	last := list.Entries[len(list.Entries)-1].Start.Position.Line // the first line behind it, from 0
	// What is deeper than the dash is the last item's, comments between included.
	end := last
	for i := last; i < len(e.lines); i++ {
		line := strings.TrimRight(e.lines[i], "\r\n")
		trimmed := strings.TrimLeft(line, " ")
		if trimmed == "" || strings.HasPrefix(trimmed, "#") && len(line)-len(trimmed) <= dash {
			continue
		}
		if len(line)-len(trimmed) <= dash {
			break
		}
		end = i + 1
	}
	return e.insert(end, strings.Repeat(" ", dash)+"- "+scalar(e.item))
}

// insert writes lines so that the last of them becomes the item's.
func (e *edit) insert(at int, lines ...string) (listed, error) {
	ending := "\n"
	if len(e.lines) > 0 && strings.HasSuffix(e.lines[0], "\r\n") {
		ending = "\r\n"
	}
	if at > 0 && !strings.HasSuffix(e.lines[at-1], "\n") {
		e.lines[at-1] += ending
	}
	for i := range lines {
		lines[i] += ending
	}
	e.lines = slices.Insert(e.lines, at, lines...)
	return listed{line: at + len(lines)}, nil
}

// block returns the lines of the keys from depth on and of the item.
func (e *edit) block(depth, indent int) []string {
	var lines []string
	for _, key := range e.keys[depth:] {
		lines = append(lines, strings.Repeat(" ", indent)+key+":")
		indent += 2
	}
	return append(lines, strings.Repeat(" ", indent)+"- "+scalar(e.item))
}

// fillBlock writes below a key that has no value.
func (e *edit) fillBlock(entry *ast.MappingValueNode, depth int) (listed, error) {
	key := entry.Key.GetToken().Position
	return e.insert(key.Line, e.block(depth, key.Column+1)...)
}

// newBlock writes keys that are not there: at the end of the file, or as the
// first of their block.
func (e *edit) newBlock(node ast.Node, depth int) (listed, error) {
	if m, ok := node.(*ast.MappingNode); ok && m.IsFlowStyle {
		text := "[" + scalar(e.item) + "]"
		for _, key := range slices.Backward(e.keys[depth:]) {
			if text = scalar(key) + ": " + text; key != e.keys[depth] {
				text = "{" + text + "}"
			}
		}
		return e.inFlow(m.End.Position.Line, m.End.Position.Column, text)
	}
	entries := entriesOf(node)
	if len(entries) == 0 {
		return listed{}, errUnclear
	}
	if depth == 0 {
		return e.insert(len(e.lines), append([]string{""}, e.block(0, 0)...)...)
	}
	first := entries[0].Key.GetToken().Position
	return e.insert(first.Line-1, e.block(depth, first.Column-1)...)
}

// inFlow writes text before the bracket at a place.
func (e *edit) inFlow(line, column int, text string) (listed, error) {
	if line < 1 || line > len(e.lines) {
		return listed{}, errUnclear
	}
	runes := []rune(e.lines[line-1])
	if column < 1 || column > len(runes) || !strings.ContainsRune("]}", runes[column-1]) {
		return listed{}, errUnclear
	}
	before, after := string(runes[:column-1]), string(runes[column-1:])
	head := strings.TrimRight(before, " ")
	gap := before[len(head):]
	switch last, _ := utf8.DecodeLastRuneInString(head); {
	case last == '[' || last == '{':
		gap = "" // an empty one
		text += before[len(head):]
	case last == ',':
		text = " " + text + gap
		gap = ""
	case head == "": // the bracket has a line of its own
		return e.ownLine(line, text)
	default:
		text = ", " + text + gap
		gap = ""
	}
	e.lines[line-1] = head + gap + text + after
	return listed{line: line}, nil
}

// ownLine writes text on the line before a bracket, where the items stand one
// below the other.
func (e *edit) ownLine(line int, text string) (listed, error) {
	at := line - 1
	for at > 0 && strings.TrimSpace(e.lines[at-1]) == "" {
		at--
	}
	if at == 0 {
		return listed{}, errUnclear
	}
	above := strings.TrimRight(e.lines[at-1], " \r\n")
	if strings.Contains(above, "#") {
		return listed{}, errUnclear // where the item ends is not told from here
	}
	indent := above[:len(above)-len(strings.TrimLeft(above, " "))]
	if !strings.HasSuffix(above, ",") && !strings.HasSuffix(above, "[") && !strings.HasSuffix(above, "{") {
		e.lines[at-1] = above + "," + e.lines[at-1][len(above):]
	} else if !strings.HasSuffix(above, ",") {
		indent += "  "
	}
	return e.insert(at, indent+text)
}

// check holds the change against what was wanted.
func (e *edit) check(before, after []byte) error {
	var was, is any
	if yaml.UnmarshalWithOptions(before, &was, yaml.UseOrderedMap()) != nil ||
		yaml.UnmarshalWithOptions(after, &is, yaml.UseOrderedMap()) != nil {
		return errUnclear
	}
	want, ok := with(was, e.keys, e.item)
	if !ok || !sameTree(want, is) {
		return errUnclear
	}
	return nil
}

// with returns the tree v with the item in the list at keys.
func with(v any, keys []string, item string) (any, bool) {
	if len(keys) == 0 {
		switch v := v.(type) {
		case nil:
			return []any{item}, true
		case []any:
			return append(slices.Clone(v), item), true
		}
		return nil, false
	}
	var m yaml.MapSlice
	switch v := v.(type) {
	case nil:
	case yaml.MapSlice:
		m = slices.Clone(v)
	case map[string]any: // the reader gives an empty block so
		if len(v) > 0 {
			return nil, false
		}
	default:
		return nil, false
	}
	i := slices.IndexFunc(m, func(entry yaml.MapItem) bool { return entry.Key == keys[0] })
	var below any
	if i >= 0 {
		below = m[i].Value
	}
	value, ok := with(below, keys[1:], item)
	if i < 0 {
		return append(m, yaml.MapItem{Key: keys[0], Value: value}), ok
	}
	m[i].Value = value
	return m, ok
}

// sameTree compares two trees; the order of keys does not count.
func sameTree(a, b any) bool { return reflect.DeepEqual(unordered(a), unordered(b)) }

func unordered(v any) any {
	switch v := v.(type) {
	case yaml.MapSlice:
		m := make(map[any]any, len(v))
		for _, entry := range v {
			m[entry.Key] = unordered(entry.Value)
		}
		return m
	case map[string]any:
		m := make(map[any]any, len(v))
		for key, value := range v {
			m[key] = unordered(value)
		}
		return m
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = unordered(v[i])
		}
		return out
	}
	return v
}

// plainScalar is text that YAML reads as it is written, but for the words and
// numbers that it takes for something else.
var plainScalar = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ,.()'/_-]*$`)

// scalar writes a text so that YAML reads it as one.
func scalar(s string) string {
	var back any
	if plainScalar.MatchString(s) && !strings.HasSuffix(s, " ") && yaml.Unmarshal([]byte("- "+s), &back) == nil {
		if list, ok := back.([]any); ok && len(list) == 1 && list[0] == s {
			return s
		}
	}
	quoted, err := json.Marshal(s)
	if err != nil { // text always has a form in JSON
		return `""`
	}
	return string(quoted)
}
