package manifest

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// The shapes of texts, for schemas.
const (
	durationPattern = `^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ms|s|m|h)?$`
	noPlaceholder   = `^([^$]|\$+[^{$]|\$+\{[^{])*(\$+\{?)?$`
	urlPattern      = `^[hH][tT][tT][pP][sS]?://[^/?#]|\$\{\{`
)

// typeFault reports a value of the wrong type and says how to write the right
// one.
func (d *decoder) typeFault(n *node, key string, want kind) {
	switch {
	case n.kind == kindText && HasPlaceholder(n.text) && want < kindText:
		d.fault(n, key, RulePlaceholderType, "takes %s; placeholders work in text values only", want)
	case want == kindInt && n.kind == kindFloat:
		d.fault(n, key, RuleType, "takes a whole number")
	case want == kindText && n.kind < kindText:
		d.fault(n, key, RuleType, "takes text, not %s; put it in quotes", n.kind)
	case n.kind == kindText && want == kindList:
		near, hint := listOf(n, key)
		d.fault(n, key, RuleType, "takes a list, not text%s", hint)
		d.faults[len(d.faults)-1].Suggestion = near
	case n.kind == kindText && want < kindText:
		d.fault(n, key, RuleType, "takes %s, not text", want)
		d.faults[len(d.faults)-1].Suggestion = unquoted(n, want)
	default:
		d.fault(n, key, RuleType, "takes %s, not %s", want, n.kind)
	}
}

// unquoted guesses what a text was meant to be.
func unquoted(n *node, want kind) string {
	switch word := strings.ToLower(strings.TrimSpace(n.text)); {
	case want == kindBool && slices.Contains([]string{"true", "yes", "on", "y"}, word):
		return "true"
	case want == kindBool && slices.Contains([]string{"false", "no", "off", "n"}, word):
		return "false"
	case want != kindBool && word != "" && len(word) <= 18 && strings.Trim(word, "0123456789.") == "":
		return word
	case want == kindFloat && strings.Count(word, ",") == 1 && len(word) > 2 && len(word) <= 18 && strings.Trim(word, "0123456789,") == "":
		return strings.Trim(strings.ReplaceAll(word, ",", "."), ".")
	}
	return ""
}

func (o *object) text(key string) read[string] {
	r := read[string]{schema: o.note(key, "string")}
	v := o.take(key)
	if v == nil {
		return r
	}
	if v.kind != kindText {
		o.d.typeFault(v, o.key(key), kindText)
		return r
	}
	r.v = &v.text
	return r
}

// word reads a text that is written out, without placeholders.
func (o *object) word(key string) read[string] {
	r := o.text(key)
	if r.schema != nil {
		r.schema.Pattern = noPlaceholder
	}
	if r.v != nil && HasPlaceholder(*r.v) {
		o.d.fault(o.n.get(key), o.key(key), RulePlaceholderType, "takes no placeholder; write the value out")
		r.v = nil
	}
	return r
}

// secret reads a text that should be a placeholder.
func (o *object) secret(key string) read[string] {
	r := o.text(key)
	o.d.literal(o.take(key), o.key(key))
	return r
}

func (o *object) boolean(key string) read[bool] {
	r := read[bool]{schema: o.note(key, "boolean")}
	v := o.take(key)
	if v == nil {
		return r
	}
	b, ok := v.value.(bool)
	if !ok {
		o.d.typeFault(v, o.key(key), kindBool)
		return r
	}
	r.v = &b
	return r
}

func (o *object) integer(key string, least, most int) read[int] {
	r := read[int]{schema: o.note(key, "integer")}
	bounds(r.schema, float64(least), float64(most))
	v := o.take(key)
	if v == nil {
		return r
	}
	i, ok := v.value.(int64)
	if !ok {
		o.d.typeFault(v, o.key(key), kindInt)
		return r
	}
	if i < int64(least) || i > int64(most) {
		o.d.rangeFault(v, o.key(key), float64(least), float64(most))
		return r
	}
	n := int(i)
	r.v = &n
	return r
}

func (o *object) float(key string, least, most float64) read[float64] {
	r := read[float64]{schema: o.note(key, "number")}
	bounds(r.schema, least, most)
	v := o.take(key)
	if v == nil {
		return r
	}
	f, ok := v.float()
	if !ok {
		o.d.typeFault(v, o.key(key), kindFloat)
		return r
	}
	if !(f >= least && f <= most) { // so that NaN is outside
		o.d.rangeFault(v, o.key(key), least, most)
		return r
	}
	r.v = &f
	return r
}

