package manifest

import "time"

// Ingestion says what becomes of items that developers send to memory.
type Ingestion struct {
	Sources            map[string]IngestionSource
	TiersEnabled       bool    // true
	AmbiguityMargin    float64 // 0.05
	T3SignalScore      float64 // 5
	ModelT2            string  // "": the extraction model
	ModelT3            string  // "": ModelT2
	T2ItemsPerJob      int     // 100
	T3ItemsPerJob      int     // 10
	MaxInFlightPerUser int     // jobs, 4
	EntityResolution   EntityResolution
	SynthesisHot       Synthesis // 5m
	SynthesisWarm      Synthesis // 1h
	SynthesisCold      Synthesis // 24h
	SynthesisColdCold  Synthesis // 7 days
	PatternsEnabled    bool      // true
	PatternsMinEvents  int       // 20
	PatternsTopK       int       // 3
}

// IngestionSource is how one source's items are filtered.
type IngestionSource struct {
	Filter string // strict, lenient, off
	Tier   int    // 1-3; 0: decided per item
}

// EntityResolution merges names of one thing.
type EntityResolution struct {
	Enabled            bool // true
	AutoMergeThreshold float64
	FlagThreshold      float64 // at most AutoMergeThreshold
	EntityTypes        []string
	MaxEntities        int
}

// Synthesis is one cadence of thinking about what is remembered.
type Synthesis struct {
	Enabled  bool
	Interval time.Duration
}

// Distillery is what outside distilleries may send.
type Distillery struct {
	Enabled             bool
	DefaultTrustLevel   string // provisional, verified
	DefaultMaxBatchSize int
	DefaultMaxPerDay    int
	SignatureMaxAge     time.Duration
}

func (d *decoder) ingestion(o *object) *Ingestion {
	if o.absent() {
		return nil
	}
	i := &Ingestion{
		Sources: map[string]IngestionSource{}, TiersEnabled: true, AmbiguityMargin: 0.05, T3SignalScore: 5,
		T2ItemsPerJob: 100, T3ItemsPerJob: 10, MaxInFlightPerUser: 4,
		EntityResolution: EntityResolution{Enabled: true, AutoMergeThreshold: 0.85, FlagThreshold: 0.5, EntityTypes: []string{"person"}, MaxEntities: 200},
		SynthesisHot:     Synthesis{true, 300 * time.Second}, SynthesisWarm: Synthesis{true, time.Hour},
		SynthesisCold: Synthesis{true, 24 * time.Hour}, SynthesisColdCold: Synthesis{true, 7 * day},
		PatternsEnabled: true, PatternsMinEvents: 20, PatternsTopK: 3,
	}
	o.each("sources", func(name string, s *slot) {
		if b := s.block(); b != nil {
			src := IngestionSource{Filter: "strict"}
			set(&src.Filter, b.enum("filter", "a filter", "strict", "lenient", "off"))
			set(&src.Tier, b.integer("tier", 1, 3))
			b.end()
			i.Sources[name] = src
		}
		s.end()
	})
	d.tiers(o.block("tiers"), i)
	set(&i.MaxInFlightPerUser, o.integer("max_in_flight_per_user", 1, unlimited))
	d.entityResolution(o.block("entity_resolution"), &i.EntityResolution)
	s := o.block("synthesis")
	for _, c := range []struct {
		key string
		dst *Synthesis
	}{{"hot", &i.SynthesisHot}, {"warm", &i.SynthesisWarm}, {"cold", &i.SynthesisCold}, {"cold_cold", &i.SynthesisColdCold}} {
		b := s.block(c.key)
		set(&c.dst.Enabled, b.boolean("enabled"))
		set(&c.dst.Interval, b.duration("interval_seconds", time.Second))
		b.end()
	}
	s.end()
	p := o.block("patterns")
	set(&i.PatternsEnabled, p.boolean("enabled"))
	set(&i.PatternsMinEvents, p.integer("min_events", 1, unlimited))
	set(&i.PatternsTopK, p.integer("top_k", 1, unlimited))
	p.end()
	o.end()
	return i
}

func (d *decoder) tiers(o *object, i *Ingestion) {
	set(&i.TiersEnabled, o.boolean("enabled"))
	set(&i.AmbiguityMargin, o.float("ambiguity_margin", 0, 1))
	set(&i.T3SignalScore, o.float("t3_signal_score", 0, 10))
	m := o.block("models")
	i.ModelT2 = d.modelID(m, "t2", CapabilityText)
	i.ModelT3 = d.modelID(m, "t3", CapabilityText)
	m.end()
	b := o.block("budget")
	set(&i.T2ItemsPerJob, b.integer("t2_items_per_job", 0, unlimited))
	set(&i.T3ItemsPerJob, b.integer("t3_items_per_job", 0, unlimited))
	b.end()
	o.end()
}

func (d *decoder) entityResolution(o *object, e *EntityResolution) {
	set(&e.Enabled, o.boolean("enabled"))
	set(&e.AutoMergeThreshold, o.float("auto_merge_threshold", 0, 1))
	set(&e.FlagThreshold, o.float("flag_threshold", 0, 1))
	if e.FlagThreshold > e.AutoMergeThreshold {
		o.faultAt("flag_threshold", "auto_merge_threshold", RuleRange,
			"flag_threshold is %g, above auto_merge_threshold %g; what is merged is never flagged", e.FlagThreshold, e.AutoMergeThreshold)
	}
	set(&e.EntityTypes, o.texts("entity_types"))
	set(&e.MaxEntities, o.integer("max_entities", 1, unlimited))
	o.end()
}

func (d *decoder) distillery(o *object) *Distillery {
	if o.absent() {
		return nil
	}
	c := &Distillery{
		Enabled: true, DefaultTrustLevel: "provisional", DefaultMaxBatchSize: 10_000, DefaultMaxPerDay: 1_000_000,
		SignatureMaxAge: 300 * time.Second,
	}
	set(&c.Enabled, o.boolean("enabled"))
	set(&c.DefaultTrustLevel, o.enum("default_trust_level", "a level of trust", "provisional", "verified"))
	set(&c.DefaultMaxBatchSize, o.integer("default_max_batch_size", 1, unlimited))
	set(&c.DefaultMaxPerDay, o.integer("default_max_events_per_day", 1, unlimited))
	set(&c.SignatureMaxAge, o.duration("signature_max_age_seconds", time.Second))
	o.end()
	return c
}
