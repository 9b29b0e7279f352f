package manifest

import (
	"strings"
	"time"
)

var envName = lazily(`^[A-Za-z_][A-Za-z0-9_]*$`)

// The kinds of tool servers.
const (
	MCPCommand = "command"
	MCPHTTP    = "http"
)

// MCP is the manifest's mcp block: how tools are called.
type MCP struct {
	DefaultRetryAttempts int           // 3
	DefaultTimeout       time.Duration // 30s
	MaxToolIterations    int           // 10
	MaxToolCalls         int           // 50
	MaxRepeatedErrors    int           // 3
	MaxTimeout           time.Duration // 300s
	MaxToolTimeout       time.Duration // 30s
	MaxToolTimeoutGiven  bool          // the file sets it
	EnhanceUserPrompts   bool          // true
	ConnectionTTL        time.Duration // 300s; 0 disconnects after each call
	// Servers are the ids of mcp/<id>.afs, as listed.
	Servers []string
	// Watch is nil when watching of jobs is turned off.
	Watch *MCPWatch
}

// CallLimit is the longest that one call of a tool may take, whatever progress
// it reports: MaxToolTimeout where the manifest sets it, else MaxTimeout. A call
// that reports none has the time of its server.
func (m *MCP) CallLimit() time.Duration {
	if m.MaxToolTimeoutGiven {
		return min(m.MaxToolTimeout, m.MaxTimeout)
	}
	return m.MaxTimeout
}

// MCPWatch bounds the background polling of a tool's jobs.
type MCPWatch struct {
	Interval               time.Duration // 30s
	Timeout                time.Duration // 7200s
	MaxConcurrent          int           // per user, 10
	MaxConsecutiveFailures int           // 3
}

// MCPServer is a checked tool server, from mcp/<id>.afs or inline in an agent.
type MCPServer struct {
	Schema      string
	ID          string
	Description string
	Type        string // command or http
	Active      bool   // always true in Formation.MCPServers

	Command string
	Args    []string
	Env     map[string]string
	Cwd     string

	Endpoint    string
	Protocol    string
	Method      string // POST
	Headers     map[string]string
	HealthCheck HealthCheck

	Timeout       time.Duration // mcp.default_timeout_seconds
	RetryAttempts int           // 0-10, mcp.default_retry_attempts
	ConnectionTTL time.Duration // mcp.connection_ttl
	// Parameters are given to every call; an explicit argument wins.
	Parameters map[string]any
	Tools      ToolFilter
	Auth       Auth
	// RateLimit bounds the calls of its tools and what else it is asked by agents.
	RateLimit RateLimiting
	// Capabilities are what its author says that it can do, as written; nil when
	// nothing is. They are shown to people.
	Capabilities any
	Metadata     map[string]any

	File string
	Line int
}

// HealthCheck says how a server over HTTP is probed.
type HealthCheck struct {
	Enabled  bool
	Endpoint string
	Interval time.Duration // 60s
	Timeout  time.Duration // 5s
}

// ToolFilter are globs over tool names: Allow first, when there are any, then
// Deny.
type ToolFilter struct {
	Allow []string
	Deny  []string
}

// MCPUse is one entry of an agent's mcp_servers: the id of a formation-level
// server, or a server of its own.
type MCPUse struct {
	ID    string
	Tools ToolFilter // narrows what a formation-level server offers
	Own   *MCPServer // nil for a formation-level server
	place *node      // for the check that it exists
	key   string
}

