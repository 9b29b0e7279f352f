package agent

import (
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Serial returns a sink that several goroutines may call.
func Serial(sink chat.Sink) chat.Sink {
	var mu sync.Mutex
	return func(e chat.Event) error {
		mu.Lock()
		defer mu.Unlock()
		return sink(e)
	}
}

// progressPause is the least time between two progress events of one call: a
// tool may tell a thousand a second, and each becomes a stored frame.
const progressPause = 200 * time.Millisecond

// progress passes on how far a call is, until it has ended.
type progress struct {
	tool string
	sink chat.Sink

	mu   sync.Mutex // guards the fields that follow
	last time.Time
	over bool
}

func (p *progress) show(t chat.ToolProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.over || !p.last.IsZero() && now.Sub(p.last) < progressPause {
		return
	}
	p.last = now
	// When nobody can be told any more, the run finds out by itself.
	_ = p.sink(chat.Event{Type: chat.Progress, Stage: chat.StageToolCall, ToolName: p.tool, Content: progressText(t)})
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}
