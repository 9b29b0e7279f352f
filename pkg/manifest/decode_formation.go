package manifest

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

var (
	formationID  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,48}[a-z0-9]$`)
	versionShape = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)
)

// CheckID reports why id can't name a formation, nil when it can. The error is
// a fault.Error, Invalid.
func CheckID(id string) error {
	if !formationID.MatchString(id) {
		return fault.Errorf(fault.Invalid, "", "a formation id has 3 to 50 of a-z, 0-9 and -, and neither starts nor ends with -")
	}
	reserved := []string{
		"health", "ping", "rpc", "server", "admin", "metrics", "api", "draft", "mcp", "docs", "console", "all",
	}
	if slices.Contains(reserved, id) {
		return fault.Errorf(fault.Invalid, "", "the formation id %q is reserved; choose another", id)
	}
	return nil
}

// laterKeys are documented keys of the manifest that nothing reads yet.
func laterKeys() []string {
	return []string{
		"runtime", "svc_runtime", "budgets", "logging", "scheduler", "a2a", "mcp", "mcps", "rce", "user_credentials",
		"skills", "middleware", "rbac", "proactive", "commands", "tuning", "coding", "artifacts", "links",
		"executor", "document_processing", "triggers", "knowledge",
	}
}

// formation reads the manifest's root except its agents.
func (d *decoder) formation(o *object, f *Formation) {
	d.head(o, f)
	d.server(o.block("server"), &f.Server)
	d.inputLimits(o.block("input_limits"), &f.InputLimits)
	d.llmBlock(o.block("llm"), &f.LLM)
	d.overlord(o.block("overlord"), f)
	d.async(o.block("async"), &f.Async)
	d.memory(o.block("memory"), &f.Memory)
	o.inert(laterKeys()...)
	o.free("extensions")
}

func (d *decoder) head(o *object, f *Formation) {
	d.schema(o, &f.Schema, true)
	o.require("id", "id: my-formation")
	if id := o.word("id"); id != nil && *id != "" {
		f.ID = *id
		if err := CheckID(f.ID); err != nil {
			d.fault(o.n.get("id"), "id", RuleFormationID, "%s", err.Error())
		}
	}
	f.Name = f.ID
	set(&f.Name, o.text("name"))
	o.require("description", "description: what this formation is for")
	set(&f.Description, o.text("description"))
	if v := o.word("version"); v != nil {
		f.Version = *v
		if !versionShape.MatchString(*v) {
			d.fault(o.n.get("version"), "version", RuleVersion, "%q is no version; write it like 1.4.0", shorten(*v))
		}
	}
	set(&f.Author, o.text("author"))
	set(&f.URL, o.text("url"))
	set(&f.License, o.text("license"))
	set(&f.Init, o.text("init"))
}

// schema checks the schema version of a file; an inline agent needs none.
func (d *decoder) schema(o *object, dst *string, required bool) {
	*dst = SchemaVersion
	if required {
		o.require("schema", `schema: "`+SchemaVersion+`"`)
	}
	v := o.take("schema")
	if v == nil || v.kind == kindText && (v.text == SchemaVersion || v.text == "") {
		return
	}
	d.fault(v, o.key("schema"), RuleSchema, `%q is no supported schema; write schema: %q`, shown(v, "schema"), SchemaVersion)
}

func (d *decoder) server(o *object, s *Server) {
	set(&s.Host, o.text("host"))
	set(&s.Port, o.integer("port", 1, 65535))
	set(&s.AccessLog, o.boolean("access_log"))
	keys := o.block("api_keys")
	set(&s.AdminKey, keys.text("admin_key"))
	set(&s.ClientKey, keys.text("client_key"))
	for _, key := range []string{"admin_key", "client_key"} {
		d.literal(keys.take(key), keys.key(key))
	}
	keys.end()
	o.removed("auth", "set server.api_keys.admin_key and server.api_keys.client_key")
	o.inert("limits")
	o.end()
}

func (d *decoder) inputLimits(o *object, l *InputLimits) {
	set(&l.MaxMessageLength, o.integer("max_message_length", 1, unlimited))
	size := int(l.MaxFileSizeBytes)
	set(&size, o.integer("max_file_size_bytes", 1, unlimited))
	l.MaxFileSizeBytes = int64(size)
	set(&l.MaxMemoryEntrySize, o.integer("max_memory_entry_size", 1, unlimited))
	set(&l.MaxToolOutputSize, o.integer("max_tool_output_size", 1, unlimited))
	set(&l.MaxBatchItems, o.integer("max_batch_items", 1, unlimited))
	o.inert("max_file_size_bytes", "max_memory_entry_size", "max_tool_output_size", "max_batch_items")
	o.end()
}

func (d *decoder) overlord(o *object, f *Formation) {
	set(&f.Soul, o.text(o.alias("soul", "persona")))
	llm := o.block("llm")
	f.Overlord.LLM.Model = d.modelID(llm, llm.alias("model", "text"), CapabilityText)
	f.Overlord.LLM.Settings = d.settings(llm.block("settings"))
	llm.inert("base", "synthesis", "max_extraction_tokens")
	llm.end()
	caching := o.block("caching")
	set(&f.Overlord.Caching.Enabled, caching.boolean("enabled"))
	set(&f.Overlord.Caching.TTL, caching.duration("ttl", time.Second))
	caching.end()
	r := o.block("response")
	set(&f.Overlord.Response.Format, r.enum("format", "a response format", FormatMarkdown, FormatText, FormatJSON, FormatHTML))
	set(&f.Overlord.Response.Streaming, r.boolean("streaming"))
	set(&f.Overlord.Response.StreamTokens, r.boolean("stream_tokens"))
	set(&f.Overlord.Response.Progress, r.boolean("progress"))
	r.inert("widgets", "retry_async")
	r.end()
	o.inert("routing", "clarification", "workflow")
	o.end()
}

func (d *decoder) async(o *object, a *Async) {
	set(&a.Mode, o.enum("mode", "a mode", ModeAuto, ModeSync, ModeAsync))
	set(&a.Threshold, o.duration("threshold_seconds", 0))
	set(&a.EnableEstimation, o.boolean("enable_estimation"))
	set(&a.ResultTTL, o.duration("result_ttl", time.Second))
	set(&a.OnDisconnect, o.enum("on_disconnect", "a reaction", DisconnectContinue, DisconnectCancel))
	o.inert("webhook_url", "webhook_retries", "webhook_timeout", "webhook_secret")
	o.end()
}

func (d *decoder) memory(o *object, m *Memory) {
	d.buffer(o.block("buffer"), &m.Buffer)
	o.inert("working", "persistent", "events", "decay", "projections", "graph", "captains_log", "lessons",
		"compaction", "pruning", "index", "lint", "ingestion", "distillery")
	o.end()
}

func (d *decoder) buffer(o *object, b *Buffer) {
	set(&b.Size, o.integer("size", 0, 10_000))
	set(&b.Multiplier, o.integer("multiplier", 1, 1000))
	o.inert("vector_search", "embedding_model")
	o.end()
}

// prompts warns about secrets in texts that a model reads, and about
// placeholders that nothing resolves yet.
func (d *decoder) prompts(refs []Ref) {
	prompt := regexp.MustCompile(`(^|\.)(description|system_message|soul|persona|name|specialization\..*|system_behavior\..*)$`)
	for _, r := range refs {
		n := &node{file: r.File, at: place{r.Line, r.Col}}
		switch {
		case r.Kind == KindUser:
			d.warn(n, r.Key, RuleNoEffect, "%q placeholders have no effect in this release", KindUser)
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
