package manifest

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"
)

// set stores v when there is one.
func set[T any](dst, v *T) {
	if v != nil {
		*dst = *v
	}
}

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
	}
	return ""
}

func (o *object) text(key string) *string {
	v := o.take(key)
	if v == nil {
		return nil
	}
	if v.kind != kindText {
		o.d.typeFault(v, o.key(key), kindText)
		return nil
	}
	return &v.text
}

// word reads a text that is written out, without placeholders.
func (o *object) word(key string) *string {
	s := o.text(key)
	if s != nil && HasPlaceholder(*s) {
		o.d.fault(o.n.get(key), o.key(key), RulePlaceholderType, "takes no placeholder; write the value out")
		return nil
	}
	return s
}

func (o *object) boolean(key string) *bool {
	v := o.take(key)
	if v == nil {
		return nil
	}
	b, ok := v.value.(bool)
	if !ok {
		o.d.typeFault(v, o.key(key), kindBool)
		return nil
	}
	return &b
}

func (o *object) integer(key string, least, most int) *int {
	v := o.take(key)
	if v == nil {
		return nil
	}
	i, ok := v.value.(int64)
	if !ok {
		o.d.typeFault(v, o.key(key), kindInt)
		return nil
	}
	if i < int64(least) || i > int64(most) {
		o.d.fault(v, o.key(key), RuleRange, "is %s; it goes from %d to %d", v.text, least, most)
		return nil
	}
	n := int(i)
	return &n
}

func (o *object) float(key string, least, most float64) *float64 {
	v := o.take(key)
	if v == nil {
		return nil
	}
	var f float64
	switch x := v.value.(type) {
	case int64:
		f = float64(x)
	case float64:
		f = x
	default:
		o.d.typeFault(v, o.key(key), kindFloat)
		return nil
	}
	if !(f >= least && f <= most) { // so that NaN is outside
		o.d.fault(v, o.key(key), RuleRange, "is %s; it goes from %g to %g", v.text, least, most)
		return nil
	}
	return &f
}

// duration reads a duration, or a bare number of seconds, of at least least.
func (o *object) duration(key string, least time.Duration) *time.Duration {
	v := o.take(key)
	if v == nil {
		return nil
	}
	if v.kind == kindText && HasPlaceholder(v.text) || v.kind == kindBool || v.kind > kindText {
		o.d.typeFault(v, o.key(key), kindFloat)
		return nil
	}
	length, err := ParseDuration(v.text)
	if err != nil {
		o.d.fault(v, o.key(key), RuleDuration, "%q is no duration; write it like 500ms, 90s, 15m, 2h or a number of seconds", shown(v, o.key(key)))
		return nil
	}
	if length < least {
		o.d.fault(v, o.key(key), RuleRange, "is %s; it is at least %s", v.text, least)
		return nil
	}
	return &length
}

// enum reads one of words; a names what they are, with its article.
func (o *object) enum(key, a string, words ...string) *string {
	s := o.word(key)
	if s == nil || slices.Contains(words, *s) {
		return s
	}
	v := o.n.get(key)
	o.d.fault(v, o.key(key), RuleEnum, "%q is not %s (one of %s)", shown(v, o.key(key)), a, strings.Join(words, ", "))
	o.d.faults[len(o.d.faults)-1].Suggestion = nearest(strings.ToLower(*s), words)
	if slices.Contains(words, strings.ToLower(*s)) {
		o.d.faults[len(o.d.faults)-1].Suggestion = strings.ToLower(*s)
	}
	return nil
}

// texts reads a list of texts.
func (o *object) texts(key string) []string {
	v := o.take(key)
	if v == nil {
		return nil
	}
	if v.kind != kindList {
		o.d.typeFault(v, o.key(key), kindList)
		return nil
	}
	out := make([]string, 0, len(v.items))
	for i, item := range v.items {
		if item.kind != kindText {
			o.d.typeFault(item, fmt.Sprintf("%s[%d]", o.key(key), i), kindText)
			continue
		}
		out = append(out, item.text)
	}
	return out
}

// textMap reads a block of texts and hands each to check first.
func (o *object) textMap(key string, check func(name string, v *node, path string) bool) map[string]string {
	b := o.block(key)
	if b.n == nil {
		return map[string]string{}
	}
	out := make(map[string]string, len(b.n.keys))
	for _, e := range b.n.keys {
		if s := b.text(e.key); s != nil && check(e.key, e.value, b.key(e.key)) {
			out[e.key] = *s
		}
	}
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
		d.warn(v, key, RuleSecretLiteral, "a key stands here in plain text; write ${{ secrets.NAME }} and store the key as a secret")
	}
}

// unlimited is the upper bound of counts that have none of their own.
const unlimited = math.MaxInt32
