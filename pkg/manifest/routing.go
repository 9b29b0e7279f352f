package manifest

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The ways to decide who answers a message.
const (
	// RouteModel asks a model about every message. It is the default: the same
	// call also tells what the message needs, so that routing costs nothing more.
	RouteModel = "model"
	// RouteHybrid decides by words when these are clear, else asks a model.
	RouteHybrid = "hybrid"
	// RouteHeuristic decides by words and never asks a model.
	RouteHeuristic = "heuristic"
)

// Routing says how it is decided who answers.
type Routing struct {
	Enabled    bool          // true; false is RouteHeuristic
	Method     string        // model
	Timeout    time.Duration // 10s: a model that takes longer is not waited for
	Confidence float64       // 0.75, 0 to 1: from here on RouteHybrid asks no model
	Shortlist  int           // 12: the most agents that RouteHybrid shows a model
	// Examples are the labelled messages of routing/examples.yaml.
	Examples []RoutingExample
}

// ByModel tells whether a model may be asked who answers.
func (r Routing) ByModel() bool { return r.Enabled && r.Method != RouteHeuristic }

// RoutingExample is a message with the agent that should answer it.
type RoutingExample struct {
	Message string // at most 2000 characters
	Agent   string // the id of an active agent
}

// The limits of routing/examples.yaml: routing learns from it within a few
// milliseconds, and its words stay in memory.
const (
	maxExamples     = 2000
	maxExampleChars = 2000
)

func defaultRouting() Routing {
	return Routing{Enabled: true, Method: RouteModel, Timeout: 10 * time.Second, Confidence: 0.75, Shortlist: 12}
}

func (d *decoder) routing(o *object, r *Routing) {
	set(&r.Enabled, o.boolean("enabled"))
	s := o.block("settings")
	set(&r.Method, s.enum("method", "a way to route", RouteModel, RouteHybrid, RouteHeuristic))
	set(&r.Timeout, s.between("timeout_seconds", 100*time.Millisecond, time.Minute))
	set(&r.Confidence, s.float("confidence", 0, 1))
	set(&r.Shortlist, s.integer("shortlist", 2, 100))
	s.end()
	o.end()
}

// routingExamples reads routing/examples.yaml.
func (l *loader) routingExamples() {
	_, files := l.yamlFiles("routing")
	name := files["examples"]
	if name == "" {
		return
	}
	root := l.b.doc(name, Fault{})
	if root == nil || root.broken {
		return
	}
	l.f.Overlord.Routing.Examples = l.d.examples(&slot{d: l.d, n: root}, l.agentIDs())
}

// examples reads labelled messages. While a schema is made there are no agents.
func (d *decoder) examples(s *slot, agents []string) (out []RoutingExample) {
	seen := map[string]bool{}
	s.list(func(i int, item *slot) {
		if i == maxExamples {
			d.fault(item.n, item.path, RuleRange, "is example %d; routing learns from at most %d", i+1, maxExamples)
		}
		b := item.block()
		item.end()
		if b == nil || i >= maxExamples {
			return
		}
		var e RoutingExample
		set(&e.Message, b.text("message"))
		b.require("message", "message: what somebody might ask")
		set(&e.Agent, b.word("agent"))
		b.require("agent", "agent: the id of the agent that answers it")
		b.end()
		if d.example(b, e, agents) && !d.repeated(b, e, seen) {
			out = append(out, e)
		}
	})
	s.end()
	return out
}

// example holds one example against its limits and the agents there are.
func (d *decoder) example(b *object, e RoutingExample, agents []string) bool {
	ok := e.Message != "" && e.Agent != "" && b.n != nil
	if n := utf8.RuneCountInString(e.Message); n > maxExampleChars {
		d.fault(b.n.get("message"), b.key("message"), RuleRange, "has %d characters; it has at most %d", n, maxExampleChars)
		ok = false
	}
	if b.n != nil && e.Agent != "" && !slices.Contains(agents, e.Agent) {
		d.fault(b.n.get("agent"), b.key("agent"), RuleReference, "no agent has the id %q", shorten(e.Agent))
		d.faults[len(d.faults)-1].Suggestion = d.guess(e.Agent, agents)
		ok = false
	}
	return ok
}

// repeated reports a message that stands twice: it would count double, or for
// two agents.
func (d *decoder) repeated(b *object, e RoutingExample, seen map[string]bool) bool {
	key := strings.ToLower(strings.Join(strings.Fields(e.Message), " "))
	if !seen[key] {
		seen[key] = true
		return false
	}
	d.fault(b.n.get("message"), b.key("message"), RuleDuplicate, "stands here twice; keep one")
	return true
}
