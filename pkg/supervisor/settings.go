package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/supervisor/limits"
)

// maxConfigBytes bounds config.yaml.
const maxConfigBytes = 1 << 20

// unused is a documented key without effect in this release: any value is
// taken, and a warning says so.
type unused struct{}

// size is a number of bytes: an integer, or a number with K, M or G (powers of
// 1024; KB, KiB and so on mean the same).
type size int64

// cores is a number of processors, such as 1.5 or 500m.
type cores float64

// address is a URL that may hold a token, so only its host is shown.
type address string

// String returns the address without path, query and user.
func (a address) String() string {
	u, err := url.Parse(string(a))
	if a == "" || err != nil || u.Host == "" {
		return strings.Repeat("*", min(3, len(a)))
	}
	return u.Scheme + "://" + u.Host + "/***"
}

// settings decodes one file into a Config by its conf tags. It goes on after a
// fault, so that all of them are told at once.
type settings struct {
	file     string
	at       map[string]place // of each key that was set
	faults   []settingsNote
	warnings []settingsNote
}

// place is a position in the file, both parts from 1; 0 when there is none.
type place struct{ line, col int }

type settingsNote struct {
	place
	text string
}

// decode fills cfg from the text of a file and collects what is wrong; it
// returns an error only for a text that is no YAML.
func (s *settings) decode(text []byte, cfg *Config) error {
	if len(text) > maxConfigBytes {
		return fault.Errorf(fault.Invalid, "ConfigError", "%s: the file is larger than %d bytes", s.file, maxConfigBytes)
	}
	f, err := parse(text)
	if err != nil {
		return fault.Errorf(fault.Invalid, "ConfigError", "%s:%w", s.file, err)
	}
	docs := slices.DeleteFunc(slices.Clone(f.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(docs) > 1 {
		return fault.Errorf(fault.Invalid, "ConfigError", "%s: the file holds %d documents, want one", s.file, len(docs))
	}
	if len(docs) == 1 {
		s.block(docs[0].Body, "", reflect.ValueOf(cfg).Elem())
	}
	return nil
}

// result returns all faults as one error, fault.Invalid "ConfigError" with one
// line per fault, each "file:line:col: key: text".
func (s *settings) result() error {
	if len(s.faults) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "ConfigError", strings.Join(s.lines(s.faults), "\n"))
}

// parse turns a panic of the parser into an error: the file may be anything.
// The parser's own text of an error would quote the lines around it, secrets
// included.
func parse(text []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("1:1: not well-formed YAML")
		}
	}()
	f, err = parser.ParseBytes(text, 0)
	var at interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &at) {
		p := at.GetToken().Position
		return nil, fmt.Errorf("%d:%d: not well-formed YAML: %s", p.Line, p.Column, at.GetMessage())
	}
	return f, err
}

func (s *settings) lines(notes []settingsNote) []string {
	slices.SortStableFunc(notes, func(a, b settingsNote) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.col, b.col))
	})
	var out []string
	for _, n := range notes {
		where := s.file
		if n.line > 0 {
			where = fmt.Sprintf("%s:%d:%d", s.file, n.line, n.col)
		}
		out = append(out, where+": "+n.text)
	}
	return out
}

func note(n ast.Node, format string, args ...any) settingsNote {
	return settingsNote{place: placeOf(n), text: fmt.Sprintf(format, args...)}
}

func placeOf(n ast.Node) place {
	p := n.GetToken().Position
	return place{line: p.Line, col: p.Column}
}

func (s *settings) fault(n ast.Node, key, format string, args ...any) {
	s.faults = append(s.faults, note(n, "%s: %s", key, fmt.Sprintf(format, args...)))
}

// block decodes a mapping into the struct dst.
func (s *settings) block(n ast.Node, path string, dst reflect.Value) {
	fields := confFields(dst.Type())
	for _, e := range s.entries(n, path) {
		key := e.Key.GetToken().Value
		full := strings.TrimPrefix(path+"."+key, ".")
		i, known := fields[key]
		if !known {
			s.unknown(e.Key, full, key, fields)
			continue
		}
		if _, null := e.Value.(*ast.NullNode); null {
			continue // "key:" keeps the default
		}
		s.at[full] = placeOf(e.Value)
		s.value(e.Key, e.Value, full, dst.Type().Field(i), dst.Field(i))
	}
}

// entries returns the members of a mapping.
func (s *settings) entries(n ast.Node, path string) []*ast.MappingValueNode {
	switch n := n.(type) { // not the MapNode interface: aliases satisfy it and have no range
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	s.fault(n, cmp.Or(path, "the file"), "want a block of keys")
	return nil
}

// table decodes a mapping whose keys are names: dst is a map from string.
func (s *settings) table(n ast.Node, path string, field reflect.StructField, dst reflect.Value) {
	dst.Set(reflect.MakeMap(dst.Type()))
	for _, e := range s.entries(n, path) {
		name := e.Key.GetToken().Value
		full := path + "." + name
		item := reflect.New(dst.Type().Elem()).Elem()
		s.at[full] = placeOf(e.Key)
		if _, null := e.Value.(*ast.NullNode); !null {
			s.value(e.Key, e.Value, full, field, item)
		}
		dst.SetMapIndex(reflect.ValueOf(name), item)
	}
}

// confFields maps the keys of a struct to its field numbers.
func confFields(t reflect.Type) map[string]int {
	fields := map[string]int{}
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("conf"); key != "" && key != "-" {
			fields[key] = i
		}
	}
	return fields
}

