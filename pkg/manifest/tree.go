package manifest

import (
	"fmt"
	"math"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// kind is the type of a value in a file.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindText
	kindMap
	kindList
)

var kindNames = [...]string{
	kindNull: "nothing", kindBool: "true or false", kindInt: "a whole number", kindFloat: "a number",
	kindText: "text", kindMap: "a block of keys", kindList: "a list",
}

func (k kind) String() string { return kindNames[k] }

// node is a value of a file with its place. Aliases share nodes, so a tree of
// nodes may be a graph; it never has a circle.
type node struct {
	kind  kind
	file  string
	at    place
	text  string // a scalar as written, unquoted
	value any    // bool, int64, float64 or string; nil otherwise
	keys  []entry
	items []*node
	// size and height count this value with all below it, aliases expanded; a
	// long text counts as several values.
	size, height int
	// broken marks a value that was reported already and stands for nothing.
	broken bool
	// escaped marks a text whose places in the file can't be told from it.
	escaped bool
}

// entry is one key of a block.
type entry struct {
	key   string
	at    place
	value *node
}

// own is what the value itself counts for, without those below it: an alias of
// a long text costs whoever writes the tree out as much as many short values.
func (n *node) own() int { return 1 + len(n.text)/textPerNode }

// get returns the value of key, or nil.
func (n *node) get(key string) *node {
	for i := range n.keys {
		if n.keys[i].key == key {
			return n.keys[i].value
		}
	}
	return nil
}

// plain returns the value as JSON would hold it. Numbers that JSON can't hold
// stay text.
func (n *node) plain() any {
	if n.kind == kindMap {
		m := make(map[string]any, len(n.keys))
		for _, e := range n.keys {
			m[e.key] = e.value.plain()
		}
		return m
	}
	if n.kind == kindList {
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = item.plain()
		}
		return l
	}
	if f, ok := n.value.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
		return n.text
	}
	return n.value
}

// treeBuilder turns the syntax tree of one file into nodes. It collects faults
// and goes on.
type treeBuilder struct {
	src     *source
	anchors map[string]*node
	faults  []Fault
	refs    []Ref
	nodes   int // built so far, aliases expanded
	full    bool
	cursor  cursor
	// variables tells what is wrong with a placeholder that is none of a
	// configuration file, "" when nothing; nil knows no others.
	variables func(inner string) string
}

func (b *treeBuilder) fault(p place, key string, rule RuleID, format string, args ...any) {
	f := b.src.fault(p, rule, fmt.Sprintf(format, args...))
	f.Key = key
	b.faults = append(b.faults, *f)
}

// build converts n, which stands at the dotted path key and at depth below the
// root. It never returns nil.
func (b *treeBuilder) build(n ast.Node, key string, depth int) *node {
	out := &node{file: b.src.name, at: startOf(n), size: 1, height: 1}
	if depth > maxDepth {
		b.fault(out.at, key, RuleYAMLDepth, "values nest more than 64 deep")
		return out
	}
	if !b.count(out, 1) {
		return out
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		b.mapping(out, n.Values, key, depth)
	case *ast.MappingValueNode:
		b.mapping(out, []*ast.MappingValueNode{n}, key, depth)
	case *ast.SequenceNode:
		out.kind = kindList
		for i, v := range n.Values {
			b.adopt(out, b.build(v, fmt.Sprintf("%s[%d]", key, i), depth+1))
		}
	case *ast.AnchorNode:
		return b.anchor(n, key, depth)
	case *ast.AliasNode:
		return b.alias(n, out, key, depth)
	case *ast.TagNode:
		return b.tag(n, out, key, depth)
	default:
		b.scalar(n, out, key)
	}
	return out
}

// count adds more values to the file's total and reports, once, when there are
// too many.
func (b *treeBuilder) count(n *node, more int) bool {
	b.nodes += more
	if b.nodes > maxNodes && !b.full {
		b.full = true
		b.fault(n.at, "", RuleYAMLSize, "the file has more than %d values, or as much text, with its aliases expanded", maxNodes)
	}
	return !b.full
}

// adopt makes v an item of the list n.
func (b *treeBuilder) adopt(n, v *node) {
	n.items = append(n.items, v)
	n.size += v.size
	n.height = max(n.height, v.height+1)
}

func (b *treeBuilder) mapping(out *node, values []*ast.MappingValueNode, key string, depth int) {
	out.kind = kindMap
	first := make(map[string]place, len(values))
	var merges []*node
	for _, mv := range values {
		if mv.Key.IsMergeKey() {
			merges = append(merges, b.build(mv.Value, key+".<<", depth+1))
			continue
		}
		at := startOf(mv.Key)
		name, ok := keyText(mv.Key)
		if !ok {
			b.fault(at, key, RuleYAMLKey, "a key is plain text")
			continue
		}
		if strings.HasPrefix(name, "//") {
			b.fault(at, key, RuleYAMLKey, "// begins no comment; write # instead")
			continue
		}
		value := b.build(mv.Value, join(key, name), depth+1)
		if p, dup := first[name]; dup {
			b.fault(at, join(key, name), RuleYAMLDuplicate, "the key %q stands twice, first at %d:%d; keep one", name, p.line, p.col)
			continue
		}
		first[name] = at
		b.put(out, entry{key: name, at: at, value: value})
	}
	for _, m := range merges {
		b.merge(out, m, key, first)
	}
}

