package manifest

import "time"

// DefaultSoul is the voice of a formation that brings none.
const DefaultSoul = "You are part of a team of assistants. Be helpful, accurate and honest; say so when you do not know."

// Overlord configures routing and the shape of answers.
type Overlord struct {
	LLM           OverlordLLM
	Caching       Caching
	Routing       Routing
	Response      Response
	Clarification Clarification
	Workflow      Workflow
}

// OverlordLLM is the model the overlord itself thinks with; without Model it
// is the formation's text model.
type OverlordLLM struct {
	Model    string
	Settings Overrides
	// Base replaces Model when it is written as a block with its own key.
	Base Model
	// Synthesis is the model that words the final answer, "" the overlord's.
	Synthesis           Model
	MaxExtractionTokens int // 500
}

// Caching bounds how long a routing decision may be reused.
type Caching struct {
	Enabled bool          // true
	TTL     time.Duration // 1h
}

// The response formats.
const (
	FormatMarkdown = "markdown"
	FormatText     = "text"
	FormatJSON     = "json"
	FormatHTML     = "html"
)

// Response says how a turn is answered.
type Response struct {
	Format       string // markdown
	Streaming    bool   // false: without a wish of the caller the answer is JSON
	StreamTokens bool   // true; see Deltas for the effective value
	Progress     bool   // true: progress events are shown
	Widgets      bool   // true
	RetryAsync   RetryAsync
}

// Deltas tells whether content deltas are streamed: stream_tokens is on and
// the format can be shown piece by piece.
func (r Response) Deltas() bool {
	return r.StreamTokens && r.Format != FormatJSON && r.Format != FormatHTML
}

// RetryAsync escalates a turn that failed for good into background attempts.
type RetryAsync struct {
	Enabled            bool          // true
	MaxAttempts        int           // in the background, 1-10, 2
	AttemptIdleTimeout time.Duration // 15m without progress
	Deadline           time.Duration // of all attempts from the second on; 0: none
}

// Clarification bounds the questions that are asked back.
type Clarification struct {
	Enabled            bool   // true
	Style              string // conversational
	PersistLearnedInfo bool
	MaxRounds          ClarificationRounds
}

// ClarificationRounds is the most questions per kind of request.
type ClarificationRounds struct {
	Direct     int // 3
	Brainstorm int // 10
	Planning   int // 7
	Execution  int // 3
	Other      int // 3
}

// Workflow bounds how a request is split into tasks.
type Workflow struct {
	AutoDecomposition     bool               // true
	ComplexityThreshold   float64            // 1-10, 7
	PlanApprovalThreshold int                // 1-10, 8
	ComplexityMethod      string             // heuristic
	ComplexityWeights     map[string]float64 // sum 1
	RoutingStrategy       string             // capability_based
	EnableAgentAffinity   bool               // true
	ErrorRecovery         string             // retry_with_backoff
	Retry                 WorkflowRetry
	Timeouts              WorkflowTimeouts
	MaxTimeout            time.Duration // 7200s
	ParallelExecution     bool          // true
	MaxParallelTasks      int           // 1-20, 5
	PartialResults        bool          // true
	Replanning            Replanning
}

// WorkflowRetry spaces the attempts of one task.
type WorkflowRetry struct {
	MaxAttempts   int           // 1-10, 3
	InitialDelay  time.Duration // 1s
	MaxDelay      time.Duration // 60s
	BackoffFactor float64       // 2
	RetryOnErrors []string      // timeout, rate_limit, temporary_failure
}

// WorkflowTimeouts bound a workflow and its parts.
type WorkflowTimeouts struct {
	Task           time.Duration // 300s
	Workflow       time.Duration // 3600s, at most Workflow.MaxTimeout
	Phase          time.Duration // 600s
	EnableAdaptive bool          // true
	Multiplier     float64       // 1.5
}

// Replanning makes a new plan when a task failed for good.
type Replanning struct {
	Enabled                   bool
	MaxAttempts               int           // 1-10, 3
	PlanSimilarityThreshold   float64       // 0.7
	PreserveSuccessfulOutputs bool          // true
	Timeout                   time.Duration // 30s
	NonReplannable            []string      // patterns of errors
}

