package manifest

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentformation/service/pkg/fault"
)

var (
	formationID  = lazily(`^[a-z0-9][a-z0-9-]{1,48}[a-z0-9]$`)
	versionShape = lazily(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)
)

// CheckID reports why id can't name a formation, nil when it can. The error is
// a fault.Error, Invalid.
func CheckID(id string) error {
	if !formationID().MatchString(id) {
		return fault.Errorf(fault.Invalid, "", "a formation id has 3 to 50 of a-z, 0-9 and -, and neither starts nor ends with -")
	}
	if slices.Contains(reservedIDs(), id) {
		return fault.Errorf(fault.Invalid, "", "the formation id %q is reserved; choose another", id)
	}
	return nil
}

// reservedIDs are routes of the server.
func reservedIDs() []string {
	return []string{"health", "ping", "rpc", "server", "admin", "metrics", "api", "draft", "mcp", "docs", "console", "all"}
}

// formation reads the manifest's root except its agents and what else stands
// in files of its own.
func (d *decoder) formation(o *object, f *Formation) {
	d.head(o, f)
	d.server(o.block("server"), &f.Server)
	d.inputLimits(o.block("input_limits"), &f.InputLimits)
	d.llmBlock(o.block("llm"), &f.LLM)
	d.budgets(o.block("budgets"), &f.Budgets)
	d.overlord(o.block("overlord"), f)
	d.async(o.block("async"), &f.Async)
	d.memory(o.block("memory"), &f.Memory)
	d.logging(o.block("logging"), &f.Logging)
	f.Scheduler = d.scheduler(o.block("scheduler"))
	d.a2a(o.block("a2a"), &f.A2A)
	d.mcp(o.block("mcp"), &f.MCP)
	d.mcps(o, &f.MCP)
	d.rce(o.block("rce"), &f.RCE)
	d.runtime(o.slot("runtime"), &f.Runtime)
	d.userCredentials(o.block("user_credentials"), &f.UserCredentials)
	d.skillsBlock(o.slot("skills"), f)
	f.Middleware = d.middleware(o.block("middleware"))
	d.rbac(o.block("rbac"), &f.RBAC)
	f.Proactive = d.proactive(o.block("proactive"))
	f.Commands = d.commands(o.block("commands"))
	f.Tuning = d.tuning(o.slot("tuning"))
	f.Coding = d.coding(o.block("coding"))
	d.artifacts(o.block("artifacts"), &f.Artifacts)
	f.Links = d.links(o)
	o.inert("")
	o.free("extensions")
}

func (d *decoder) head(o *object, f *Formation) {
	d.schemaOf(o, &f.Schema, true)
	o.require("id", "id: my-formation")
	id := o.word("id")
	if id.schema != nil {
		id.schema.Pattern, id.schema.Not = formationID().String(), &jsonschema.Schema{Enum: anySlice(reservedIDs())}
	}
	if id.v != nil && *id.v != "" {
		f.ID = *id.v
		if err := CheckID(f.ID); err != nil {
			d.fault(o.n.get("id"), "id", RuleFormationID, "%s", err.Error())
			d.faults[len(d.faults)-1].Suggestion = nearID(f.ID)
		}
	}
	f.Name = f.ID
	set(&f.Name, o.text("name"))
	o.require("description", "description: what this formation is for")
	set(&f.Description, o.text("description"))
	version := o.word("version")
	patterned(version.schema, versionShape().String())
	if v := version.v; v != nil {
		f.Version = *v
		if !versionShape().MatchString(*v) {
			d.fault(o.n.get("version"), "version", RuleVersion, "%q is no version; write it like 1.4.0", shorten(*v))
		}
	}
	set(&f.Author, o.text("author"))
	set(&f.URL, o.text("url"))
	set(&f.License, o.text("license"))
	set(&f.Init, o.text("init"))
}

// nearID turns a title into an id, "" when that gives none.
func nearID(s string) string {
	id := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r == ' ', r == '_', r == '.':
			return '-'
		}
		return -1
	}, strings.ToLower(s)), "-")
	if CheckID(id) != nil || id == s {
		return ""
	}
	return id
}

// schemaOf checks the schema version of a file; what stands inline needs none.
func (d *decoder) schemaOf(o *object, dst *string, required bool) {
	*dst = SchemaVersion
	if required {
		o.require("schema", `schema: "`+SchemaVersion+`"`)
	}
	if s := o.note("schema", "string"); s != nil {
		s.Enum = []any{SchemaVersion, nil}
	}
	v := o.take("schema")
	if v == nil || v.kind == kindText && (v.text == SchemaVersion || v.text == "" && required) {
		return
	}
	d.fault(v, o.key("schema"), RuleSchema, `%q is no supported schema; write schema: %q`, shown(v, "schema"), SchemaVersion)
}