func (b *treeBuilder) put(n *node, e entry) {
	n.keys = append(n.keys, e)
	n.size += e.value.size
	n.height = max(n.height, e.value.height+1)
}

// merge adds the keys of from, a block or a list of blocks, that out lacks;
// has are the keys of out.
func (b *treeBuilder) merge(out, from *node, key string, has map[string]place) {
	switch from.kind {
	case kindMap:
		for _, e := range from.keys {
			if _, ok := has[e.key]; !ok && b.count(out, e.value.size) {
				has[e.key] = e.at
				b.put(out, e)
			}
		}
	case kindList:
		for _, item := range from.items {
			if item.kind != kindMap {
				b.fault(item.at, key, RuleYAMLKey, "<< merges blocks of keys, not %s", item.kind)
				continue
			}
			b.merge(out, item, key, has)
		}
	default:
		b.fault(from.at, key, RuleYAMLKey, "<< merges a block of keys, not %s", from.kind)
	}
}

func (b *treeBuilder) anchor(n *ast.AnchorNode, key string, depth int) *node {
	out := b.build(n.Value, key, depth+1)
	if n.Name != nil {
		b.anchors[n.Name.GetToken().Value] = out
	}
	return out
}

// alias returns the anchored node itself; only its count and depth are those
// of a copy.
func (b *treeBuilder) alias(n *ast.AliasNode, out *node, key string, depth int) *node {
	name := ""
	if n.Value != nil {
		name = n.Value.GetToken().Value
	}
	target, ok := b.anchors[name]
	switch {
	case !ok:
		b.fault(out.at, key, RuleYAMLAlias, "the alias *%s has no anchor &%s before it", name, name)
	case depth+target.height > maxDepth:
		b.fault(out.at, key, RuleYAMLDepth, "values nest more than 64 deep")
	case b.count(out, target.size):
		return target
	}
	return out
}

func (b *treeBuilder) tag(n *ast.TagNode, out *node, key string, depth int) *node {
	if n.Start.Value != string(token.StringTag) {
		b.fault(out.at, key, RuleYAMLTag, "the tag %s is not supported; remove it, or put the text in quotes", n.Start.Value)
		out.broken = true
		return out
	}
	value := b.build(n.Value, key, depth+1)
	if value.kind != kindMap && value.kind != kindList {
		value.kind, value.value = kindText, value.text
	}
	return value
}

func (b *treeBuilder) scalar(n ast.Node, out *node, key string) {
	switch n := n.(type) {
	case *ast.StringNode:
		out.kind, out.text, out.value = kindText, n.Value, n.Value
		out.escaped = n.Token.Type == token.DoubleQuoteType && strings.Contains(n.Token.Origin, `\`)
	case *ast.LiteralNode:
		if n.Value != nil {
			out.text = n.Value.Value
		}
		out.kind, out.value = kindText, out.text
	case *ast.BoolNode:
		out.kind, out.text, out.value = kindBool, n.Token.Value, n.Value
	case *ast.IntegerNode:
		out.text = n.Token.Value
		out.kind, out.value = number(n.Value)
	case *ast.FloatNode:
		out.kind, out.text, out.value = kindFloat, n.Token.Value, n.Value
	case *ast.InfinityNode:
		out.kind, out.text, out.value = kindFloat, n.Token.Value, n.Value
	case *ast.NanNode:
		out.kind, out.text, out.value = kindFloat, n.Token.Value, math.NaN()
	case *ast.NullNode, nil:
	default:
		b.fault(out.at, key, RuleYAMLSyntax, "this kind of YAML is not supported here")
	}
	if out.kind == kindText {
		out.size = out.own()
		b.count(out, out.size-1)
		b.placeholders(out, key)
	}
}

// number returns an integer of the parser as int64, or as float64 when it is
// too large.
func number(v any) (kind, any) {
	switch v := v.(type) {
	case int64:
		return kindInt, v
	case uint64:
		if v <= math.MaxInt64 {
			return kindInt, int64(v)
		}
		return kindFloat, float64(v)
	}
	return kindFloat, math.Inf(1)
}

// keyText returns the text of a key that is a plain scalar.
func keyText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
		return n.GetToken().Value, true
	case *ast.MappingKeyNode:
		return keyText(n.Value)
	}
	return "", false
}

// startOf returns where the text of n begins.
func startOf(n ast.Node) place {
	switch n := n.(type) {
	case nil:
		return place{1, 1}
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return startOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return startOf(n.Key)
	}
	return placeOf(n.GetToken())
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
