package manifest

import (
	"net/url"
	"strings"
)

// MaskSecrets returns a copy of a plain value, such as Effective returns, in
// which mask has replaced what looks like a secret and stands there itself: texts
// under keys with the names of secrets, users and passwords in addresses, values
// of their queries, and arguments of commands. Placeholders stay.
func MaskSecrets(value any, mask func(string) string) any {
	return masker{mask}.value(value, "", false)
}

// masker hides what is secret in a tree.
type masker struct{ mask func(string) string }

// value masks what stands under key; secret tells that a block around it has the
// name of one.
func (m masker) value(v any, key string, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = m.value(x, k, key != "links" && !openKey(k) && (secret || isSensitive(k) || k == "cookie" || k == "Cookie"))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			text, ok := x.(string)
			switch before, _ := at(v, i-1).(string); {
			case ok && !secret && isArgs(key) && isFlag(before) && !HasPlaceholder(text):
				out[i] = m.mask(text)
			case ok && !secret && isArgs(key):
				out[i] = m.argument(text)
			default:
				out[i] = m.value(x, key, secret)
			}
		}
		return out
	case string:
		switch {
		case v != "" && secret && !HasPlaceholder(v):
			return m.mask(v)
		case key == "init" || key == "command":
			return m.words(v)
		}
		return m.address(v)
	}
	return v
}

func at(list []any, i int) any {
	if i < 0 {
		return nil
	}
	return list[i]
}

// openKey tells the keys that have the name of a secret, or stand below one, and
// hold none.
func openKey(key string) bool {
	switch key {
	case "type", "mode", "header", "header_name", "signature_header", "timestamp_header", "allowed_algorithms", "scope",
		"issuer", "audience", "jwks_url", "token_url", "user_credentials":
		return true
	}
	return false
}

func isArgs(key string) bool { return key == "args" || key == "extra_args" }

// isFlag tells that the word behind this one is a secret.
func isFlag(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.ContainsAny(word, "=: ") && isSensitive(word)
}

// words masks the words of a command.
func (m masker) words(text string) string {
	parts := strings.SplitAfter(text, " ")
	before := ""
	for i, part := range parts {
		word := strings.TrimRight(part, " \n")
		rest := part[len(word):]
		if isFlag(before) && word != "" && !HasPlaceholder(word) && !strings.HasPrefix(word, "-") {
			parts[i] = m.mask(word) + rest
		} else {
			parts[i] = m.argument(word) + rest
		}
		before = word
	}
	return strings.Join(parts, "")
}

// argument masks NAME=value, --name=value and Name: value.
func (m masker) argument(text string) string {
	if HasPlaceholder(text) {
		return text
	}
	if i := strings.IndexAny(text, "=:"); i > 0 && i < len(text)-1 && isSensitive(text[:i]) && !strings.HasPrefix(text[i:], "://") {
		value := strings.TrimLeft(text[i+1:], " ")
		return text[:len(text)-len(value)] + m.mask(value)
	}
	return m.address(text)
}

// address masks the user and password of addresses in a text, and what their
// queries hold under names of secrets.
func (m masker) address(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	text = userInfo().ReplaceAllStringFunc(text, func(found string) string {
		if HasPlaceholder(found) {
			return found
		}
		return "://" + m.mask("") + "@"
	})
	head, query, ok := strings.Cut(text, "?")
	if !ok {
		return text
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if ok && value != "" && !HasPlaceholder(value) && (isSensitive(name) || name == "sig" || name == "signature") {
			pairs[i] = pair[:len(pair)-len(value)] + m.mask(value)
		}
	}
	return head + "?" + strings.Join(pairs, "&")
}
