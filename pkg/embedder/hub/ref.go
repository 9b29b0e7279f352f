package hub

import (
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// Ref names a model on the hub.
type Ref struct {
	Owner, Name string
	Revision    string // branch, tag or commit; "main" when none was named
}

// ID is what the hub calls the repository: owner/name.
func (r Ref) ID() string { return r.Owner + "/" + r.Name }

// String is the model id that ParseRef reads.
func (r Ref) String() string {
	if r.Revision == mainRevision {
		return prefix + r.ID()
	}
	return prefix + r.ID() + ":" + r.Revision
}

// what it is called in messages.
func (r Ref) what() string { return "embedding model " + r.String() }

const (
	prefix       = "local/"
	mainRevision = "main"
)

// DefaultModel embeds when nothing else is configured (reference memory.md 14).
const DefaultModel = "local/nomic-ai/nomic-embed-text-v1.5"

// segment is an owner, a name or a revision: what the hub allows in one, and
// nothing that a path would understand.
var segment = lazily(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)

// hints complete the model ids of those who forgot the owner.
var hints = map[string]string{
	"nomic-embed-text-v1.5": "nomic-ai", "nomic-embed-text-v1": "nomic-ai", "nomic-embed-text": "nomic-ai",
	"all-MiniLM-L6-v2": "sentence-transformers", "all-mpnet-base-v2": "sentence-transformers",
	"multilingual-e5-small": "intfloat", "e5-small-v2": "intfloat", "bge-small-en-v1.5": "BAAI",
}

// ParseRef reads a model id: local/<owner>/<name>, with :<revision> where one
// is wanted. Its error is Invalid and shows how it would be right.
func ParseRef(model string) (Ref, error) {
	rest, ok := strings.CutPrefix(model, prefix)
	if !ok {
		return Ref{}, badRef(model, "a local model begins with %q", prefix)
	}
	id, revision, pinned := strings.Cut(rest, ":")
	owner, name, ok := strings.Cut(id, "/")
	switch {
	case !ok && segment().MatchString(id):
		owner := hints[id]
		if owner == "" {
			owner = "<owner>"
		}
		return Ref{}, badRef(model, "the owner is missing; write local/%s/%s", owner, id)
	case !ok || !segment().MatchString(owner) || !segment().MatchString(name) || strings.Contains(id, "..") || strings.Contains(id, "--"):
		return Ref{}, badRef(model, "want local/<owner>/<name> or local/<owner>/<name>:<revision>")
	case pinned && revision == "":
		return Ref{}, badRef(model, `nothing follows the ":"; name a revision or leave it out`)
	case !pinned:
		revision = mainRevision
	case !segment().MatchString(revision) || strings.Contains(revision, ".."):
		return Ref{}, badRef(model, "%q is no branch, tag or commit", revision)
	}
	return Ref{Owner: owner, Name: name, Revision: revision}, nil
}

func badRef(model, format string, args ...any) error {
	return fault.New(fault.Invalid, NameBadModel, fmt.Sprintf("embedding model %q: ", model)+fmt.Sprintf(format, args...))
}