// float returns the number that n holds.
func (n *node) float() (float64, bool) {
	switch x := n.value.(type) {
	case int64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

func (d *decoder) rangeFault(v *node, key string, least, most float64) {
	if f, _ := v.float(); f < least && most >= unlimited {
		d.fault(v, key, RuleRange, "is %s; it is at least %.16g", v.text, least)
		return
	}
	d.fault(v, key, RuleRange, "is %s; it goes from %.16g to %.16g", v.text, least, most)
}

// bounds notes the range of a number.
func bounds(s *jsonschema.Schema, least, most float64) {
	if s == nil {
		return
	}
	s.Minimum = &least
	if most < unlimited {
		s.Maximum = &most
	}
}

// duration reads a duration, or a bare number of seconds, of at least least.
func (o *object) duration(key string, least time.Duration) read[time.Duration] {
	return o.span(key, time.Second, least)
}

// span reads a duration, or a bare number of units, of at least least.
func (o *object) span(key string, unit, least time.Duration) read[time.Duration] {
	r := read[time.Duration]{schema: o.note(key, "number", "string"), unit: unit}
	if r.schema != nil {
		bounds(r.schema, float64(least)/float64(unit), float64(maxDuration)/float64(unit))
		r.schema.Pattern = durationPattern
	}
	v := o.take(key)
	if v == nil {
		return r
	}
	if v.kind == kindText && HasPlaceholder(v.text) || v.kind == kindBool || v.kind > kindText {
		o.d.typeFault(v, o.key(key), kindFloat)
		return r
	}
	length, err := parseSpan(v.text, unit)
	if err != nil {
		o.d.fault(v, o.key(key), RuleDuration, "%q is no duration; write it like 500ms, 90s, 15m, 2h or a number of %s", shown(v, o.key(key)), unitName(unit))
		o.d.faults[len(o.d.faults)-1].Suggestion = nearDuration(v.text)
		return r
	}
	if length < least {
		if length == 0 && unit > time.Second {
			o.d.fault(v, o.key(key), RuleRange, "is %s; it is above 0", v.text)
		} else {
			o.d.fault(v, o.key(key), RuleRange, "is %s; it is at least %s", v.text, brief(least))
		}
		return r
	}
	r.v = &length
	return r
}

// enum reads one of words; a names what they are, with its article.
func (o *object) enum(key, a string, words ...string) read[string] {
	r := o.word(key)
	if r.schema != nil {
		r.schema.Pattern, r.schema.Enum = "", append(anySlice(words), nil)
	}
	if r.v == nil || slices.Contains(words, *r.v) {
		return r
	}
	o.d.enumFault(o.n.get(key), o.key(key), a, words)
	r.v = nil
	return r
}

func (d *decoder) enumFault(v *node, key, a string, words []string) {
	d.fault(v, key, RuleEnum, "%q is not %s (one of %s)", shown(v, key), a, strings.Join(words, ", "))
	d.faults[len(d.faults)-1].Suggestion = d.guess(v.text, words)
}

func anySlice(words []string) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = w
	}
	return out
}

// texts reads a list of texts.
func (o *object) texts(key string) read[[]string] {
	r := read[[]string]{schema: o.note(key, "array")}
	if r.schema != nil {
		r.schema.Items = &jsonschema.Schema{Type: "string"}
	}
	v := o.take(key)
	if v == nil {
		return r
	}
	if v.kind != kindList {
		o.d.typeFault(v, o.key(key), kindList)
		return r
	}
	out := make([]string, 0, len(v.items))
	for i, item := range v.items {
		if item.kind != kindText {
			o.d.typeFault(item, fmt.Sprintf("%s[%d]", o.key(key), i), kindText)
			continue
		}
		out = append(out, item.text)
	}
	r.v = &out
	return r
}

// enums reads a list of words.
func (o *object) enums(key, a string, words ...string) read[[]string] {
	r := o.texts(key)
	if r.schema != nil {
		r.schema.Items.Enum = anySlice(words)
	}
	if r.v == nil {
		return r
	}
	for i, item := range o.n.get(key).items {
		if item.kind == kindText && !slices.Contains(words, item.text) {
			o.d.enumFault(item, fmt.Sprintf("%s[%d]", o.key(key), i), a, words)
		}
	}
	return r
}

// each hands every key of the block below key to one, whose slot is its value.
// While a schema is made, one is asked once, for what any such value may be.
func (o *object) each(key string, one func(name string, s *slot)) {
	b := o.block(key)
	if b.schema != nil {
		b.schema.AdditionalProperties = &jsonschema.Schema{}
		one("", &slot{d: o.d, path: b.key("*"), schema: b.schema.AdditionalProperties})
		return
	}
	if b.n == nil {
		return
	}
	for _, e := range b.n.keys {
		if e.value.kind != kindNull {
			one(e.key, &slot{d: o.d, n: e.value, path: b.key(e.key)})
		}
	}
}

// textMap reads a block of texts and hands each to check first; nil takes all.
func (o *object) textMap(key string, check func(name string, v *node, path string) bool) map[string]string {
	out := map[string]string{}
	o.each(key, func(name string, s *slot) {
		if v := s.n; s.mustText() && (check == nil || check(name, v, s.path)) {
			out[name] = v.text
		}
	})
	return out
}

// baseURL checks an address unless a placeholder makes it up.
func (d *decoder) baseURL(v *node, key string) bool {
	if HasPlaceholder(v.text) {
		return true
	}
	u, err := url.Parse(v.text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" {
		return true
	}
	d.fault(v, key, RuleURL, "is no base URL; write it like https://host/v1")
	return false
}

// literal warns when a key stands in the file itself.
func (d *decoder) literal(v *node, key string) {
	if v != nil && v.kind == kindText && v.text != "" && !HasPlaceholder(v.text) {
		d.literals = append(d.literals, v.text)
		near := ""
		if strings.HasPrefix(v.text, "$") || strings.HasPrefix(v.text, "{") {
			near = nearPlaceholder(v.text)
		}
		if near != "" {
			d.warn(v, key, RuleSecretLiteral, "this is no placeholder, so the text itself would be the key")
		} else {
			d.warn(v, key, RuleSecretLiteral, "a key stands here in plain text; write ${{ secrets.NAME }} and store the key as a secret")
		}
		d.warnings[len(d.warnings)-1].Suggestion = near
	}
}

// unlimited is the upper bound of counts that have none of their own.
const unlimited = math.MaxInt32