func defaultOverlord() Overlord {
	return Overlord{
		LLM:     OverlordLLM{MaxExtractionTokens: 500},
		Caching: Caching{Enabled: true, TTL: time.Hour},
		Routing: defaultRouting(),
		Response: Response{
			Format: FormatMarkdown, StreamTokens: true, Progress: true, Widgets: true,
			RetryAsync: RetryAsync{Enabled: true, MaxAttempts: 2, AttemptIdleTimeout: 15 * time.Minute},
		},
		Clarification: Clarification{
			Enabled: true, Style: "conversational",
			MaxRounds: ClarificationRounds{Direct: 3, Brainstorm: 10, Planning: 7, Execution: 3, Other: 3},
		},
		Workflow: Workflow{
			AutoDecomposition: true, ComplexityThreshold: 7, PlanApprovalThreshold: 8, ComplexityMethod: "heuristic",
			ComplexityWeights: map[string]float64{"heuristic": 0.4, "llm": 0.4, "custom": 0.2},
			RoutingStrategy:   "capability_based", EnableAgentAffinity: true, ErrorRecovery: "retry_with_backoff",
			Retry: WorkflowRetry{
				MaxAttempts: 3, InitialDelay: time.Second, MaxDelay: time.Minute, BackoffFactor: 2,
				RetryOnErrors: []string{"timeout", "rate_limit", "temporary_failure"},
			},
			Timeouts: WorkflowTimeouts{
				Task: 300 * time.Second, Workflow: time.Hour, Phase: 600 * time.Second, EnableAdaptive: true, Multiplier: 1.5,
			},
			MaxTimeout: 2 * time.Hour, ParallelExecution: true, MaxParallelTasks: 5, PartialResults: true,
			Replanning: Replanning{
				MaxAttempts: 3, PlanSimilarityThreshold: 0.7, PreserveSuccessfulOutputs: true, Timeout: 30 * time.Second,
				NonReplannable: []string{
					"auth", "unauthorized", "forbidden", "permission", "credential", "configuration error", "invalid api key", "data corruption",
				},
			},
		},
	}
}

func (d *decoder) overlord(o *object, f *Formation) {
	v := &f.Overlord
	set(&f.Soul, o.text(o.alias("soul", "persona")))
	d.overlordLLM(o.block("llm"), &v.LLM)
	caching := o.block("caching")
	set(&v.Caching.Enabled, caching.boolean("enabled"))
	set(&v.Caching.TTL, caching.duration("ttl", time.Second))
	caching.end()
	d.routing(o.block("routing"), &v.Routing)
	d.response(o.block("response"), &v.Response)
	d.clarification(o.block("clarification"), &v.Clarification)
	d.workflow(o.block("workflow"), &v.Workflow)
	o.inert("overlord")
	o.end()
}

// overlordLLM reads the model itself, or the blocks base and synthesis.
func (d *decoder) overlordLLM(o *object, l *OverlordLLM) {
	l.Model = d.modelID(o, o.alias("model", "text"), CapabilityText)
	l.Settings = d.settings(o.block("settings"))
	for _, part := range []struct {
		key string
		dst *Model
	}{{"base", &l.Base}, {"synthesis", &l.Synthesis}} {
		b := o.block(part.key)
		part.dst.Capability = CapabilityText
		part.dst.ID = d.modelID(b, "model", CapabilityText)
		set(&part.dst.APIKey, b.secret("api_key"))
		part.dst.Settings = d.settings(b.block("settings"))
		b.end()
	}
	set(&l.MaxExtractionTokens, o.integer("max_extraction_tokens", 1, unlimited))
	o.inert("overlord.llm")
	o.end()
}

func (d *decoder) response(o *object, r *Response) {
	set(&r.Format, o.enum("format", "a response format", FormatMarkdown, FormatText, FormatJSON, FormatHTML))
	set(&r.Streaming, o.boolean("streaming"))
	set(&r.StreamTokens, o.boolean("stream_tokens"))
	set(&r.Progress, o.boolean("progress"))
	set(&r.Widgets, o.boolean("widgets"))
	retry := o.block("retry_async")
	set(&r.RetryAsync.Enabled, retry.boolean("enabled"))
	set(&r.RetryAsync.MaxAttempts, retry.integer("max_attempts", 1, 10))
	set(&r.RetryAsync.AttemptIdleTimeout, retry.duration("attempt_idle_timeout", time.Millisecond))
	set(&r.RetryAsync.Deadline, retry.duration("deadline", time.Millisecond))
	retry.endStrict()
	o.inert("overlord.response")
	o.end()
}

func (d *decoder) clarification(o *object, c *Clarification) {
	set(&c.Enabled, o.boolean("enabled"))
	set(&c.Style, o.enum("style", "a style", "conversational", "formal", "brief", "bullet_points"))
	set(&c.PersistLearnedInfo, o.boolean("persist_learned_info"))
	r := o.block(o.alias("max_rounds", "max_questions"))
	set(&c.MaxRounds.Direct, r.integer("direct", 0, 100))
	set(&c.MaxRounds.Brainstorm, r.integer("brainstorm", 0, 100))
	set(&c.MaxRounds.Planning, r.integer("planning", 0, 100))
	set(&c.MaxRounds.Execution, r.integer("execution", 0, 100))
	set(&c.MaxRounds.Other, r.integer("other", 0, 100))
	r.end()
	o.end()
}