// mcp reads the manifest's block except its servers.
func (d *decoder) mcp(o *object, m *MCP) {
	set(&m.DefaultRetryAttempts, o.integer("default_retry_attempts", 0, 10))
	set(&m.DefaultTimeout, o.duration("default_timeout_seconds", time.Millisecond))
	set(&m.MaxToolIterations, o.integer("max_tool_iterations", 1, unlimited))
	set(&m.MaxToolCalls, o.integer("max_tool_calls", 1, unlimited))
	set(&m.MaxRepeatedErrors, o.integer("max_repeated_errors", 1, unlimited))
	set(&m.MaxTimeout, o.duration("max_timeout_in_seconds", time.Millisecond))
	toolTimeout := o.duration("max_tool_timeout_in_seconds", time.Millisecond)
	m.MaxToolTimeoutGiven = toolTimeout.v != nil
	set(&m.MaxToolTimeout, toolTimeout)
	set(&m.EnhanceUserPrompts, o.boolean("enhance_user_prompts"))
	set(&m.ConnectionTTL, o.duration("connection_ttl", 0))
	watch := o.slot("watch")
	m.Watch = &MCPWatch{Interval: 30 * time.Second, Timeout: 2 * time.Hour, MaxConcurrent: 10, MaxConsecutiveFailures: 3}
	if w := watch.block(); w != nil {
		set(&m.Watch.Interval, w.duration("interval", time.Second))
		set(&m.Watch.Timeout, w.duration("timeout", time.Second))
		set(&m.Watch.MaxConcurrent, w.integer("max_concurrent", 1, unlimited))
		set(&m.Watch.MaxConsecutiveFailures, w.integer("max_consecutive_failures", 1, unlimited))
		w.end()
	}
	if on, ok := watch.boolean(); ok && !on {
		m.Watch = nil
	}
	watch.end()
	o.slot("servers") // read with the files it names
	o.inert("mcp")
	o.end()
}

// mcpServer reads a server's block; f gives what it inherits.
func (d *decoder) mcpServer(o *object, m *MCP, inline bool) *MCPServer {
	if o.absent() {
		return nil
	}
	s := &MCPServer{
		Active: true, Method: "POST", Timeout: m.DefaultTimeout, RetryAttempts: m.DefaultRetryAttempts, ConnectionTTL: m.ConnectionTTL,
		HealthCheck: HealthCheck{Interval: time.Minute, Timeout: 5 * time.Second}, Metadata: map[string]any{},
	}
	d.schemaOf(o, &s.Schema, !inline)
	o.require("id", "id: my-server")
	set(&s.ID, o.word("id"))
	if !inline {
		o.require("description", "description: what its tools do")
	}
	set(&s.Description, o.text("description"))
	o.require("type", "type: command or type: http")
	set(&s.Type, o.enum("type", "a kind of server", MCPCommand, MCPHTTP))
	set(&s.Active, o.boolean("active"))
	d.mcpCommand(o, s)
	d.mcpHTTP(o, s)
	set(&s.Timeout, o.duration("timeout_seconds", time.Millisecond))
	set(&s.RetryAttempts, o.integer("retry_attempts", 0, 10))
	set(&s.ConnectionTTL, o.duration("connection_ttl", 0))
	s.Parameters = d.parameters(o)
	if t := o.block("tools"); !t.absent() {
		s.Tools = d.toolFilter(t)
	}
	s.Auth = d.auth(o.block("auth"), AuthEnv, AuthBearer, AuthBasic, AuthAPIKey, AuthNone)
	set(&s.Metadata, o.freeBlock("metadata"))
	d.rateLimiting(o.block("rate_limiting"), &s.RateLimit)
	if v := o.take("capabilities"); v != nil {
		s.Capabilities = v.plain()
	}
	o.free("capabilities", "name", "version", "author", "url", "license")
	o.when("type", MCPCommand, []string{"command"}, []string{"endpoint", "protocol", "method", "headers", "health_check"})
	o.when("type", MCPHTTP, []string{"endpoint"}, []string{"command", "args", "env", "cwd"})
	o.end()
	if o.n != nil {
		s.File, s.Line = o.n.file, o.n.at.line
	}
	return s
}

// mcpCommand reads the keys of a command, and refuses them elsewhere.
func (d *decoder) mcpCommand(o *object, s *MCPServer) {
	if s.Type == MCPCommand {
		o.require("command", "command: npx")
	}
	set(&s.Command, o.text("command"))
	set(&s.Args, o.args("args"))
	s.Env = o.envMap("env")
	set(&s.Cwd, o.text("cwd"))
	if s.Type == MCPHTTP {
		o.misplaced("a server of type http has an endpoint", "command", "args", "env", "cwd")
	}
}

