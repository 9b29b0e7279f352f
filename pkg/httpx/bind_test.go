package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
)

type inner struct {
	Count int `json:"count"`
}

type target struct {
	Message  *string           `json:"message" bind:"required"`
	Name     string            `json:"name"`
	Flag     *bool             `json:"flag"`
	Seconds  *float64          `json:"seconds"`
	Files    []json.RawMessage `json:"files"`
	Anything json.RawMessage   `json:"anything"`
	Inner    inner             `json:"inner"`
	Hidden   string            `json:"-"`
	Ignored  string
}

func TestDecode_FillsExactlyNamedFields(t *testing.T) {
	t.Parallel()
	var got target
	err := decodeObject([]byte(` {"message":"a\u0062c","name":"plain ü","flag":true,"seconds":1.5e1,"files":[1,"x"],
		"anything":{"a":[]},"inner":{"count":3},"Name":"other case","-":"x","Hidden":"x","Ignored":"x","more":{"deep":[{}]}} `), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := target{
		Message: new("abc"), Name: "plain ü", Flag: new(true), Seconds: new(15.0),
		Files: []json.RawMessage{json.RawMessage("1"), json.RawMessage(`"x"`)}, Anything: json.RawMessage(`{"a":[]}`),
		Inner: inner{3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecode_ReportsEveryWrongField(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body string
		want []FieldError
	}{
		"missing":  {`{}`, []FieldError{{"message", "Field required", "string", Missing}}},
		"null":     {`{"message":null}`, []FieldError{{"message", "Field required", "string", Missing}}},
		"no body":  {" \n", []FieldError{{"message", "Field required", "string", Missing}}},
		"no JSON":  {`{"message":`, []FieldError{{"", "Invalid JSON: unexpected end of JSON at byte 11", "object", InvalidJSON}}},
		"trailing": {`{"message":"a"} {}`, []FieldError{{"", "Invalid JSON: unexpected data after the JSON value at byte 16", "object", InvalidJSON}}},
		"twice":    {`{"message":"a","mess\u0061ge":"b"}`, []FieldError{{"", `Invalid JSON: key "message" appears twice at byte 15`, "object", InvalidJSON}}},
		"twice, deep": {
			`{"message":"a","x":[{"k":1,"k":2}]}`,
			[]FieldError{{"", `Invalid JSON: key "k" appears twice at byte 27`, "object", InvalidJSON}},
		},
		"no UTF-8": {"{\"message\":\"\xff\"}", []FieldError{{"", "Invalid JSON: string is not valid UTF-8 at byte 13", "object", InvalidJSON}}},
		"array":    {`[]`, []FieldError{{"", "Input should be an object", "object", WrongType}}},
		"types": {
			`{"message":5,"name":[],"flag":"yes","seconds":"x","files":{},"inner":{"count":"x"}}`,
			[]FieldError{
				{"message", "Input should be a string", "string", WrongType},
				{"name", "Input should be a string", "string", WrongType},
				{"flag", "Input should be a boolean", "boolean", WrongType},
				{"seconds", "Input should be a number", "number", WrongType},
				{"files", "Input should be an array", "array", WrongType},
				{"inner.count", "Input should be an integer", "integer", WrongType},
			},
		},
	} {
		var got target
		err := decodeObject([]byte(tt.body), &got)
		var body *BodyError
		if !errors.As(err, &body) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, body.Fields); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		f := fault.From(err)
		if want := fmt.Sprintf("Validation failed: %d error(s)", len(tt.want)); f.Kind != fault.Unprocessable || f.Message != want ||
			f.Data["validation_errors"] == nil {
			t.Errorf("%s: as a fault: %v %q %v", name, f.Kind, f.Message, f.Data)
		}
	}
}

func TestDecode_BoundsDepthAndFindsDuplicatesAmongManyKeys(t *testing.T) {
	t.Parallel()
	nest := func(n int) []byte {
		return []byte(`{"message":"m","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}")
	}
	var got target
	if err := decodeObject(nest(maxDepth-1), &got); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	err := decodeObject(nest(maxDepth), &got)
	if body, ok := errors.AsType[*BodyError](err); !ok || !strings.Contains(body.Detail(), "nested deeper") {
		t.Errorf("over the limit: %v", err)
	}
	var b strings.Builder
	b.WriteString(`{"message":"m"`)
	for i := range 5 * manyKeys {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	if err := decodeObject([]byte(b.String()+"}"), &got); err != nil {
		t.Errorf("many keys: %v", err)
	}
	for _, dup := range []int{0, manyKeys - 2, manyKeys, 5*manyKeys - 1} {
		if err := decodeObject(fmt.Appendf(nil, `%s,"k%d":0}`, b.String(), dup), &got); err == nil {
			t.Errorf("duplicate of key %d was accepted", dup)
		}
	}
}

func TestCanonicalHash_SameMeaningSameHash(t *testing.T) {
	t.Parallel()
	hash := func(body string) [32]byte {
		b := &Body{buf: bytes.NewBufferString(body)}
		h, err := b.CanonicalHash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	one := hash(`{"message":"a","x":{"b":1,"a":[true,null]}}`)
	if hash(" {\"x\": {\"a\":[ true,null],\"b\":1},\n\"message\":\"\\u0061\"}") != one {
		t.Error("order, space and escapes changed the hash")
	}
	for _, other := range []string{
		`{"message":"a","x":{"b":1,"a":[null,true]}}`, `{"message":"b","x":{"b":1,"a":[true,null]}}`,
		`{"message":"a","x":{"b":10000000000000000000001,"a":[true,null]}}`, `{"message":"a"}`,
	} {
		if hash(other) == one {
			t.Errorf("%s has the same hash", other)
		}
	}
	if hash(`{"n":10000000000000000000001}`) == hash(`{"n":10000000000000000000002}`) {
		t.Error("large numbers were rounded together")
	}
}

// FuzzScan holds the scanner against encoding/json: it accepts nothing that
// the library refuses, refuses beyond it only what it says it does, and finds
// the same members.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":1}`, `{"a":{"b":[1,2.5e-3,"x\u00e9",true,false,null]},"c":"d"}`, `[]`, `"x"`, `{"a":1,"a":2}`,
		`{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"\ud800":1}`, `{"a":"\x"}`, ` {"a" : [ ] } `, "{\"a\":\"\x00\"}", `{"a":tru}`, "\"\xc3\x28\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var s scanner
		isObject, err := s.scan(in)
		if valid := json.Valid(in); err == nil && !valid {
			t.Fatalf("accepted %q", in)
		} else if err != nil && valid {
			for _, reason := range []string{"twice", "nested deeper", "UTF-8"} {
				if strings.Contains(err.Error(), reason) {
					return
				}
			}
			t.Fatalf("refused %q: %v", in, err)
		}
		if err != nil || !isObject {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(in, &want); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]json.RawMessage)
		for _, f := range s.fields {
			got[string(f.key)] = f.raw
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		var dst target
		_ = decodeObject(in, &dst) // must not panic
	})
}

func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"message":"What is the capital of France?","name":"geographer","flag":false,"inner":{"count":1}}`)
	b.ReportAllocs()
	for b.Loop() {
		var dst target
		if err := decodeObject(body, &dst); err != nil {
			b.Fatal(err)
		}
	}
}
