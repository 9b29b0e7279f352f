package manifest

import "time"

// Memory is what a formation remembers. The blocks that are pointers are nil
// when absent: they are inert then.
type Memory struct {
	Buffer      Buffer
	Working     WorkingMemory
	Persistent  PersistentMemory
	Events      MemoryEvents
	Graph       MemoryGraph
	CaptainsLog CaptainsLog
	Lessons     Lessons
	Compaction  *Compaction
	Pruning     *Pruning
	Index       *MemoryIndex
	Lint        *MemoryLint
	Ingestion   *Ingestion
	Distillery  *Distillery
}

// Buffer is the short-term memory of a session.
type Buffer struct {
	Size           int // messages kept in full, 50; 0 turns the buffer off
	Multiplier     int // capacity is Size x Multiplier messages, 10
	VectorSearch   bool
	EmbeddingModel string // "provider/model" or "": the default local one
}

// Capacity returns how many messages the buffer covers, in full and summarised.
func (b Buffer) Capacity() int { return b.Size * b.Multiplier }

// The values of working.mode.
const (
	WorkingLocal  = "local"
	WorkingRemote = "remote"
)

// WorkingMemory bounds what is kept in memory.
type WorkingMemory struct {
	MaxMemoryMB     float64       // 0: auto, a tenth of the RAM
	FIFOInterval    time.Duration // 5m
	VectorDimension int           // a hint; 0: none
	Mode            string        // local
	RemoteURL       string        // postgres://…, "" the connection string of Persistent
	RemoteTenant    string        // "": the formation id
}

// PersistentMemory is the long-term memory.
type PersistentMemory struct {
	Enabled          bool   // true
	ConnectionString string // SQLite or PostgreSQL URI; "": memory.db in the state directory
	UserSynopsis     UserSynopsis
	QueryTimeout     time.Duration // 30s
}

// UserSynopsis is the short profile of a user in every turn.
type UserSynopsis struct {
	Enabled  bool          // true
	CacheTTL time.Duration // 1h, 60s-24h
}

// MemoryEvents is the log that everything else in memory can be made from.
type MemoryEvents struct {
	Enabled              bool          // true
	EventFirst           bool          // whether reads may lag
	MaxEventsPerUser     int           // alert only, 100000
	GracePeriod          time.Duration // until what was deleted is purged, 30 days
	Decay                Decay
	BatchSize            int           // of projections, 500
	LagAlertThreshold    time.Duration // 60s
	ProjectionApplyEvery time.Duration // 5s
}

// Decay lets what is old weigh less.
type Decay struct {
	Enabled         bool               // true
	DefaultHalfLife time.Duration      // 180 days
	VolatileTTL     time.Duration      // 24h
	HalfLives       map[string]float64 // days by relationship type
}

// MemoryGraph is what is known about whom and what.
type MemoryGraph struct {
	Enabled            bool // true
	Realtime           bool // true
	RealtimeConfidence float64
	Periodic           bool // true
	PeriodicConfidence float64
	PeriodicSchedule   Cadence // hourly
}

// CaptainsLog is the daily digest of a user's sessions.
type CaptainsLog struct {
	Enabled          bool    // true
	Schedule         Cadence // daily
	IncludeInContext int     // entries, 5
	// SessionIdle is how long a session rests before it is digested, 30m; 0:
	// never.
	SessionIdle time.Duration
}

// Lessons are rules that agents learned.
type Lessons struct {
	Enabled              bool // true
	ExtractDuringDigest  bool // true
	InjectTopN           int  // 20
	MaxPerAgent          int  // 50
	ConfidenceDecayPer30 float64
	ArchiveThreshold     float64
}

// Compaction digests what is about to leave the buffer.
type Compaction struct {
	FlushEnabled   bool    // true
	FlushThreshold float64 // of the buffer, 0.8
}

// Pruning shortens old tool results in the context.
type Pruning struct {
	Mode                 string // always, cache-ttl, never
	Strategy             string // soft_trim, hard_clear
	CacheTTL             time.Duration
	KeepLastNToolResults int
	SoftTrimMaxChars     int
}

// MemoryIndex is the table of contents in front of memory.
type MemoryIndex struct {
	Enabled              bool
	EntityCountThreshold int
	MaxTokens            int
	ArtifactCap          int
	RegenerateOn         []string
}

// MemoryLint looks for what is wrong in memory.
type MemoryLint struct {
	Enabled             bool
	Schedule            Cadence
	ConflictResolution  time.Duration // 7 days
	StaleArtifact       time.Duration // 90 days
	SupersededRetention time.Duration // 30 days
	OrphanCleanup       bool
}

// Cadence is how often something runs: a word or a period.
type Cadence struct {
	Word  string        // hourly, daily, weekly or ""
	Every time.Duration // when Word is ""
}

