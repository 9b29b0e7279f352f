package agent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// The values of memory.pruning (reference memory.md 10).
const (
	pruneAlways  = "always"
	pruneByCache = "cache-ttl"
	pruneHard    = "hard_clear"
)

const (
	// softEnds is how many characters a soft trim leaves at each end.
	softEnds = 1500
	cleared  = "[Old content cleared.]"
)

// maxActivity is how many sessions' last use an agent remembers.
const maxActivity = 1024

// activity remembers when sessions were last answered, the latest of them.
type activity struct {
	mu   sync.Mutex // guards the field that follows
	last map[string]time.Time
}

func newActivity() *activity { return &activity{last: make(map[string]time.Time)} }

// idle notes a use and returns how long the session had not been used; 0 for
// its first.
func (a *activity) idle(key string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, ok := a.last[key]
	if !ok && len(a.last) >= maxActivity {
		oldest := ""
		for k, t := range a.last {
			if oldest == "" || t.Before(a.last[oldest]) {
				oldest = k
			}
		}
		delete(a.last, oldest)
	}
	a.last[key] = now
	if !ok {
		return 0
	}
	return now.Sub(before)
}

// prunes decides whether old content is shortened in this run: with cache-ttl
// only when the provider has forgotten the conversation anyway.
func (r *run) prunes() bool {
	p := r.agent.cfg.Formation.Memory.Pruning
	switch {
	case p == nil:
		return false
	case p.Mode == pruneAlways:
		return true
	case p.Mode == pruneByCache:
		return r.agent.activity.idle(r.task.User+"\x00"+r.task.Session, r.agent.cfg.Now()) > p.CacheTTL
	}
	return false
}

// trimmed returns the conversation as the model shall see it: pruned as the
// manifest says, and with the oldest tool results shortened when it would be
// too long for the model. The run's own messages stay as they are.
func (r *run) trimmed() []chat.Message {
	messages := r.messages
	if r.prune {
		messages = prune(messages, r.agent.cfg.Formation.Memory.Pruning)
	}
	room := r.room() - estimate(nil, r.specs)
	if estimate(messages, nil) > room {
		messages = fit(messages, room)
	}
	return messages
}

// prune shortens old tool results and other long messages. The system's words,
// the message to answer and what follows it that is no tool result stay.
func prune(messages []chat.Message, p *manifest.Pruning) []chat.Message {
	asked := lastUser(messages)
	out, keep := messages, p.KeepLastNToolResults
	for i := len(messages) - 1; i > 0; i-- {
		m := &messages[i]
		switch {
		case m.Role == chat.System:
			continue
		case m.Role == chat.Tool:
			if keep--; keep >= 0 {
				continue
			}
		case i >= asked || len(m.Content) <= p.SoftTrimMaxChars:
			continue
		}
		text := cleared
		if p.Strategy != pruneHard {
			text = softTrim(m.Content, p.SoftTrimMaxChars)
		}
		if len(text) < len(m.Content) {
			out = replace(out, messages, i, text)
		}
	}
	return out
}

// lastUser is the place of the message to answer.
func lastUser(messages []chat.Message) int {
	for i := len(messages) - 1; i > 0; i-- {
		if messages[i].Role == chat.User && len(messages[i-1].Calls) == 0 && messages[i-1].Role != chat.Tool {
			return i
		}
	}
	return 0
}

// softTrim leaves the two ends of a text that is longer than most characters.
func softTrim(text string, most int) string {
	if len(text) <= most {
		return text
	}
	runes := []rune(text)
	if cut := len(runes) - 2*softEnds; len(runes) > most && cut > 0 {
		return fmt.Sprintf("%s\n[… %d characters trimmed …]\n%s", string(runes[:softEnds]), cut, string(runes[len(runes)-softEnds:]))
	}
	return text
}

// replace changes one message in a copy; out is messages itself until there is
// a copy.
func replace(out, messages []chat.Message, i int, text string) []chat.Message {
	if &out[0] == &messages[0] {
		out = append([]chat.Message(nil), messages...)
	}
	out[i].Content = text
	return out
}

// fit shortens tool results, the oldest first, until the conversation has room:
// first to their ends, then altogether.
func fit(messages []chat.Message, room int) []chat.Message {
	out, size := messages, estimate(messages, nil)
	for _, how := range []func(string) string{
		func(s string) string { return softTrim(s, 2*softEnds) },
		func(string) string { return cleared },
	} {
		for i := range messages {
			if size <= room {
				return out
			}
			text := out[i].Content
			short := how(text)
			if out[i].Role != chat.Tool || len(short) >= len(text) {
				continue
			}
			out = replace(out, messages, i, short)
			size -= (len(text) - len(short)) / bytesPerToken
		}
	}
	return out
}

const (
	// bytesPerToken is a cautious guess for mixed text.
	bytesPerToken = 4
	// perMessage and perPart are what a message and a file take beside text.
	perMessage = 8
	perPart    = 1500
	// defaultAnswer is kept free for the answer when no max_tokens says more.
	defaultAnswer = 4096
)

// estimate guesses the tokens of a conversation and its tools.
func estimate(messages []chat.Message, specs []chat.ToolSpec) int {
	bytes, tokens := 0, 0
	for i := range messages {
		m := &messages[i]
		bytes += len(m.Content)
		for _, c := range m.Calls {
			bytes += len(c.Name) + len(c.Args)
		}
		tokens += perMessage + perPart*len(m.Parts)
	}
	for i := range specs {
		bytes += len(specs[i].Name) + len(specs[i].Description) + len(specs[i].Schema)
	}
	return tokens + bytes/bytesPerToken
}

// windows are the contexts of known families of models, in tokens; the first
// part of a name that fits counts.
var windows = []struct {
	part   string
	tokens int
}{
	{"gemini", 1_000_000}, {"gpt-4.1", 1_000_000}, {"gpt-5", 270_000}, {"claude", 200_000}, {"o3", 200_000}, {"o4", 200_000},
}

// defaultWindow is that of a model that is not known.
const defaultWindow = 128_000

// room is how many tokens a conversation may have: what the model was found to
// take, or is known to, less the answer.
func (v *voice) room() int {
	window := int(v.window.Load())
	if window == 0 {
		window = defaultWindow
		for _, w := range windows {
			if strings.Contains(v.use.ID, w.part) {
				window = w.tokens
				break
			}
		}
	}
	answer := defaultAnswer
	if m := v.settings.MaxTokens; m != nil {
		answer = *m
	}
	return window - min(answer, window/2)
}

// tooLong tells whether a provider refused a conversation for its length, which
// each says in its own words.
func tooLong(err error) bool {
	var failed *llm.CallError
	if !errors.As(err, &failed) || failed.Reason != llm.Refused {
		return false
	}
	text := strings.ToLower(failed.Detail)
	for _, phrase := range []string{
		"context length", "context_length", "context window", "maximum context", "prompt is too long", "input is too long",
		"too many tokens", "input token count", "exceeds the available context",
	} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}

// shorter returns the conversation for a model that has just found it too long,
// and remembers that it takes less; ok is false when nothing can be shortened.
func (r *run) shorter(messages []chat.Message) (less []chat.Message, ok bool) {
	size := estimate(messages, nil)
	less = fit(messages, size/2)
	if &less[0] == &messages[0] {
		return nil, false
	}
	r.window.Store(int64(estimate(less, r.specs) + defaultAnswer))
	return less, true
}
