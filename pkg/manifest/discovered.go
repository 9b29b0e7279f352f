package manifest

// Skill is a checked SKILL.md.
type Skill struct {
	Name          string // the directory's name when the file has none
	Description   string
	License       string
	Compatibility string
	// AllowedTools restricts the agent while the skill runs; nil does not.
	AllowedTools []string
	Metadata     map[string]any
	Model        string // "provider/model" or ""
	Agent        string // the agent that alone sees it, or "": all
	Dir          string // in the bundle
	// Resources are the files in scripts/, references/ and assets/, by their
	// path in Dir; Scripts are those in scripts/.
	Resources []string
	Scripts   []string
	Body      string
}

// The modes of a standard procedure.
const (
	SOPTemplate = "template"
	SOPGuide    = "guide"
)

// SOP is a checked standard operating procedure, sops/**/*.md.
type SOP struct {
	ID             string // the file's stem
	Name           string // the id when the file has none
	Description    string
	Mode           string // guide
	Tags           []string
	BypassApproval bool // true
	Synthesis      bool // true
	Model          string
	Steps          []any // as written
	Body           string
	Directives     []Directive
	File           string
}

// Directive is one [kind:value] in the text of a procedure.
type Directive struct {
	Kind  string // agent, mcp, skill, critical, file, model
	Value string
	Line  int
	Col   int
}

// Trigger is a template in triggers/.
type Trigger struct {
	Name        string // the file's stem
	Type        string
	Webhook     string
	Transformer string
	Channel     string
	Model       string
	Parse       TriggerParse
	Body        string
	Fields      []string // the data paths of the body, in their order, each once
	File        string
	// Faults is what is wrong with the file. Such a trigger is listed, but a
	// call of it is refused.
	Faults []Fault
}

// TriggerParse are the paths of an outside payload.
type TriggerParse struct {
	Message    string
	UserID     string
	Files      string
	UIResponse string
	Context    map[string]string
}

// Transformer is a checked transformers/<name>.yaml.
type Transformer struct {
	Name      string
	Version   string
	URL       string // "": the trigger's or channel's
	Method    string // POST
	Auth      Auth
	Headers   map[string]string
	Body      any // a map, a list or a text with ${{ }} variables
	Format    string
	MaxLength int // 0: no limit
	Suffix    string
	File      string
}

// Group is a checked groups/<id>.yaml: what its members may use.
type Group struct {
	ID          string
	Description string
	Inherits    []string
	Agents      Access
	// AgentTools narrows the tools of single agents: agent glob, server, tools.
	AgentTools map[string]map[string]ToolFilter
	Triggers   Access
	SOPs       Access
	NativeApps Access
	MCPServers map[string]ToolFilter
	// MaxConcurrentWatches replaces mcp.watch.max_concurrent; 0 does not.
	MaxConcurrentWatches int
	// MemoryWrite are the scopes that members may write: formation, group:<glob>.
	MemoryWrite []string
	File        string
}

// Access are globs; what Deny matches is denied, whatever Allow says.
type Access struct {
	Allow []string
	Deny  []string
}
