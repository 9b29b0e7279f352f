package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// decoder turns nodes into typed values. It collects what is wrong and goes
// on, so that one pass finds everything.
type decoder struct {
	faults   []Fault
	warnings []Warning
	literals []string // secrets that are written out
	guesses  int      // asked for so far
	llm      *LLM     // set once the llm block is read; model ids are checked against it
}

// sensitive matches the keys whose values are never shown.
var sensitive = lazily(`(?i)(key|secret|token|password|credential|auth|connection_string|salt)`)

// shown returns a value's text for a message, "***" when it may be a secret.
func shown(n *node, key string) string {
	if n == nil || n.kind == kindMap || n.kind == kindList || n.kind == kindNull {
		return ""
	}
	if strings.Contains(n.text, "@") || !openly(key) && isSensitive(key) {
		return "***"
	}
	if address, query, ok := strings.Cut(n.text, "?"); ok && strings.Contains(query, "=") {
		return shorten(address) + "?…" // a query may hold a token
	}
	return shorten(n.text)
}

// openly tells the keys beside a secret whose values are words.
func openly(key string) bool {
	last := key[strings.LastIndexByte(key, '.')+1:]
	last, _, _ = strings.Cut(last, "[")
	return last != key && (last == "type" || last == "mode" || last == "allowed_algorithms")
}

// bad returns a fault at n, whose dotted path is key.
func bad(n *node, key string, rule RuleID, format string, args ...any) Fault {
	return Fault{
		File: n.file, Line: n.at.line, Col: n.at.col, Key: key, Text: shown(n, key),
		Rule: rule, Message: fmt.Sprintf(format, args...),
	}
}

func (d *decoder) fault(n *node, key string, rule RuleID, format string, args ...any) {
	d.faults = append(d.faults, bad(n, key, rule, format, args...))
}

func (d *decoder) warn(n *node, key string, rule RuleID, format string, args ...any) {
	d.warnings = append(d.warnings, Warning(bad(n, key, rule, format, args...)))
}

// object reads the keys of one block and knows at the end which were unknown.
// Its readers find nothing for a key that is absent or wrong, so that the
// default stays.
//
// The same calls also write the JSON Schema of a block: with schema set there
// is no file, each reader notes what it takes and finds nothing.
type object struct {
	d      *decoder
	n      *node // nil when the block is absent or no block
	path   string
	used   []string
	schema *jsonschema.Schema
}

// absent tells that there is nothing to read, neither a block nor its schema.
func (o *object) absent() bool { return o.n == nil && o.schema == nil }

func (d *decoder) object(n *node, path string) *object {
	if n != nil && n.kind != kindMap && n.kind != kindNull {
		d.typeFault(n, path, kindMap)
		n = nil
	}
	if n != nil && n.kind == kindNull {
		n = nil
	}
	return &object{d: d, n: n, path: path}
}

// take returns the value of key, nil when it is absent or empty.
func (o *object) take(key string) *node {
	o.used = append(o.used, key)
	if o.n == nil {
		return nil
	}
	if v := o.n.get(key); v != nil && v.kind != kindNull {
		return v
	}
	return nil
}

// block opens the block below key.
func (o *object) block(key string) *object {
	b := o.d.object(o.take(key), o.key(key))
	b.schema = o.note(key, "object")
	return b
}

func (o *object) key(key string) string { return join(o.path, key) }

// require reports key when it has no value; example shows what is right.
func (o *object) require(key, example string) {
	if o.schema != nil {
		o.schema.Required = append(o.schema.Required, key)
	}
	if o.n == nil {
		return
	}
	v := o.n.get(key)
	if v == nil {
		v = o.n
	} else if v.broken || v.kind != kindNull && strings.TrimSpace(v.text) != "" || len(v.keys)+len(v.items) > 0 {
		return
	}
	f := bad(v, o.key(key), RuleRequired, "is required; write %s", example)
	f.Text = ""
	o.d.faults = append(o.d.faults, f)
}

// removed reports a key that older releases had.
func (o *object) removed(key, instead string) {
	if s := o.note(key); s != nil {
		s.Type, s.Description = "null", "Removed; "+instead+"."
	}
	if v := o.take(key); v != nil {
		at := o.entry(key)
		o.d.fault(&node{file: o.n.file, at: at}, o.key(key), RuleRemoved, "was removed; %s", instead)
	}
}

// inert reports the keys of a block of later that nothing acts upon yet.
func (o *object) inert(block string) {
	for _, key := range later()[block] {
		if s := o.note(key); s != nil {
			s.Description = "No effect in this release."
		}
		if o.take(key) != nil {
			o.warnKey(key, RuleNoEffect, "%q has no effect in this release", key)
		}
	}
}

// free accepts keys that are for people and outside tools.
func (o *object) free(keys ...string) {
	for _, key := range keys {
		o.note(key)
	}
	o.used = append(o.used, keys...)
}

// warnKey warns at the key itself rather than at its value.
func (o *object) warnKey(key string, rule RuleID, format string, args ...any) {
	if o.n == nil {
		return
	}
	o.d.warn(&node{file: o.n.file, at: o.entry(key)}, o.key(key), rule, format, args...)
	o.d.warnings[len(o.d.warnings)-1].Text = shorten(key)
}

// entry returns where key stands.
func (o *object) entry(key string) place {
	for _, e := range o.n.keys {
		if e.key == key {
			return e.at
		}
	}
	return o.n.at
}

// end warns about the keys that nobody asked for.
func (o *object) end() {
	o.close()
	o.unknown(false)
}

// endStrict refuses the keys that nobody asked for: in these blocks a slip
// would turn off what the author counts on.
func (o *object) endStrict() {
	o.close()
	if o.n == nil {
		return
	}
	for _, e := range o.n.keys {
		if slices.Contains(o.used, e.key) {
			continue
		}
		f := bad(&node{file: o.n.file, at: e.at}, o.key(e.key), RuleUnknownStrict, "the key %q is unknown here (one of %s)", shorten(e.key), strings.Join(o.used, ", "))
		f.Text = shorten(e.key)
		if near := o.d.guess(e.key, o.used); near != "" {
			f.Suggestion = o.key(near)
		}
		o.d.faults = append(o.d.faults, f)
	}
}

// endOpen warns only about keys that look like a slip; others are metadata.
func (o *object) endOpen() { o.unknown(true) }

func (o *object) unknown(open bool) {
	if o.n == nil {
		return
	}
	for _, e := range o.n.keys {
		if slices.Contains(o.used, e.key) {
			continue
		}
		ask := o.d.guess
		if open { // an own key may well hold one of ours
			ask = nearest
		}
		near := ask(e.key, o.used)
		if open && near == "" {
			continue
		}
		o.warnKey(e.key, RuleUnknownKey, "the key %q is unknown and has no effect", shorten(e.key))
		if near != "" {
			o.d.warnings[len(o.d.warnings)-1].Suggestion = o.key(near)
		}
	}
}

// alias reports a value that is set under two names and returns the name in
// use.
func (o *object) alias(name, other string) string {
	o.sameAs(name, other)
	a, b := o.take(name), o.take(other)
	if a != nil && b != nil {
		o.d.fault(b, o.key(other), RuleConflict, "is another name of %q, which is set too; keep one", name)
	}
	if a == nil && b != nil {
		return other
	}
	return name
}
