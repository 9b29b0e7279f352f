package credentials

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// hidden is the preview of a short value.
const hidden = "***redacted***"

// valueNames are the fields that a credential's value is looked for in, in their
// order (reference runtime.md 12).
func valueNames() []string {
	return []string{"token", "access_token", "api_key", "password", "key", "secret"}
}

// isSecret tells the fields whose texts no log shows beside the value.
func isSecret(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"key", "secret", "token", "pass", "pin", "auth", "cookie", "session", "private"},
		func(word string) bool { return strings.Contains(name, word) })
}

// object is a credential as the user gave it.
type object struct {
	raw    []byte // compact JSON, the fields in the user's order
	fields []field
}

// field is a text at the top of an object.
type field struct{ name, text string }

// parseObject checks a credential.
func parseObject(raw []byte) (*object, error) {
	var compact bytes.Buffer
	err := json.Compact(&compact, raw)
	switch {
	case compact.Len() > MaxObject:
		return nil, fault.Errorf(fault.TooLarge, "", "credential has more than %d bytes", MaxObject)
	case err != nil, compact.Len() == 0, compact.Bytes()[0] != '{':
		return nil, errShape
	}
	o := &object{raw: compact.Bytes()}
	d := json.NewDecoder(bytes.NewReader(o.raw))
	if _, err := d.Token(); err != nil {
		return nil, errShape
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, errShape
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errShape
		}
		var text string
		if value[0] == '"' && json.Unmarshal(value, &text) == nil && text != "" {
			o.fields = append(o.fields, field{name: name.(string), text: text}) //nolint:forcetypeassert // a key is text
		}
	}
	if len(o.fields) == 0 {
		return nil, errShape
	}
	return o, nil
}

// errShape is the fault of an object, which it doesn't quote.
var errShape = fault.New(fault.Unprocessable, "", "credential is an object with at least one text, for example {\"token\": \"…\"}")

// value returns what a placeholder stands for.
func (o *object) value() string {
	for _, name := range valueNames() {
		if i := slices.IndexFunc(o.fields, func(f field) bool { return strings.EqualFold(f.name, name) }); i >= 0 {
			return o.fields[i].text
		}
	}
	return o.fields[0].text
}

// preview returns what may be shown.
func (o *object) preview() string {
	const least, head, tail = 15, 7, 3
	text := []rune(o.value())
	if len(text) < least {
		return hidden
	}
	return string(text[:head]) + "*****" + string(text[len(text)-tail:])
}

// secrets returns what no log may show: the value, and every text that is one
// by its name.
func (o *object) secrets() []string {
	list := []string{o.value()}
	for _, f := range o.fields {
		if isSecret(f.name) {
			list = append(list, f.text)
		}
	}
	return list
}
