package provider

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// value reads anything with the scanner, to compare it with encoding/json.
func (s *scanner) value() any {
	switch s.peek() {
	case '{':
		out := map[string]any{}
		s.object(func(key []byte) {
			name, _ := repair(key, true)
			out[name] = s.value()
		})
		return out
	case '[':
		out := []any{}
		s.array(func() { out = append(out, s.value()) })
		return out
	case '"':
		return s.text()
	default:
		return string(s.raw())
	}
}

// plain turns what encoding/json decoded into what value returns.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
		return v
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
		return v
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return map[bool]string{true: "true", false: "false"}[v]
	default:
		return "null"
	}
}

func FuzzScanner_ReadsWhatEncodingJSONReads(f *testing.F) {
	for _, seed := range []string{
		`{"a":"b","c":[1,-2.5e3,true,false,null,{"d":{}}],"e":""}`, ` [ ] `, `{}`, `"\u00e9\ud83d\ude42\n\"\\\/"`, `"\ud83d"`, `"\ude42\ud83d"`,
		`{"a":1,}`, `[1 2]`, `{"a" 1}`, `"\x"`, `"\u12"`, `{"a":{"b":[[["c"]]]}}`, "\"\xff\"", `{"\u0061":1,"a":2}`, `12`, ``, `[,]`, "\"a\x01\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want any
		dec := json.NewDecoder(strings.NewReader(string(data)))
		dec.UseNumber()
		valid := json.Valid(data)
		s := scanner{b: data}
		got := s.value()
		ok := s.finish()
		if !valid {
			return // the scanner is lax, it must only not panic or hang
		}
		if err := dec.Decode(&want); err != nil {
			return // deeper than encoding/json goes
		}
		if !ok {
			t.Fatalf("refused %q", data)
		}
		if want = plain(want); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: got %#v, want %#v", data, got, want)
		}
	})
}

func TestScanner_RefusesWhatIsCutOff(t *testing.T) {
	t.Parallel()
	whole := `{"choices":[{"delta":{"content":"x\u00e9y"},"n":[1,{"a":"b"}]}]}`
	for n := range len(whole) {
		s := scanner{b: []byte(whole[:n])}
		s.value()
		if s.finish() && n > 0 {
			t.Errorf("accepted %q", whole[:n])
		}
	}
	for _, text := range []string{`{} x`, `{"a":1 "b":2}`, `[1,2`, `}`, `{"a":]}`, `{"a"}`} {
		s := scanner{b: []byte(text)}
		s.skip()
		if skipped := s.finish(); skipped && text != `{"a"}` && text != `{"a":1 "b":2}` && text != `{"a":]}` {
			t.Errorf("skip accepted %q", text)
		}
		s = scanner{b: []byte(text)}
		s.value()
		if s.finish() {
			t.Errorf("value accepted %q", text)
		}
	}
}

func FuzzJoiner_GivesWholeRunesWhateverTheCuts(f *testing.F) {
	f.Add("Grüße 你好 🙂", 3)
	f.Add("\xff\xed\xa0\xbd", 1)
	f.Fuzz(func(t *testing.T, text string, step int) {
		if step < 1 {
			return
		}
		var j joiner
		var got strings.Builder
		for rest := text; rest != ""; {
			n := min(step, len(rest))
			piece := j.next([]byte(rest[:n]))
			if !utf8.ValidString(piece) {
				t.Fatalf("piece %q is not valid", piece)
			}
			got.WriteString(piece)
			rest = rest[n:]
		}
		got.WriteString(j.rest())
		if !utf8.ValidString(got.String()) || utf8.ValidString(text) && got.String() != text {
			t.Fatalf("%q cut every %d bytes became %q", text, step, got.String())
		}
	})
}

func TestJoiner_JoinsHalvesOfSurrogatePairs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pieces []string // JSON strings
		want   string
	}{
		{[]string{`"a\ud83d"`, `"\ude42b"`}, "a🙂b"},
		{[]string{`"\ud83d"`, `"b"`}, "\ufffdb"},
		{[]string{`"\ud83d"`}, "\ufffd"},
		{[]string{`"\ude42x"`}, "\ufffdx"},
		{[]string{`"\ud83d\ud83d"`, `"\ude42"`}, "\ufffd🙂"},
	} {
		var j joiner
		got := ""
		for _, p := range c.pieces {
			s := scanner{b: []byte(p)}
			got += j.next(s.textBytes())
		}
		if got += j.rest(); got != c.want {
			t.Errorf("%v: got %q, want %q", c.pieces, got, c.want)
		}
	}
}

func FuzzAppendString_AgreesWithEncodingJSON(f *testing.F) {
	f.Add("plain")
	f.Add("quote \" back \\ \n\t\r\x00\x1f <html> & é 🙂 \u2028 \xff")
	f.Fuzz(func(t *testing.T, text string) {
		var got string
		if err := json.Unmarshal(appendString(nil, text), &got); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); utf8.ValidString(text) && got != want {
			t.Fatalf("%q came back as %q", text, got)
		}
	})
}
