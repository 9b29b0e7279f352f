package manifest

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// mostCount bounds counts and sizes that may exceed 32 bits; JSON numbers hold
// it exactly.
const mostCount = 1 << 53

// set64 stores a count.
func set64(dst *int64, r read[int]) {
	n := int(*dst)
	set(&n, r)
	*dst = int64(n)
}

// freeBlock reads a block of anything.
func (o *object) freeBlock(key string) read[map[string]any] {
	r := read[map[string]any]{}
	if b := o.block(key); b.n != nil {
		m, _ := b.n.plain().(map[string]any)
		r.v = &m
	}
	return r
}

// url reads an http or https address.
func (o *object) url(key string) read[string] {
	r := o.text(key)
	if r.schema != nil {
		r.schema.Pattern = urlPattern
	}
	if r.v != nil && !o.d.url(o.n.get(key), o.key(key)) {
		r.v = nil
	}
	return r
}

// url checks an http or https address unless a placeholder makes it up.
func (d *decoder) url(v *node, key string) bool {
	if v == nil || v.kind != kindText || HasPlaceholder(v.text) {
		return true
	}
	u, err := url.Parse(v.text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return true
	}
	d.fault(v, key, RuleURL, "is no address; write it like https://host/path")
	if v.text != "" && (err == nil && u.Scheme == "" || strings.HasPrefix(v.text, "localhost:")) && !strings.ContainsAny(v.text, " @?") {
		d.faults[len(d.faults)-1].Suggestion = "https://" + shorten(strings.TrimLeft(v.text, "/"))
	}
	return false
}

// faultAt reports at the value of key, or of other when key is absent; with
// neither it reports at the block.
func (o *object) faultAt(key, other string, rule RuleID, format string, args ...any) {
	if o.n == nil {
		return
	}
	for _, k := range []string{key, other} {
		if v := o.n.get(k); k != "" && v != nil && v.kind != kindNull {
			o.d.fault(v, o.key(k), rule, format, args...)
			return
		}
	}
	o.d.fault(o.n, o.path, rule, format, args...)
}

// fraction reads a number above 0 and at most 1.
func (o *object) fraction(key string) read[float64] {
	r := o.float(key, 0, 1)
	if r.schema != nil {
		zero := 0.0
		r.schema.Minimum, r.schema.ExclusiveMinimum = nil, &zero
	}
	if r.v != nil && *r.v == 0 {
		o.d.fault(o.n.get(key), o.key(key), RuleRange, "is 0; it is above 0 and at most 1")
		r.v = nil
	}
	return r
}

// between reads a duration with an upper bound.
func (o *object) between(key string, least, most time.Duration) read[time.Duration] {
	r := o.duration(key, least)
	if r.schema != nil {
		bounds(r.schema, least.Seconds(), most.Seconds())
	}
	if r.v != nil && *r.v > most {
		o.d.fault(o.n.get(key), o.key(key), RuleRange, "is %s; it is at most %s", shown(o.n.get(key), o.key(key)), brief(most))
		r.v = nil
	}
	return r
}

// spanSlot takes a duration or a bare number of units.
func (d *decoder) spanSlot(s *slot, unit time.Duration, dst *time.Duration) {
	s.number()
	text, ok := s.text("a duration")
	if s.schema != nil {
		bounds(s.schema, 0, float64(maxDuration)/float64(unit))
		s.schema.Pattern = durationPattern
	}
	switch {
	case ok:
	case s.n != nil && (s.n.kind == kindInt || s.n.kind == kindFloat):
		text = s.n.text
	default:
		return
	}
	length, err := parseSpan(text, unit)
	if err != nil {
		d.fault(s.n, s.path, RuleDuration, "%q is no duration; write it like 500ms, 90s, 15m, 2h or a number of %s", shown(s.n, s.path), unitName(unit))
		return
	}
	*dst = length
}