func (d *decoder) mcpHTTP(o *object, s *MCPServer) {
	if s.Type == MCPHTTP {
		o.require("endpoint", "endpoint: https://host/mcp")
		if o.n != nil && o.take("endpoint") == nil && o.take("url") != nil {
			o.d.faults[len(o.d.faults)-1].Message += `; "url" is only for people`
		}
	}
	set(&s.Endpoint, o.url("endpoint"))
	set(&s.Protocol, o.text("protocol"))
	set(&s.Method, o.enum("method", "a method", "POST", "GET"))
	s.Headers = o.textMap("headers", func(name string, v *node, path string) bool {
		d.literalVariable(v, path, name)
		return true
	})
	h := o.block("health_check")
	set(&s.HealthCheck.Enabled, h.boolean("enabled"))
	set(&s.HealthCheck.Endpoint, h.text("endpoint"))
	set(&s.HealthCheck.Interval, h.duration("interval_seconds", time.Second))
	set(&s.HealthCheck.Timeout, h.duration("timeout_seconds", time.Millisecond))
	h.end()
	if s.Type == MCPCommand {
		o.misplaced("a server of type command is started, not called", "endpoint", "protocol", "method", "headers", "health_check")
	}
}

// parameters reads flat scalars that are given to every call.
func (d *decoder) parameters(o *object) map[string]any {
	out := map[string]any{}
	o.each("parameters", func(name string, s *slot) {
		if _, ok := s.text("text"); ok {
			out[name] = s.n.text
		}
		if v, ok := s.number(); ok {
			out[name] = v
			if i, whole := s.n.value.(int64); whole {
				out[name] = i
			}
		}
		if v, ok := s.boolean(); ok {
			out[name] = v
		}
		s.end()
	})
	return out
}

// toolFilter reads allow and deny, or whitelist and blacklist; each may be one
// glob or a list of globs.
func (d *decoder) toolFilter(o *object) ToolFilter {
	f := ToolFilter{
		Allow: d.globs(o.slot(o.alias("allow", "whitelist"))),
		Deny:  d.globs(o.slot(o.alias("deny", "blacklist"))),
	}
	o.either("allow", "deny", "whitelist", "blacklist")
	if o.n != nil && o.take("allow") == nil && o.take("whitelist") == nil && o.take("deny") == nil && o.take("blacklist") == nil {
		d.fault(o.n, o.path, RuleRequired, "holds neither allow nor deny; write tools: {allow: [name]} or leave it out")
	}
	o.end()
	return f
}

// globs reads one glob or a list of globs.
func (d *decoder) globs(s *slot) []string {
	var out []string
	add := func(s *slot) {
		if g, ok := s.text("a glob"); ok {
			if d.glob(s.n, s.path) {
				out = append(out, g)
			}
		}
	}
	add(s)
	s.list(func(_ int, item *slot) {
		add(item)
		item.end()
	})
	s.end()
	return out
}

// misplaced reports keys that have no meaning beside the block's type.
func (o *object) misplaced(why string, keys ...string) {
	for _, key := range keys {
		if o.take(key) == nil {
			continue
		}
		f := bad(&node{file: o.n.file, at: o.entry(key)}, o.key(key), RuleMisplaced, "has no place here: %s", why)
		f.Text = shorten(key)
		o.d.faults = append(o.d.faults, f)
	}
}

// args reads the arguments of a command: texts, numbers or booleans as written.
func (o *object) args(key string) read[[]string] {
	s := o.slot(key)
	var out []string
	listed := s.list(func(_ int, item *slot) {
		if t, ok := item.text("text"); ok {
			out = append(out, t)
		}
		if _, ok := item.number(); ok {
			out = append(out, item.n.text)
		}
		if _, ok := item.boolean(); ok {
			out = append(out, item.n.text)
		}
		item.end()
	})
	s.end()
	if !listed {
		return read[[]string]{schema: s.schema}
	}
	return read[[]string]{v: &out}
}

// envMap reads the variables of a command.
func (o *object) envMap(key string) map[string]string {
	return o.textMap(key, func(name string, v *node, path string) bool {
		if !envName().MatchString(name) {
			o.d.fault(v, path, RuleEnvName, "%q is no name of a variable; it has letters, digits and _", shorten(name))
			return false
		}
		o.d.literalVariable(v, path, name)
		return true
	})
}

// glob checks a shell glob.
func (d *decoder) glob(v *node, key string) bool {
	if strings.Count(v.text, "[") == strings.Count(v.text, "]") && v.text != "" {
		return true
	}
	d.fault(v, key, RuleGlob, "%q is no glob; it has names with * and ?, for example read_*", shown(v, key))
	return false
}