func (s *settings) unknown(n ast.Node, full, key string, fields map[string]int) {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	if near := manifest.Nearest(key, names); near != "" {
		s.fault(n, full, "unknown key; did you mean %q?", near)
		return
	}
	s.fault(n, full, "unknown key; here it may be one of %s", strings.Join(names, ", "))
}

// value decodes n into one field.
func (s *settings) value(key, n ast.Node, full string, field reflect.StructField, dst reflect.Value) {
	switch dst.Interface().(type) {
	case unused:
		s.warnings = append(s.warnings, note(key, "%s has no effect in this release", full))
		return
	case time.Duration:
		s.put(n, full, dst, parseDuration(field.Tag.Get("unit")))
		return
	case size:
		s.put(n, full, dst, parseSize)
		return
	case cores:
		s.put(n, full, dst, func(text string) (any, error) { return limits.ParseCPU(text) })
		return
	case money:
		s.put(n, full, dst, parseMoney)
		return
	case share:
		s.put(n, full, dst, parseShare)
		return
	case netip.Prefix:
		s.put(n, full, dst, parsePrefix)
		return
	case time.Time:
		s.put(n, full, dst, parseTime)
		return
	case *limits.UserRange:
		s.put(n, full, dst, func(text string) (any, error) { return limits.ParseUserRange(text) })
		return
	}
	switch dst.Kind() {
	case reflect.Struct:
		s.block(n, full, dst)
	case reflect.Slice:
		s.list(key, n, full, field, dst)
	case reflect.Map:
		s.table(n, full, field, dst)
	case reflect.Pointer:
		dst.Set(reflect.New(dst.Type().Elem()))
		s.value(key, n, full, field, dst.Elem())
	case reflect.Bool:
		s.put(n, full, dst, func(text string) (any, error) {
			if text != "true" && text != "false" {
				return nil, fmt.Errorf("want true or false, not %q", text)
			}
			return text == "true", nil
		})
	case reflect.Int:
		s.put(n, full, dst, func(text string) (any, error) {
			i, err := strconv.Atoi(text)
			if err != nil || i < 0 {
				return nil, fmt.Errorf("want a whole number of 0 or more, not %q", text)
			}
			return i, nil
		})
	default:
		s.put(n, full, dst, func(text string) (any, error) { return text, nil })
	}
}

func (s *settings) list(key, n ast.Node, full string, field reflect.StructField, dst reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		s.fault(n, full, "want a list")
		return
	}
	for _, v := range seq.Values {
		item := reflect.New(dst.Type().Elem()).Elem()
		s.value(key, v, fmt.Sprintf("%s[%d]", full, dst.Len()), field, item)
		dst.Set(reflect.Append(dst, item))
	}
}

// put converts the text of a scalar and stores it. The message of a
// conversion never holds the text of a key or secret: those are plain strings,
// whose conversion cannot fail.
func (s *settings) put(n ast.Node, full string, dst reflect.Value, convert func(string) (any, error)) {
	text, ok := scalarText(n)
	if !ok {
		s.fault(n, full, "want a single value")
		return
	}
	v, err := convert(text)
	if err != nil {
		s.fault(n, full, "%s", err)
		return
	}
	dst.Set(reflect.ValueOf(v).Convert(dst.Type()))
}

func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// parseDuration reads an integer in unit ("ms", else seconds) or a text such
// as 30s, 500ms, 2h. "never" is 0.
func parseDuration(unit string) func(string) (any, error) {
	return func(text string) (any, error) {
		if text == "never" {
			return time.Duration(0), nil
		}
		if _, err := strconv.ParseUint(text, 10, 63); err == nil && unit == "ms" {
			text += "ms"
		}
		d, err := manifest.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("%w, not %q", err, text)
		}
		return d, nil
	}
}

func parseSize(text string) (any, error) {
	number := strings.TrimRight(text, "KMGiB")
	factor, ok := map[string]int64{
		"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30,
	}[strings.TrimSuffix(strings.TrimSuffix(text[len(number):], "B"), "i")]
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || n <= 0 || n > (1<<50)/factor {
		return nil, fmt.Errorf("want a number of bytes such as 1048576, 10M or 1GiB, not %q", text)
	}
	return size(n * factor), nil
}

func parsePrefix(text string) (any, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, fmt.Errorf("want an address range such as 10.0.0.0/8, not %q", text)
	}
	return p.Masked(), nil
}

func parseTime(text string) (any, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("want a time such as 2026-01-02T15:04:05Z, not %q", text)
	}
	return at.UTC(), nil
}
