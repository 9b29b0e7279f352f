package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
)

// The words of FieldError.Error (reference runtime.md 1.3).
const (
	Missing       = "missing"
	WrongType     = "wrong_type"
	InvalidJSON   = "invalid_json"
	TooShort      = "too_short"
	TooLong       = "too_long"
	InvalidFormat = "invalid_format"
	ExtraField    = "extra_field"
)

// FieldError says what is wrong with one field of a body.
type FieldError struct {
	Field string `json:"field"` // dotted path; "" is the body as a whole
	Msg   string `json:"msg"`
	Type  string `json:"type"`  // what would be right: string, boolean, array, object, integer, number
	Error string `json:"error"` // one of the words above
}

// BodyError reports every field of a body that is wrong. As a fault it is
// Unprocessable with the message "Validation failed: N error(s)" and Data
// validation_errors; a door that wants another status takes Fields.
type BodyError struct{ Fields []FieldError }

// Error returns the message that is served.
func (e *BodyError) Error() string {
	return fmt.Sprintf("Validation failed: %d error(s)", len(e.Fields))
}

// Unwrap returns the error as a fault.
func (e *BodyError) Unwrap() error {
	return fault.New(fault.Unprocessable, "", e.Error()).With("validation_errors", e.Fields)
}

// Detail joins what is wrong into one line, for envelopes without a list.
func (e *BodyError) Detail() string {
	var b strings.Builder
	for i, f := range e.Fields {
		if i > 0 {
			b.WriteString("; ")
		}
		if f.Field != "" {
			b.WriteString(f.Field + ": ")
		}
		b.WriteString(f.Msg)
	}
	return b.String()
}

// Bind reads the JSON body of c's request, at most limit bytes, into dst, a
// pointer to a struct. Fields are found by their json tags, exactly as
// written; the tag `bind:"required"` makes one required, unknown ones are
// ignored, null is the same as absent and no body the same as {}. Errors: those of ReadBody, and
// *BodyError naming every field that is wrong.
func Bind(c echo.Context, limit int64, dst any) error {
	body, err := ReadBody(c, limit)
	if err != nil {
		return err
	}
	defer body.Release()
	return body.Decode(dst)
}

// decodeObject fills dst from in, or returns a *BodyError.
func decodeObject(in []byte, dst any) error {
	s := scanners.Get().(*scanner)
	defer s.release()
	isObject, err := true, error(nil)
	if len(bytes.TrimSpace(in)) > 0 {
		isObject, err = s.scan(in)
	}
	switch {
	case err != nil:
		return &BodyError{[]FieldError{{Msg: "Invalid JSON: " + err.Error(), Type: "object", Error: InvalidJSON}}}
	case !isObject:
		return &BodyError{[]FieldError{{Msg: "Input should be an object", Type: "object", Error: WrongType}}}
	}
	v := reflect.ValueOf(dst).Elem()
	p := planOf(v.Type())
	var bad []FieldError
	var seen uint64
	for _, f := range s.fields {
		i, known := p.index[string(f.key)]
		if !known || string(f.raw) == "null" {
			continue
		}
		seen |= 1 << i
		if err := p.fields[i].set(v, f.raw); err != nil {
			bad = append(bad, *err)
		}
	}
	for i, f := range p.fields {
		if f.required && seen&(1<<i) == 0 {
			bad = append(bad, FieldError{f.name, "Field required", f.kind, Missing})
		}
	}
	if len(bad) > 0 {
		return &BodyError{bad}
	}
	return nil
}

// plan is what a struct type says about its body.
type plan struct {
	fields []planField
	index  map[string]int
}

type planField struct {
	name     string
	kind     string // JSON type
	at       int
	required bool
}

// A cache of what types say: it cannot differ between callers.
var plans sync.Map

// maxFields is bounded by the bit set of decodeObject.
const maxFields = 64

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := &plan{index: make(map[string]int)}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		if len(p.fields) == maxFields {
			panic(fmt.Sprintf("httpx: %s has more than %d JSON fields", t, maxFields))
		}
		p.index[name] = len(p.fields)
		p.fields = append(p.fields, planField{name, jsonKind(f.Type), i, f.Tag.Get("bind") == "required"})
	}
	actual, _ := plans.LoadOrStore(t, p)
	return actual.(*plan)
}

func (f *planField) set(v reflect.Value, raw []byte) *FieldError {
	ptr := v.Field(f.at).Addr().Interface()
	if raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		// The scanner has proved the text; only escapes need a decoder.
		switch s := ptr.(type) {
		case *string:
			*s = string(raw[1 : len(raw)-1])
			return nil
		case **string:
			text := string(raw[1 : len(raw)-1])
			*s = &text
			return nil
		}
	}
	err := json.Unmarshal(raw, ptr)
	if err == nil {
		return nil
	}
	wrong := FieldError{f.name, "Input should be " + article(f.kind), f.kind, WrongType}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if te.Field != "" {
			wrong.Field += "." + te.Field
			wrong.Type = jsonKind(te.Type)
			wrong.Msg = "Input should be " + article(wrong.Type)
		}
		return &wrong
	}
	wrong.Error, wrong.Msg = InvalidFormat, "Input has the wrong format"
	return &wrong
}

// jsonKind is the JSON type that a Go type is written as.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "object" // json.RawMessage: any value; objects are what we take raw
		}
		return "array"
	case reflect.Struct, reflect.Map, reflect.Interface:
		return "object"
	default:
		return "integer"
	}
}

func article(kind string) string {
	switch kind {
	case "array", "object", "integer":
		return "an " + kind
	default:
		return "a " + kind
	}
}