func (d *decoder) server(o *object, s *Server) {
	set(&s.Host, o.text("host"))
	set(&s.Port, o.integer("port", 1, 65535))
	set(&s.AccessLog, o.boolean("access_log"))
	keys := o.block("api_keys")
	set(&s.AdminKey, keys.secret("admin_key"))
	set(&s.ClientKey, keys.secret("client_key"))
	keys.end()
	o.removed("auth", "set server.api_keys.admin_key and server.api_keys.client_key")
	l := o.block("limits")
	set(&s.Limits.RequestsPerMinute, l.integer("requests_per_minute", 1, unlimited))
	set(&s.Limits.Burst, l.integer("burst", 1, unlimited))
	if s.Limits.Burst > 0 && s.Limits.RequestsPerMinute == 0 {
		l.faultAt("burst", "", RuleNeeds, "needs requests_per_minute, without which nothing is limited")
	}
	l.end()
	o.end()
}

func (d *decoder) inputLimits(o *object, l *InputLimits) {
	set(&l.MaxMessageLength, o.integer("max_message_length", 1, unlimited))
	set64(&l.MaxFileSizeBytes, o.integer("max_file_size_bytes", 1, mostCount))
	set(&l.MaxMemoryEntrySize, o.integer("max_memory_entry_size", 1, unlimited))
	set(&l.MaxToolOutputSize, o.integer("max_tool_output_size", 1, unlimited))
	set(&l.MaxBatchItems, o.integer("max_batch_items", 1, unlimited))
	o.inert("input_limits")
	o.end()
}

func (d *decoder) async(o *object, a *Async) {
	set(&a.Mode, o.enum("mode", "a mode", ModeAuto, ModeSync, ModeAsync))
	set(&a.Threshold, o.duration("threshold_seconds", 0))
	set(&a.EnableEstimation, o.boolean("enable_estimation"))
	set(&a.ResultTTL, o.duration("result_ttl", time.Second))
	set(&a.OnDisconnect, o.enum("on_disconnect", "a reaction", DisconnectContinue, DisconnectCancel))
	set(&a.WebhookURL, o.url("webhook_url"))
	set(&a.WebhookRetries, o.integer("webhook_retries", 0, 100))
	set(&a.WebhookTimeout, o.duration("webhook_timeout", time.Millisecond))
	set(&a.WebhookSecret, o.secret("webhook_secret"))
	o.inert("async")
	o.end()
}

// mcps reads the older place of mcp.servers.
func (d *decoder) mcps(o *object, _ *MCP) {
	b := o.block("mcps")
	b.slot("servers") // read with the files it names
	b.end()
}

// skillsBlock reads {disable_builtin: [...]}, or an older list of names.
func (d *decoder) skillsBlock(s *slot, f *Formation) {
	if o := s.block(); o != nil {
		set(&f.DisabledSkills, o.enums("disable_builtin", "a built-in skill", builtinSkills()...))
		o.end()
	}
	s.list(func(_ int, item *slot) {
		item.text("the name of a skill")
		item.end()
	})
	s.end()
}

// builtinSkills are the skills that a formation has without a file.
func builtinSkills() []string { return []string{"file-generation", "compute", "generative-ui"} }

// prompts warns about secrets in texts that a model reads, and about
// placeholders of users where nothing resolves them: inServer tells whether one
// stands in a tool server.
func (d *decoder) prompts(refs []Ref, inServer func(Ref) bool) {
	prompt := regexp.MustCompile(`(^|\.)(description|system_message|soul|persona|name|specialization\..*|system_behavior\..*)$`)
	for _, r := range refs {
		n := &node{file: r.File, at: place{r.Line, r.Col}}
		switch {
		case r.Kind == KindUser && !inServer(r):
			d.warn(n, r.Key, RuleNoEffect, "%q placeholders have an effect in tool servers only", KindUser)
		case r.Kind == KindSecret && prompt.MatchString(r.Key):
			d.warn(n, r.Key, RuleSecretPrompt, "the secret %s would be shown to a model here", r.Name)
		}
	}
}

// withoutModel warns when agents have nothing to answer with.
func (d *decoder) withoutModel(root *node, f *Formation) {
	var ids []string
	for i := range f.Agents {
		if f.Agents[i].Model(f) == "" {
			ids = append(ids, f.Agents[i].ID)
		}
	}
	if ids != nil {
		d.warn(root, "llm.models", RuleNoModel, "no text model, so these agents can't answer: %s; write llm.models: [{text: provider/model}]",
			shorten(strings.Join(ids, ", ")))
	}
}