func (d *decoder) memory(o *object, m *Memory) {
	d.buffer(o.block("buffer"), &m.Buffer)
	d.working(o.block("working"), &m.Working)
	d.persistent(o.slot("persistent"), &m.Persistent)
	d.events(o.block("events"), &m.Events)
	// The siblings win over the same blocks in events.
	d.decay(o.block("decay"), &m.Events.Decay)
	d.projections(o.block("projections"), &m.Events)
	d.graph(o.block("graph"), &m.Graph)
	d.captainsLog(o.block("captains_log"), &m.CaptainsLog)
	d.lessons(o.block("lessons"), &m.Lessons)
	m.Compaction = d.compaction(o.block("compaction"))
	m.Pruning = d.pruning(o.block("pruning"))
	m.Index = d.memoryIndex(o.block("index"))
	m.Lint = d.memoryLint(o.block("lint"))
	m.Ingestion = d.ingestion(o.block("ingestion"))
	m.Distillery = d.distillery(o.block("distillery"))
	if o.n != nil && m.Distillery != nil && m.Distillery.Enabled && (!m.Persistent.Enabled || !m.Events.Enabled) {
		o.warnKey("distillery", RuleDistillery, "the distillery needs memory.persistent and memory.events; it answers 503 without them")
	}
	o.inert("memory")
	o.end()
}

func (d *decoder) buffer(o *object, b *Buffer) {
	set(&b.Size, o.integer("size", 0, 10_000))
	set(&b.Multiplier, o.integer("multiplier", 1, 1000))
	set(&b.VectorSearch, o.boolean("vector_search"))
	if id := d.modelID(o, "embedding_model", CapabilityEmbedding); id != "" {
		b.EmbeddingModel = id
	}
	o.inert("memory.buffer")
	o.end()
}

func (d *decoder) working(o *object, w *WorkingMemory) {
	s := o.slot("max_memory_mb")
	if n, ok := s.number(); ok {
		w.MaxMemoryMB = n
		if n < 1 {
			d.fault(s.n, s.path, RuleRange, "is %s; it is at least 1, or auto", s.n.text)
		}
	}
	if s.schema != nil {
		bounds(s.schema, 1, mostCount)
		s.schema.Pattern = "^auto$"
	}
	if word, ok := s.text("auto"); ok && word != "auto" {
		d.enumFault(s.n, s.path, "an amount of memory", []string{"auto"})
	}
	s.end()
	set(&w.FIFOInterval, o.span("fifo_interval_min", time.Minute, time.Second))
	set(&w.VectorDimension, o.integer("vector_dimension", 1, 65_536))
	set(&w.Mode, o.enum("mode", "a mode", WorkingLocal, WorkingRemote))
	r := o.block("remote")
	set(&w.RemoteURL, r.text("url"))
	d.storeURL(r.take("url"), r.key("url"))
	set(&w.RemoteTenant, r.text("tenant"))
	r.end()
	o.end()
}

func (d *decoder) persistent(s *slot, p *PersistentMemory) {
	if on, ok := s.boolean(); ok {
		p.Enabled = on
	}
	if o := s.block(); o != nil {
		set(&p.Enabled, o.boolean("enabled"))
		set(&p.ConnectionString, o.text("connection_string"))
		d.connection(o.take("connection_string"), o.key("connection_string"))
		u := o.block("user_synopsis")
		set(&p.UserSynopsis.Enabled, u.boolean("enabled"))
		set(&p.UserSynopsis.CacheTTL, u.between("cache_ttl", time.Minute, 24*time.Hour))
		u.end()
		set(&p.QueryTimeout, o.duration("query_timeout_seconds", time.Millisecond))
		o.end()
	}
	s.end()
}

func (d *decoder) events(o *object, e *MemoryEvents) {
	set(&e.Enabled, o.boolean("enabled"))
	set(&e.EventFirst, o.boolean("event_first"))
	r := o.block("retention")
	set(&e.MaxEventsPerUser, r.integer("max_events_per_user", 1, unlimited))
	set(&e.GracePeriod, r.span("grace_period_days", day, 0))
	r.end()
	d.decay(o.block("decay"), &e.Decay)
	d.projections(o.block("projections"), e)
	o.end()
}

func (d *decoder) decay(o *object, c *Decay) {
	set(&c.Enabled, o.boolean("enabled"))
	set(&c.DefaultHalfLife, o.span("default_half_life_days", day, time.Second))
	set(&c.VolatileTTL, o.span("volatile_default_ttl_hours", time.Hour, time.Second))
	o.each("half_lives", func(name string, s *slot) {
		days, ok := s.number()
		if s.schema != nil {
			zero := 0.0
			s.schema.ExclusiveMinimum = &zero
		}
		switch {
		case ok && days > 0:
			if c.HalfLives == nil {
				c.HalfLives = map[string]float64{}
			}
			c.HalfLives[name] = days
		case ok:
			d.fault(s.n, s.path, RuleRange, "is %s; a half-life is a number of days above 0", s.n.text)
		}
		s.end()
	})
	o.endStrict()
}

func (d *decoder) projections(o *object, e *MemoryEvents) {
	set(&e.BatchSize, o.integer("batch_size", 1, 100_000))
	set(&e.LagAlertThreshold, o.duration("lag_alert_threshold_seconds", time.Millisecond))
	set(&e.ProjectionApplyEvery, o.duration("apply_interval_seconds", time.Millisecond))
	o.end()
}