// cadence takes one of words or a period above 0.
func (d *decoder) cadence(s *slot, c *Cadence, words ...string) {
	if s.schema != nil {
		zero := 0.0
		s.schema.ExclusiveMinimum = &zero
		s.schema.Pattern = "^(" + strings.Join(words, "|") + ")$|" + durationPattern
	}
	if s.n != nil && s.n.kind == kindText && !s.met {
		word, _ := s.text(strings.Join(words, ", "))
		if slices.Contains(words, word) {
			*c = Cadence{Word: word}
			return
		}
		every, err := ParseDuration(word)
		if err != nil || every <= 0 {
			d.enumFault(s.n, s.path, "a schedule", append(slices.Clone(words), "a number of seconds above 0"))
			return
		}
		*c = Cadence{Every: every}
		return
	}
	s.text(strings.Join(words, ", "))
	if n, ok := s.number(); ok {
		every, err := ParseDuration(s.n.text)
		if err != nil || n <= 0 || every <= 0 {
			d.fault(s.n, s.path, RuleRange, "is %s; it is above 0, or one of %s", s.n.text, strings.Join(words, ", "))
			return
		}
		*c = Cadence{Every: every}
	}
	s.end()
}

var cronField = lazily(`^(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?(,(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?)*$`)

// schedule reads a cron expression or one of the words with an @.
func (d *decoder) schedule(o *object, key string) read[string] {
	words := []string{"@hourly", "@daily", "@weekly", "@startup"}
	r := o.word(key)
	if r.v == nil || slices.Contains(words, *r.v) {
		return r
	}
	fields := strings.Fields(*r.v)
	ok := len(fields) == 5
	for _, f := range fields {
		ok = ok && cronField().MatchString(f)
	}
	if !ok {
		v := o.n.get(key)
		d.fault(v, o.key(key), RuleCron, "%q is no schedule; write a cron expression like \"0 3 * * *\" or one of %s", shown(v, o.key(key)), strings.Join(words, ", "))
		if word := "@" + strings.ToLower(strings.TrimPrefix(*r.v, "@")); slices.Contains(words, word) {
			d.faults[len(d.faults)-1].Suggestion = word
		} else {
			d.faults[len(d.faults)-1].Suggestion = nearest(word, words)
		}
		r.v = nil
	}
	return r
}

// storeSchemes are the databases that memory can live in.
func storeSchemes() []string { return []string{"postgres", "postgresql", "sqlite", "sqlite3", "file"} }

// connection checks the address of a database; a plain path is SQLite.
func (d *decoder) connection(v *node, key string) {
	if v == nil || v.kind != kindText || HasPlaceholder(v.text) {
		return
	}
	scheme, _, ok := strings.Cut(v.text, ":")
	if !ok || !strings.Contains(v.text, "://") && scheme != "file" && scheme != "sqlite" {
		return
	}
	base, _, _ := strings.Cut(scheme, "+")
	if !slices.Contains(storeSchemes(), base) {
		d.fault(v, key, RuleStore, "%s:// is not supported, use postgres:// or sqlite://", shorten(scheme))
		return
	}
	if u, err := url.Parse(v.text); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			d.warn(v, key, RuleSecretLiteral, "a password stands here in plain text; write ${{ secrets.NAME }} and store the address as a secret")
		}
	}
}

// storeURL checks the address of a shared working memory.
func (d *decoder) storeURL(v *node, key string) {
	if v == nil || v.kind != kindText || HasPlaceholder(v.text) {
		return
	}
	scheme, _, ok := strings.Cut(v.text, "://")
	switch {
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		d.connection(v, key)
	case ok:
		d.fault(v, key, RuleStore, "%s:// is not supported, use postgres://", shorten(scheme))
	default:
		d.fault(v, key, RuleStore, "is no address of a database; write it like postgres://host/name")
	}
}

// patterned notes the shape of a text.
func patterned(s *jsonschema.Schema, pattern string) {
	if s != nil {
		s.Pattern = pattern
	}
}
