package manifest

import (
	"strings"
	"time"
)

// The values of rbac.active.
const (
	RBACAuto = "auto"
	RBACOn   = "true"
	RBACOff  = "false"
)

// RBAC says whether groups decide what a user may do.
type RBAC struct {
	Active string // auto: on when there are groups
	// Fallback is the group of users without one, or "".
	Fallback string
	// Refuse tells that users without a group are refused: fallback: false.
	Refuse bool
}

// Middleware is the tool server that names a user's groups: a command or a URL.
// Nil without the block.
type Middleware struct {
	Command string
	Args    []string
	URL     string
	Headers map[string]string
	Timeout time.Duration // 30s
}

// Proactive is how the formation speaks first. Nil without the block.
type Proactive struct {
	Channels       map[string]Channel
	DefaultChannel string
	Heartbeat      *Heartbeat
}

// Channel is a way to a user.
type Channel struct {
	Transformer string
	URL         string // "": the transformer's
}

// Heartbeat wakes the formation from time to time.
type Heartbeat struct {
	Enabled     bool
	Interval    time.Duration // 30m
	Target      string        // last, preferred, webhook or a channel
	ActiveStart string        // HH:MM or ""
	ActiveEnd   string
	Timezone    string // IANA or user
	Weekends    bool
	Instruction string
	SOP         string
}

// Commands are the slash commands. Nil without the block: inert.
type Commands struct {
	Enabled bool
	Aliases map[string]string
	Builtin map[string]bool
}

func (d *decoder) rbac(o *object, r *RBAC) {
	active := o.slot("active")
	if word, ok := active.text("auto"); ok {
		if word == RBACAuto {
			r.Active = word
		} else {
			d.enumFault(active.n, active.path, "a state", []string{RBACAuto, RBACOn, RBACOff})
		}
	}
	if on, ok := active.boolean(); ok {
		r.Active = RBACOff
		if on {
			r.Active = RBACOn
		}
	}
	patterned(active.schema, "^(auto|true|false)$")
	active.end()
	fallback := o.slot("fallback")
	if name, ok := fallback.text("a group"); ok {
		r.Fallback = name
	}
	r.Refuse = fallback.off()
	fallback.end()
	o.end()
}

func (d *decoder) middleware(o *object) *Middleware {
	if o.absent() || o.n != nil && len(o.n.keys) == 0 {
		return nil
	}
	m := &Middleware{Timeout: 30 * time.Second}
	set(&m.Command, o.text("command"))
	set(&m.Args, o.args("args"))
	set(&m.URL, o.url("url"))
	m.Headers = o.textMap("headers", nil)
	set(&m.Timeout, o.duration("timeout", time.Millisecond))
	o.either("command", "url")
	if o.n != nil {
		switch command, url := o.take("command") != nil, o.take("url") != nil; {
		case command && url:
			o.faultAt("url", "", RuleConflict, "stands beside command; the middleware is one of them")
		case !command && !url:
			d.fault(o.n, o.path, RuleRequired, "has neither command nor url; write one of them")
		case url && o.take("args") != nil:
			o.misplaced("a middleware at a url is called, not started", "args")
		case command && o.take("headers") != nil:
			o.misplaced("a command has no headers", "headers")
		}
	}
	o.end()
	return m
}

func (d *decoder) proactive(o *object) *Proactive {
	if o.absent() {
		return nil
	}
	p := &Proactive{Channels: map[string]Channel{}}
	o.each("channels", func(name string, s *slot) {
		if b := s.block(); b != nil {
			var c Channel
			b.require("transformer", "transformer: slack")
			set(&c.Transformer, b.word("transformer"))
			set(&c.URL, b.url("url"))
			b.end()
			p.Channels[name] = c
		}
		s.end()
	})
	set(&p.DefaultChannel, o.word("default_channel"))
	p.Heartbeat = d.heartbeat(o.block("heartbeat"))
	o.end()
	return p
}

func (d *decoder) heartbeat(o *object) *Heartbeat {
	if o.absent() {
		return nil
	}
	h := &Heartbeat{Enabled: true, Interval: 30 * time.Minute, Target: "last", Timezone: "UTC", Weekends: true}
	set(&h.Enabled, o.boolean("enabled"))
	s := o.slot("interval")
	if s.n != nil && s.n.kind == kindText {
		s.n = &node{kind: kindText, file: s.n.file, at: s.n.at, text: strings.TrimSpace(strings.TrimPrefix(s.n.text, "every "))}
	}
	d.spanSlot(s, time.Second, &h.Interval)
	patterned(s.schema, "^(every )?"+durationPattern[1:])
	s.end()
	if h.Interval < time.Second {
		o.faultAt("interval", "", RuleRange, "is %s; it is at least 1s", brief(h.Interval))
	}
	set(&h.Target, o.word("target"))
	a := o.block("active_hours")
	set(&h.ActiveStart, a.clock("start"))
	set(&h.ActiveEnd, a.clock("end"))
	set(&h.Timezone, d.timezone(a, "timezone", "user"))
	set(&h.Weekends, a.boolean("weekends"))
	a.end()
	set(&h.Instruction, o.text("instruction"))
	set(&h.SOP, o.word("sop"))
	o.end()
	return h
}

// clock reads a time of day.
func (o *object) clock(key string) read[string] {
	r := o.word(key)
	if r.schema != nil {
		r.schema.Pattern = `^([01]?[0-9]|2[0-3]):[0-5][0-9]$`
	}
	if r.v == nil {
		return r
	}
	if _, err := time.Parse("15:04", *r.v); err != nil {
		v := o.n.get(key)
		o.d.fault(v, o.key(key), RuleClock, "%q is no time of day; write it like \"09:00\"", shown(v, key))
		r.v = nil
	}
	return r
}

// builtinCommands are the commands that the commands block can turn off.
func builtinCommands() []string {
	return []string{"setup", "jobs", "identity", "channels", "preferences", "reset", "help", "status", "learnings"}
}

func (d *decoder) commands(o *object) *Commands {
	if o.absent() {
		return nil
	}
	c := &Commands{Enabled: true, Builtin: map[string]bool{}}
	set(&c.Enabled, o.boolean("enabled"))
	c.Aliases = o.textMap("aliases", nil)
	b := o.block("builtin")
	for _, name := range builtinCommands() {
		if on := b.boolean(name).v; on != nil {
			c.Builtin[name] = *on
		}
	}
	b.end()
	o.end()
	return c
}