func (d *decoder) graph(o *object, g *MemoryGraph) {
	set(&g.Enabled, o.boolean("enabled"))
	e := o.block("extraction")
	set(&g.Realtime, e.boolean("realtime"))
	set(&g.RealtimeConfidence, e.float("realtime_confidence", 0, 1))
	set(&g.Periodic, e.boolean("periodic"))
	set(&g.PeriodicConfidence, e.float("periodic_confidence", 0, 1))
	d.cadence(e.slot("periodic_schedule"), &g.PeriodicSchedule, "hourly", "daily")
	e.end()
	o.end()
}

func (d *decoder) captainsLog(o *object, c *CaptainsLog) {
	set(&c.Enabled, o.boolean("enabled"))
	d.cadence(o.slot("schedule"), &c.Schedule, "hourly", "daily", "weekly")
	s := o.slot("include_in_context")
	if n, ok := s.number(); ok {
		c.IncludeInContext = int(min(max(n, 0), 1000))
		if n < 0 || n > 1000 {
			d.rangeFault(s.n, s.path, 0, 1000)
		}
	}
	if on, ok := s.boolean(); ok && !on {
		c.IncludeInContext = 0
	}
	bounds(s.schema, 0, 1000)
	s.end()
	idle := o.slot("session_idle_minutes")
	if idle.off() {
		c.SessionIdle = 0
	}
	d.spanSlot(idle, time.Minute, &c.SessionIdle)
	idle.end()
	o.end()
}

func (d *decoder) lessons(o *object, l *Lessons) {
	set(&l.Enabled, o.boolean("enabled"))
	set(&l.ExtractDuringDigest, o.boolean("extract_during_digest"))
	set(&l.InjectTopN, o.integer("inject_top_n", 0, 1000))
	set(&l.MaxPerAgent, o.integer("max_per_agent", 1, 100_000))
	set(&l.ConfidenceDecayPer30, o.float("confidence_decay_per_30d", 0, 1))
	set(&l.ArchiveThreshold, o.float("archive_threshold", 0, 1))
	o.end()
}

func (d *decoder) compaction(o *object) *Compaction {
	if o.absent() {
		return nil
	}
	c := &Compaction{FlushEnabled: true, FlushThreshold: 0.8}
	set(&c.FlushEnabled, o.boolean("flush_enabled"))
	set(&c.FlushThreshold, o.fraction("flush_threshold"))
	o.endStrict()
	return c
}

func (d *decoder) pruning(o *object) *Pruning {
	if o.absent() {
		return nil
	}
	p := &Pruning{Mode: "cache-ttl", Strategy: "soft_trim", CacheTTL: 300 * time.Second, KeepLastNToolResults: 3, SoftTrimMaxChars: 4000}
	set(&p.Mode, o.enum("mode", "a mode", "always", "cache-ttl", "never"))
	set(&p.Strategy, o.enum("strategy", "a strategy", "soft_trim", "hard_clear"))
	set(&p.CacheTTL, o.duration("cache_ttl_seconds", time.Millisecond))
	set(&p.KeepLastNToolResults, o.integer("keep_last_n_tool_results", 0, unlimited))
	set(&p.SoftTrimMaxChars, o.integer("soft_trim_max_chars", 1, unlimited))
	o.endStrict()
	return p
}

func (d *decoder) memoryIndex(o *object) *MemoryIndex {
	if o.absent() {
		return nil
	}
	occasions := []string{"artifact_save", "entity_count_threshold", "lint", "log_entry"}
	i := &MemoryIndex{Enabled: true, EntityCountThreshold: 10, MaxTokens: 300, ArtifactCap: 20, RegenerateOn: occasions}
	set(&i.Enabled, o.boolean("enabled"))
	set(&i.EntityCountThreshold, o.integer("entity_count_threshold", 1, unlimited))
	set(&i.MaxTokens, o.integer("max_tokens", 1, unlimited))
	set(&i.ArtifactCap, o.integer("artifact_cap", 1, unlimited))
	set(&i.RegenerateOn, o.enums("regenerate_on", "an occasion", occasions...))
	o.endStrict()
	return i
}

func (d *decoder) memoryLint(o *object) *MemoryLint {
	if o.absent() {
		return nil
	}
	l := &MemoryLint{
		Enabled: true, Schedule: Cadence{Word: "daily"}, ConflictResolution: 7 * day, StaleArtifact: 90 * day,
		SupersededRetention: 30 * day, OrphanCleanup: true,
	}
	set(&l.Enabled, o.boolean("enabled"))
	d.cadence(o.slot("schedule"), &l.Schedule, "daily", "weekly")
	set(&l.ConflictResolution, o.span("conflict_resolution_days", day, time.Second))
	set(&l.StaleArtifact, o.span("stale_artifact_days", day, time.Second))
	set(&l.SupersededRetention, o.span("superseded_retention_days", day, time.Second))
	set(&l.OrphanCleanup, o.boolean("orphan_cleanup"))
	o.endStrict()
	return l
}
