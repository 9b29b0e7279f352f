package mcpclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"
)

// ToolStore keeps what servers offer, so that a restart asks none of them. List
// is in a form of this package's own.
type ToolStore interface {
	// Load returns the list of a server whose file has this hash; nil when there
	// is none.
	Load(ctx context.Context, server, config string) ([]byte, error)
	Save(ctx context.Context, server, config string, list []byte) error
}

// list is what a server offers.
type list struct {
	Tools     []toolInfo `json:"tools"`
	Resources bool       `json:"resources,omitempty"`
	Prompts   bool       `json:"prompts,omitempty"`
	// Name and Version are what the server says of itself.
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`

	edition uint64 // no two lists have the same
	fresh   bool   // asked for in this life
}

// toolInfo is one tool as its server describes it.
type toolInfo struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"`
	ReadOnly    bool            `json:"read_only,omitempty"`
	Idempotent  bool            `json:"idempotent,omitempty"`
}

// The limits of what a server may offer.
const (
	maxTools       = 1000
	maxPages       = 100
	maxSchema      = 256 << 10 // bytes of one tool
	maxDescription = 16 << 10
	discoverAtOnce = 8
)

// editions numbers the lists of a client.
type editions struct{ last atomic.Uint64 }

// Discover learns what the servers offer. What an earlier life stored is taken;
// servers that nothing is known of are connected to, asked and left again, all at
// once and each for a limited time. It returns what is to be told of those that
// could not be asked: their tools appear when they can be.
func (c *Client) Discover(ctx context.Context) (warnings []string) {
	told := make([]string, len(c.servers))
	var group errgroup.Group
	group.SetLimit(discoverAtOnce)
	for i, s := range c.servers {
		if s.stored(ctx) || s.userKey {
			continue
		}
		group.Go(func() error {
			if err := s.discover(ctx, ""); err != nil {
				told[i] = fmt.Sprintf("tool server %s: its tools are not known yet: %v", s.key, err)
				s.c.cfg.Log.Warn().Str("server", s.key).Err(err).Msg("a tool server can't be asked for its tools")
			}
			return nil
		})
	}
	_ = group.Wait() // nothing in it fails
	for _, text := range told {
		if text != "" {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// stored takes the list that the store has, and tells whether there is one.
func (s *server) stored(ctx context.Context) bool {
	if s.list.Load() != nil {
		return true
	}
	if s.c.cfg.Lists == nil {
		return false
	}
	data, err := s.c.cfg.Lists.Load(ctx, s.key, s.hash)
	if err != nil {
		s.c.cfg.Log.Warn().Str("server", s.key).Err(err).Msg("read the stored tools of a server")
	}
	if data == nil {
		return false
	}
	l := &list{}
	if err := json.Unmarshal(data, l); err != nil {
		return false // of another build; the server is asked again
	}
	l.edition = s.c.editions.last.Add(1)
	s.list.Store(l)
	return true
}

// discover connects to a server if nobody is, asks it and leaves it again.
func (s *server) discover(ctx context.Context, user string) error {
	t, err := s.target(ctx, user)
	if err != nil {
		return errors.Unwrap(err)
	}
	l := s.link(t)
	limit := s.c.cfg.Limits.Connect
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not answer within %s", limit))
	defer cancel()
	used := l.live() != nil
	x, err := l.acquire(ctx, t, user)
	if err == nil {
		x.brief.Store(!used)
		err = s.ask(ctx, x)
		l.release(x)
		l.connected(err)
		return err
	}
	l.connected(err)
	if s.c.life.Err() == nil {
		err = errors.New(l.because(err))
	}
	return err
}

// ask lists what a server offers over a session, and keeps it.
func (s *server) ask(ctx context.Context, x *session) error {
	s.listing.Lock()
	defer s.listing.Unlock()
	l, err := readList(ctx, x.cs)
	if err != nil {
		return fmt.Errorf("list its tools: %w", err)
	}
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode its tools: %w", err)
	}
	l.fresh = true
	if old := s.list.Load(); old != nil {
		if same, err := json.Marshal(old); err == nil && bytes.Equal(same, data) {
			l.edition = old.edition
			s.list.Store(l)
			return nil
		}
	}
	l.edition = s.c.editions.last.Add(1)
	s.list.Store(l)
	if s.c.cfg.Lists == nil {
		return nil
	}
	if err := s.c.cfg.Lists.Save(ctx, s.key, s.hash, data); err != nil {
		s.c.cfg.Log.Warn().Str("server", s.key).Err(err).Msg("store the tools of a server")
	}
	return nil
}

func readList(ctx context.Context, cs *mcpsdk.ClientSession) (*list, error) {
	l := &list{}
	init := cs.InitializeResult()
	if init.ServerInfo != nil {
		l.Name, l.Version = short(init.ServerInfo.Name), short(init.ServerInfo.Version)
	}
	if init.Capabilities == nil {
		return l, nil
	}
	l.Resources, l.Prompts = init.Capabilities.Resources != nil, init.Capabilities.Prompts != nil
	if init.Capabilities.Tools == nil {
		return l, nil
	}
	seen := map[string]bool{}
	var cursor string
	for range maxPages {
		page, err := cs.ListTools(ctx, &mcpsdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, err
		}
		for _, tool := range page.Tools {
			if len(l.Tools) < maxTools && tool.Name != "" && !seen[tool.Name] {
				seen[tool.Name] = true
				if info, ok := infoOf(tool); ok {
					l.Tools = append(l.Tools, info)
				}
			}
		}
		if page.NextCursor == "" || page.NextCursor == cursor {
			break
		}
		cursor = page.NextCursor
	}
	return l, nil
}

var emptySchema = json.RawMessage(`{"type":"object","properties":{}}`)

// infoOf takes a tool over, unless what it takes can't be told to a model.
func infoOf(t *mcpsdk.Tool) (toolInfo, bool) {
	info := toolInfo{Name: t.Name, Title: t.Title, Description: clip([]byte(t.Description), maxDescription), Schema: emptySchema}
	if t.Annotations != nil {
		info.ReadOnly, info.Idempotent = t.Annotations.ReadOnlyHint, t.Annotations.IdempotentHint
		if info.Title == "" {
			info.Title = t.Annotations.Title
		}
	}
	if schema, ok := t.InputSchema.(map[string]any); ok {
		if schema["type"] != "object" {
			schema["type"] = "object"
		}
		if schema["properties"] == nil {
			schema["properties"] = map[string]any{}
		}
		data, err := json.Marshal(schema)
		if err != nil || len(data) > maxSchema {
			return info, false
		}
		info.Schema = data
	}
	return info, true
}

// changed asks anew, in the background, after a server said that its tools
// changed. Many such words in a row are one question.
func (s *server) changed(x *session) {
	if s.changing.Swap(true) {
		return
	}
	s.c.begin(func() {
		ctx, cancel := context.WithTimeout(s.c.life, s.c.cfg.Limits.Connect)
		defer cancel()
		s.changing.Store(false)
		if !x.link.hold(x) {
			return
		}
		defer x.link.release(x)
		if err := s.ask(ctx, x); err != nil && !x.lost.Load() {
			s.c.cfg.Log.Warn().Str("server", s.key).Err(err).Msg("refresh the tools of a server")
		}
	})
}

// retryLongest bounds the time between two tries to ask a server.
const retryLongest = 5 * time.Minute

// refresh asks every server once whose list is of an earlier life, one after the
// other, and those that can't be reached again and again.
func (c *Client) refresh(ctx context.Context) error {
	wait := c.cfg.Limits.Refresh
	for failures := 0; ; {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		left := 0
		for _, s := range c.servers {
			if l := s.list.Load(); l != nil && l.fresh || s.userKey || ctx.Err() != nil {
				continue
			}
			if err := s.discover(ctx, ""); err != nil {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		wait = min(c.cfg.Limits.Refresh<<min(failures, 10), retryLongest)
		failures++
	}
}
