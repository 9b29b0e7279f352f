package mcpclient

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/telemetry"
	"github.com/agentformation/service/pkg/manifest"
)

// Toolbox is what one agent may use. It is safe for concurrent use.
type Toolbox struct {
	c     *Client
	agent string
	uses  []use

	mu    sync.Mutex // guards the fields that follow
	at    []uint64   // the editions that tools is made of
	tools []*Tool
}

// use is a server that an agent may use, with what its own file leaves of it.
type use struct {
	s      *server
	filter manifest.ToolFilter
}

// For returns the toolbox of an agent. An agent that lists no servers has all
// those of the formation; a list is exact.
func (c *Client) For(agent string, uses []manifest.MCPUse) *Toolbox {
	b := &Toolbox{c: c, agent: agent}
	if uses == nil {
		for _, s := range c.servers {
			if s.agent == "" {
				b.uses = append(b.uses, use{s: s})
			}
		}
		return b
	}
	for _, u := range uses {
		owner := ""
		if u.Own != nil {
			owner = agent
		}
		if s := c.byKey[serverKey(owner, u.ID)]; s != nil {
			b.uses = append(b.uses, use{s: s, filter: u.Tools})
		}
	}
	return b
}

// Tools returns the tools that there are now. It connects to nothing, but for a
// server that can only be asked with a user's credentials: that one is asked when
// the first user comes who has them.
func (b *Toolbox) Tools(ctx context.Context, who chat.Invocation) []*Tool {
	if len(b.uses) == 0 {
		return nil
	}
	for _, u := range b.uses {
		if u.s.userKey && u.s.list.Load() == nil {
			u.s.discoverFor(ctx, who.User)
		}
	}
	return b.Known()
}

// Known returns the tools that there are now. It asks no server.
func (b *Toolbox) Known() []*Tool {
	lists := make([]*list, len(b.uses))
	at := make([]uint64, len(b.uses))
	for i, u := range b.uses {
		if lists[i] = u.s.list.Load(); lists[i] != nil {
			at[i] = lists[i].edition
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.at, at) {
		b.tools, b.at = b.make(lists), at
	}
	return b.tools
}

// userTry is how long a user's failed try is not repeated, userWait how long a
// turn waits for one.
const (
	userTry  = time.Minute
	userWait = 10 * time.Second
)

// discoverFor asks a server in the name of a user.
func (s *server) discoverFor(ctx context.Context, user string) {
	if _, err := s.target(ctx, user); err != nil {
		return // no credentials; they may come any time
	}
	s.mu.Lock()
	now := time.Now()
	if s.tried == nil {
		s.tried = make(map[string]time.Time)
	}
	last, ok := s.tried[user]
	if ok && now.Sub(last) < userTry {
		s.mu.Unlock()
		return
	}
	for other, at := range s.tried {
		if now.Sub(at) >= userTry {
			delete(s.tried, other)
		}
	}
	s.tried[user] = now
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, userWait)
	defer cancel()
	if err := s.discover(ctx, user); err != nil {
		telemetry.Log(ctx, s.c.cfg.Log).Warn().Str("server", s.key).Err(err).Msg("a tool server can't be asked for its tools")
	}
}

// make makes the tools of the lists. Names are unique, and the same after every
// restart.
func (b *Toolbox) make(lists []*list) []*Tool {
	var out []*Tool
	taken := map[string]bool{}
	add := func(t *Tool) {
		name := modelName(t.server.file.ID, t.info.Name, false)
		if taken[name] {
			name = modelName(t.server.file.ID, t.info.Name, true)
		}
		if taken[name] {
			return // the same server and tool twice
		}
		taken[name] = true
		t.name = name
		t.spec = t.makeSpec()
		out = append(out, t)
	}
	for i, u := range b.uses {
		if lists[i] == nil {
			continue
		}
		u.s.reportFilter(b.agent, u.s.file.Tools, lists[i].Tools)
		u.s.reportFilter(b.agent, u.filter, lists[i].Tools)
		for _, t := range u.s.tools(lists[i]) {
			if offers(u.s.file.Tools, t.info.Name) && offers(u.filter, t.info.Name) {
				add(t)
			}
		}
	}
	return out
}

// tools returns the tools of a list, and those to read what else there is.
func (s *server) tools(l *list) []*Tool {
	out := make([]*Tool, 0, len(l.Tools)+2)
	for i := range l.Tools {
		out = append(out, &Tool{server: s, info: l.Tools[i], call: callTool})
	}
	if l.Resources {
		out = append(out, readResourceTool(s))
	}
	if l.Prompts {
		out = append(out, getPromptTool(s))
	}
	return out
}

// maxName is the longest name of a tool that models' providers take.
const maxName = 64

// modelName makes the name under which a model knows a tool: letters, digits, _
// and -, at most 64. A name that had to be cut, or that two would have, ends in a
// hash of the real one.
func modelName(server, tool string, unique bool) string {
	name := sanitize(server) + "__" + sanitize(tool)
	if len(name) <= maxName && !unique {
		return name
	}
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	end := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(end))] + end
}

func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, s)
}

// makeSpec describes the tool to models. Arguments that the server's file gives
// to every call are not asked for.
func (t *Tool) makeSpec() chat.ToolSpec {
	description := t.info.Description
	if description == "" {
		description = t.info.Title
	}
	return chat.ToolSpec{
		Name: t.name, Description: description, Schema: notRequired(t.info.Schema, t.server.file.Parameters),
		ReadOnly: t.info.ReadOnly, Idempotent: t.info.Idempotent,
	}
}

// notRequired returns a schema that does not ask for given arguments.
func notRequired(schema json.RawMessage, given map[string]any) json.RawMessage {
	if len(given) == 0 {
		return schema
	}
	var fields map[string]json.RawMessage
	var required []string
	if json.Unmarshal(schema, &fields) != nil || json.Unmarshal(fields["required"], &required) != nil {
		return schema
	}
	kept := slices.DeleteFunc(required, func(name string) bool {
		_, ok := given[name]
		return ok
	})
	data, err := json.Marshal(kept)
	if err != nil {
		return schema
	}
	if fields["required"] = data; len(kept) == 0 {
		delete(fields, "required")
	}
	if data, err = json.Marshal(fields); err != nil {
		return schema
	}
	return data
}