func (d *decoder) workflow(o *object, w *Workflow) {
	set(&w.AutoDecomposition, o.boolean("auto_decomposition"))
	set(&w.ComplexityThreshold, o.float("complexity_threshold", 1, 10))
	set(&w.PlanApprovalThreshold, o.integer("plan_approval_threshold", 1, 10))
	set(&w.ComplexityMethod, o.enum("complexity_method", "a method", "heuristic", "llm", "custom", "hybrid"))
	d.weights(o.block("complexity_weights"), w)
	set(&w.RoutingStrategy, o.enum("routing_strategy", "a strategy",
		"capability_based", "load_balanced", "priority_based", "round_robin", "specialized", "custom"))
	set(&w.EnableAgentAffinity, o.boolean("enable_agent_affinity"))
	set(&w.ErrorRecovery, o.enum("error_recovery", "a way to recover",
		"retry_with_backoff", "fail_fast", "retry_with_alternate", "skip_and_continue", "compensate", "manual_intervention"))
	d.workflowRetry(o.block("retry"), &w.Retry)
	d.workflowTimeouts(o, w)
	set(&w.ParallelExecution, o.boolean("parallel_execution"))
	set(&w.MaxParallelTasks, o.integer("max_parallel_tasks", 1, 20))
	set(&w.PartialResults, o.boolean("partial_results"))
	r := o.block("replanning")
	set(&w.Replanning.Enabled, r.boolean("enabled"))
	set(&w.Replanning.MaxAttempts, r.integer("max_attempts", 1, 10))
	set(&w.Replanning.PlanSimilarityThreshold, r.float("plan_similarity_threshold", 0, 1))
	set(&w.Replanning.PreserveSuccessfulOutputs, r.boolean("preserve_successful_outputs"))
	set(&w.Replanning.Timeout, r.duration("replan_timeout_seconds", time.Millisecond))
	set(&w.Replanning.NonReplannable, r.texts("non_replannable_error_patterns"))
	r.endStrict()
	o.end()
}

func (d *decoder) weights(o *object, w *Workflow) {
	if o.absent() {
		return
	}
	sum, given := 0.0, map[string]float64{}
	for _, key := range []string{"heuristic", "llm", "custom"} {
		if v := o.float(key, 0, 1).v; v != nil {
			given[key] = *v
			sum += *v
		}
	}
	if o.n != nil && (sum < 0.999 || sum > 1.001) {
		d.fault(o.n, o.path, RuleSum, "the weights make %g together; they make 1", sum)
	}
	if len(given) > 0 {
		w.ComplexityWeights = given
	}
	o.end()
}

func (d *decoder) workflowRetry(o *object, r *WorkflowRetry) {
	set(&r.MaxAttempts, o.integer("max_attempts", 1, 10))
	set(&r.InitialDelay, o.duration("initial_delay", 100*time.Millisecond))
	set(&r.MaxDelay, o.duration("max_delay", time.Second))
	set(&r.BackoffFactor, o.float("backoff_factor", 1, 100))
	set(&r.RetryOnErrors, o.texts("retry_on_errors"))
	if r.InitialDelay > r.MaxDelay {
		o.faultAt("initial_delay", "max_delay", RuleRange, "initial_delay is %s, above max_delay %s", brief(r.InitialDelay), brief(r.MaxDelay))
	}
	o.end()
}

func (d *decoder) workflowTimeouts(o *object, w *Workflow) {
	t := o.block("timeouts")
	set(&w.Timeouts.Task, t.duration("task_timeout", time.Millisecond))
	set(&w.Timeouts.Workflow, t.duration("workflow_timeout", time.Millisecond))
	set(&w.Timeouts.Phase, t.duration("phase_timeout", time.Millisecond))
	set(&w.Timeouts.EnableAdaptive, t.boolean("enable_adaptive_timeout"))
	set(&w.Timeouts.Multiplier, t.float("multiplier", 1, 100))
	t.end()
	set(&w.MaxTimeout, o.duration("max_timeout_seconds", time.Millisecond))
	if w.Timeouts.Workflow > w.MaxTimeout {
		at, key := t, "workflow_timeout"
		if t.take(key) == nil {
			at, key = o, "max_timeout_seconds"
		}
		at.faultAt(key, "", RuleRange, "workflow_timeout is %s, above max_timeout_seconds %s",
			brief(w.Timeouts.Workflow), brief(w.MaxTimeout))
	}
}
