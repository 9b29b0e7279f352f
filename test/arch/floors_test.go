package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// floor is one room's place: what it may import of this module beside the
// foundation of its side, and why. Rooms import downward only and never
// sideways; a room may therefore name only rooms that stand above it in the
// table, which makes a cycle impossible to write down.
type floor struct {
	room string
	may  []string // rooms; "x/..." means x and everything below it
	why  string
}

// foundation is what every room may import.
var foundation = []string{"pkg/fault", "pkg/version"}

// floors has one entry per room below pkg, proto and cmd, lowest first.
var floors = []floor{
	// Floor 0: words.
	{"pkg/version", nil, "the build stamp stands on nothing"},
	{"pkg/fault", nil, "the error vocabulary is imported by all and imports none"},

	// Floor 1: what both programs share.
	{"proto/control/v1", nil, "generated messages, reached through pkg/control"},
	{"pkg/archive", nil, "safe unpacking knows files, not formations"},
	{"pkg/manifest", nil, "reading a formation's files needs no running part"},
	{"pkg/filelock", nil, "a lock is a file; what it guards is its caller's business"},
	{"pkg/scaffold", []string{"pkg/filelock", "pkg/manifest"}, "writes files of the kinds that manifest reads, and has it read them"},
	{"pkg/secretfile", []string{"pkg/filelock"}, "one file format"},
	{"pkg/redact", nil, "knows texts, not whose they are"},
	{"pkg/httpx", nil, "HTTP manners of both doors; knows neither API"},
	{"pkg/control", []string{"proto/control/v1"}, "hides the wire of the child's contract"},
	{"pkg/openapi", nil, "describes routes and types; serves nothing"},
	{"pkg/client", nil, "a caller of the HTTP APIs sees what any client sees"},
	{"pkg/tracing", nil, "the way of spans to a collector; whose they are is told to it"},
	{"pkg/confine", nil, "what a process does to itself knows the kernel only"},
	{"pkg/embedder", []string{"pkg/filelock"}, "asks the embedding process; links none of what it runs"},
	{"pkg/embedder/hub", []string{"pkg/filelock"}, "fetches files; what they mean is model's business"},
	{"pkg/embedder/tokenizer", nil, "text in, numbers out"},
	{"pkg/embedder/model", []string{"pkg/embedder/tokenizer"}, "what a model directory means; engines are given to it"},
	{"pkg/embedder/ort", []string{"pkg/embedder/model"}, "one engine; native code stays in its process"},
	{"pkg/embedder/purego", []string{"pkg/embedder/model"}, "one engine; beside the other, not above"},
	{
		"pkg/embedder/server",
		[]string{"pkg/filelock", "pkg/embedder", "pkg/embedder/hub", "pkg/embedder/model", "pkg/embedder/ort", "pkg/embedder/purego"},
		"the embedding process itself; only the command that is it imports it",
	},
	{
		"pkg/embedder/embedtest",
		[]string{"pkg/embedder/hub", "pkg/embedder/model"},
		"made models and a fake hub; no other room names it, so only tests can import it",
	},

	// The supervisor's side.
	{"pkg/supervisor/ports", nil, "owns listening sockets and nothing else"},
	{"pkg/supervisor/registry", nil, "owns rows; what they cause is deploy's business"},
	{"pkg/supervisor/auth", nil, "checks signatures; does not know routes"},
	{"pkg/supervisor/logs", nil, "files of lines; whose they are is the caller's business"},
	{"pkg/supervisor/notify", nil, "sends what it is given; does not know what happens"},
	{"pkg/supervisor/doctor", []string{"pkg/confine"}, "looks at a host and changes nothing; what is set is told to it"},
	{"pkg/supervisor/draft", nil, "files of one directory; what they are for is deploy's business"},
	{
		"pkg/supervisor/backup",
		[]string{"pkg/filelock", "pkg/manifest", "pkg/supervisor/registry"},
		"copies a home; registry knows what is in its file and how a database is copied, manifests name stores elsewhere",
	},
	{"pkg/supervisor/limits", []string{"pkg/confine"}, "says what a child confines itself by; who launches it is not its business"},
	{
		"pkg/supervisor/process",
		[]string{"pkg/control", "pkg/supervisor/ports"},
		"a child is launched over control with the socket that ports keeps for it",
	},
	{"pkg/supervisor/proxy", []string{"pkg/httpx"}, "forwards requests; is told where"},
	{
		"pkg/supervisor/deploy",
		[]string{
			"pkg/archive", "pkg/manifest", "pkg/control", "pkg/secretfile", "pkg/supervisor/ports",
			"pkg/supervisor/draft", "pkg/supervisor/logs", "pkg/supervisor/limits", "pkg/supervisor/registry", "pkg/supervisor/process", "pkg/supervisor/proxy",
		},
		"the use cases sit over the adapters, which do not know each other",
	},
	{
		"pkg/supervisor/deploy/deploytest",
		[]string{
			"pkg/archive", "pkg/confine", "pkg/control", "pkg/supervisor/ports", "pkg/supervisor/registry",
			"pkg/supervisor/process", "pkg/supervisor/proxy", "pkg/supervisor/deploy", "test/testports",
		},
		"a service with children of its own; no other room names it, so only tests can import it",
	},
	{
		"pkg/supervisor/metrics",
		[]string{"pkg/control", "pkg/httpx", "pkg/supervisor/process", "pkg/supervisor/deploy"},
		"reads the fleet and the doors' counters; nobody imports it but the assembly",
	},
	{
		"pkg/supervisor/httpapi",
		[]string{
			"pkg/httpx", "pkg/openapi", "pkg/archive", "pkg/supervisor/auth", "pkg/supervisor/logs", "pkg/supervisor/registry",
			"pkg/supervisor/process", "pkg/supervisor/proxy", "pkg/supervisor/deploy",
		},
		"a door turns requests into calls of the use cases",
	},
	{
		"pkg/supervisor",
		[]string{"pkg/filelock", "pkg/tracing", "pkg/archive", "pkg/manifest", "pkg/secretfile", "pkg/redact", "pkg/httpx", "pkg/control", "pkg/embedder", "pkg/embedder/hub", "pkg/supervisor/..."},
		"assembly knows every part of its side",
	},

	// The formation's side, floor 1: words and ground.
	{"pkg/formation/chat", nil, "vocabulary without behaviour"},
	{"pkg/formation/telemetry", nil, "tells what happens; everybody may tell, so it knows nobody"},
	{"pkg/formation/telemetry/otlp", []string{"pkg/tracing", "pkg/formation/telemetry"}, "sends traces away; only the assembly decides whether"},
	{"pkg/formation/rate", nil, "counts how often; who is counted, and what a refusal looks like, is its caller's business"},
	{"pkg/formation/store", nil, "rows and transactions"},
	{"pkg/formation/secrets", []string{"pkg/manifest", "pkg/secretfile", "pkg/formation/store"}, "resolves names to values"},
	{
		"pkg/formation/secrets/credentials",
		[]string{"pkg/manifest", "pkg/secretfile", "pkg/formation/chat", "pkg/formation/store"},
		"what users gave, in the store; who lacks it gets an answer",
	},

	// Floor 2: hands. They do not know each other.
	{"pkg/formation/llm", []string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/telemetry"}, "one way to ask any model"},
	{
		"pkg/formation/llm/budget",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/llm", "pkg/formation/store"},
		"the router's meter keeps its book in the store and takes its limits from the files",
	},
	{
		"pkg/formation/llm/probe",
		[]string{"pkg/formation/llm", "pkg/formation/store"},
		"asks through the router and keeps the answers in the store",
	},
	{
		"pkg/formation/llm/provider",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/llm"},
		"adapts a vendor's wire to llm.Model",
	},
	{
		"pkg/formation/llm/llmtest",
		[]string{"pkg/formation/chat", "pkg/formation/llm", "test/fakellm"},
		"scripted models and the promises of an adapter; no other room names it, so only tests can import it",
	},
	{"pkg/formation/media/document", nil, "reads the text out of bytes"},
	{"pkg/formation/media/document/documenttest", nil, "makes small documents; no other room names it, so only tests can import it"},
	{
		"pkg/formation/media",
		[]string{"pkg/confine", "pkg/manifest", "pkg/formation/chat", "pkg/formation/media/document"},
		"makes files ready for models; what unpacks them runs confined",
	},
	{
		"pkg/formation/mcpclient",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/telemetry", "pkg/formation/rate", "pkg/formation/store"},
		"speaks with tool servers; what offers its tools to agents is the assembly",
	},
	{"pkg/formation/jobs", []string{"pkg/formation/store"}, "work that outlives a request, over the store's database"},
	{"pkg/formation/spool", []string{"pkg/formation/store"}, "rows that wait for a supervisor; the assembly sends them"},
	{
		"pkg/formation/request",
		[]string{"pkg/formation/chat", "pkg/formation/store"},
		"durable records of requests and their streams",
	},

	// Floor 3: remembering. Chambers know the event log, never each other.
	{"pkg/formation/memory/event", []string{"pkg/formation/chat", "pkg/formation/store"}, "the log is the truth"},
	{
		"pkg/formation/memory/buffer",
		[]string{"pkg/formation/chat", "pkg/formation/store", "pkg/formation/llm", "pkg/formation/memory/event"},
		"recent messages, a chamber beside the others",
	},
	{
		"pkg/formation/memory",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/store", "pkg/formation/llm", "pkg/formation/memory/..."},
		"the facade opens its chambers",
	},

	// Floor 4: thinking.
	{
		"pkg/formation/agent",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/telemetry", "pkg/formation/rate", "pkg/formation/llm"},
		"the loop of model and tools; both are given",
	},
	{"pkg/formation/overlord/clarify", []string{"pkg/formation/chat"}, "what a reply means to a question is a matter of words"},
	{
		"pkg/formation/overlord",
		[]string{"pkg/manifest", "pkg/formation/chat", "pkg/formation/telemetry", "pkg/formation/llm", "pkg/formation/agent", "pkg/formation/overlord/clarify"},
		"decides who answers and lets them",
	},

	// Floors 5 to 7: the turn, its doors, the assembly.
	{
		"pkg/formation/turn",
		[]string{
			"pkg/manifest", "pkg/formation/chat", "pkg/formation/telemetry", "pkg/formation/store", "pkg/formation/request",
			"pkg/formation/memory", "pkg/formation/overlord",
		},
		"a turn joins memory, thinking and the record; doors and jobs call it",
	},
	{
		"pkg/formation/mcpserver",
		[]string{"pkg/httpx", "pkg/openapi", "pkg/formation/telemetry"},
		"a door whose calls are requests to the other one; it knows routes by what is told of them",
	},
	{
		"pkg/formation/httpapi",
		[]string{
			"pkg/secretfile", "pkg/httpx", "pkg/openapi", "pkg/manifest", "pkg/formation/mcpserver", "pkg/formation/chat", "pkg/formation/telemetry", "pkg/formation/rate", "pkg/formation/request",
			"pkg/formation/memory", "pkg/formation/overlord", "pkg/formation/turn", "pkg/formation/llm/budget", "pkg/formation/media",
			"pkg/formation/secrets/credentials",
		},
		"a door turns requests into turns; one route asks the overlord who would answer",
	},
	{
		"pkg/formation",
		[]string{"pkg/manifest", "pkg/secretfile", "pkg/redact", "pkg/httpx", "pkg/control", "pkg/embedder", "pkg/formation/..."},
		"assembly knows every part of its side",
	},

	// The programs.
	{
		"cmd/supervisor",
		[]string{
			"pkg/supervisor", "pkg/client", "pkg/archive", "pkg/manifest", "pkg/redact", "pkg/scaffold", "pkg/secretfile", "pkg/filelock",
			"pkg/supervisor/logs", "pkg/supervisor/backup", "pkg/supervisor/doctor",
		},
		"commands are thin calls of the supervisor or its client; a draft's logs are read where they lie; the lines shown of a file have no secrets",
	},
	{
		"cmd/formation-runtime",
		[]string{"pkg/formation", "pkg/formation/media", "pkg/control", "pkg/confine", "pkg/manifest", "pkg/httpx", "pkg/redact", "pkg/filelock", "pkg/embedder/..."},
		"serves one formation, as a child that confines itself first, or alone; alone it names its launch and listens where the manifest says; the embedding process of a host and the one that works on a stranger's file are the same program",
	},
}

// covers says whether an entry of a may list admits dir.
func covers(entry, dir string) bool {
	if base, ok := strings.CutSuffix(entry, "/..."); ok {
		return within(dir, base)
	}
	return entry == dir
}

// checkFloors returns one text per import that the table does not allow and
// per room that has no place in it. Tests are free to import what the hard
// walls allow.
func checkFloors(h house, floors []floor) []string {
	var faults []string
	for _, dir := range h.dirs() {
		if !within(dir, "pkg") && !within(dir, "proto") && !within(dir, "cmd") {
			continue
		}
		i := slices.IndexFunc(floors, func(f floor) bool { return f.room == dir })
		if i < 0 {
			faults = append(faults, dir+": give this room a floor and a reason in test/arch/floors_test.go and a line in pkg/README.md")
			continue
		}
		f := floors[i]
		for _, e := range h[dir].imports {
			if e.test || !isRoom(e.to) || slices.Contains(foundation, e.to) {
				continue
			}
			if !slices.ContainsFunc(f.may, func(entry string) bool { return covers(entry, e.to) }) {
				faults = append(faults, fmt.Sprintf("%s:%d: %s imports %s\n  it may import %v beside %v, because %s",
					e.file, e.line, dir, e.to, f.may, foundation, f.why))
			}
		}
	}
	return faults
}

// isRoom tells rooms of this module from the standard library and libraries.
func isRoom(to string) bool {
	return within(to, "pkg") || within(to, "proto") || within(to, "cmd") || within(to, "test")
}

func TestFloors_RoomsImportDownwardOnly(t *testing.T) {
	t.Parallel()
	for _, fault := range checkFloors(readRepository(t), floors) {
		t.Error(fault)
	}
}

func TestFloors_TheTableItselfGoesDownward(t *testing.T) {
	t.Parallel()
	for i, f := range floors {
		if len(strings.Fields(f.why)) < 3 {
			t.Errorf("%s: say why it may import what it may", f.room)
		}
		if slices.ContainsFunc(floors[:i], func(g floor) bool { return g.room == f.room }) {
			t.Errorf("%s stands twice in the table", f.room)
		}
		for _, entry := range f.may {
			known := within(entry, "test") || slices.ContainsFunc(floors[:i], func(g floor) bool { return covers(entry, g.room) })
			if !known {
				t.Errorf("%s may import %s, which does not stand above it in the table", f.room, entry)
			}
		}
	}
}
