package provider

import (
	"net/http"
	"strings"
)

// format is how far a server understands the wish for JSON.
type format uint8

const (
	jsonSchema format = iota
	jsonObject
	noFormat
)

// quirks are the optional fields that a model does not understand. Reasoning
// models refuse a temperature and the old name of the token limit; other
// servers do not know the new name, stream options or JSON schemas.
type quirks struct {
	newLimitName    bool // max_completion_tokens instead of max_tokens
	triedBothNames  bool
	noLimit         bool
	noTemperature   bool
	noStreamOptions bool
	format          format
}

// refusals are the words by which servers say that they do not know a field.
var refusals = [...]string{
	"unsupported", "not supported", "does not support", "doesn't support", "unrecognized", "unknown", "unexpected",
	"not permitted", "extra", "unavailable", "not available", "not allowed",
}

// relax returns the quirks to try after a refusal in these words; ok is false
// when the refusal is not about an optional field.
func (q quirks) relax(status int, refusal string) (relaxed quirks, ok bool) {
	if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
		return q, false
	}
	text := strings.ToLower(refusal)
	if !containsAny(text, refusals[:]) {
		return q, false
	}
	switch {
	case strings.Contains(text, "stream_options") && !q.noStreamOptions:
		q.noStreamOptions = true
	case strings.Contains(text, "temperature") && !q.noTemperature:
		q.noTemperature = true
	case strings.Contains(text, q.limitName()) && !q.noLimit:
		q = q.otherLimit()
	case (strings.Contains(text, "response_format") || strings.Contains(text, "json_schema")) && q.format < noFormat:
		q.format++
	default:
		return q, false
	}
	return q, true
}

func (q quirks) limitName() string {
	if q.newLimitName {
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// otherLimit takes the other name of the token limit, and then none.
func (q quirks) otherLimit() quirks {
	if q.triedBothNames {
		q.noLimit = true
	}
	q.newLimitName, q.triedBothNames = !q.newLimitName, true
	return q
}

func containsAny(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}
