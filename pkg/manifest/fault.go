package manifest

import (
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// Fault is one thing that is wrong in a file of a formation.
type Fault struct {
	File string // slash-separated path inside the bundle
	Line int    // from 1; 0 when the fault has no place in the file
	Col  int    // from 1, in characters
	Key  string // dotted path, for example "llm.settings.temperature"; "" for the whole file
	Text string // the offending text, shortened; "***" where it may be a secret
	// Message says what is wrong and what would be right.
	Message    string
	Suggestion string // a likely intended value or key, or ""
	Rule       RuleID
}

// String returns the fault as one line: place, key, message, suggestion.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Col)
	}
	b.WriteString(": ")
	if f.Key != "" {
		b.WriteString(f.Key + ": ")
	}
	b.WriteString(f.Message)
	if f.Suggestion != "" {
		fmt.Fprintf(&b, "; did you mean %q?", f.Suggestion)
	}
	return b.String()
}

// Warning is something that works but is probably not what was meant, or a
// known key that has no effect in this release. Its fields are those of Fault.
type Warning Fault

// String returns the warning as one line.
func (w Warning) String() string { return Fault(w).String() }

// Faults are all faults found in one pass, in the order of files and lines.
// As a fault.Error it is Invalid "ParseError" with validation_errors in Data.
type Faults []Fault //nolint:errname // one Fault is a value, the list of them is the error

// Error returns one line per fault.
func (fs *Faults) Error() string {
	lines := make([]string, len(*fs))
	for i, f := range *fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults in the vocabulary of package fault.
func (fs *Faults) Unwrap() error {
	items := make([]map[string]any, len(*fs))
	for i, f := range *fs {
		items[i] = f.data()
	}
	return fault.New(fault.Invalid, "ParseError", fs.Error()).With("validation_errors", items)
}

// data returns the fault as an item of validation_errors.
func (f Fault) data() map[string]any {
	return map[string]any{
		"field": f.Key, "msg": f.Message, "file": f.File, "line": f.Line, "column": f.Col,
		"text": f.Text, "suggestion": f.Suggestion, "error": string(f.Rule),
	}
}
