package llm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/chat"
)

// keeping gathers the answer of a call for the cache. A nil one gathers nothing.
type keeping struct {
	cache  *cache
	req    *Request
	answer answer
	texts  []string
	done   bool
}

// replay answers the call from the cache; false when the model must be asked.
// What the model then says is kept.
func (c *call) replay(ctx context.Context, modelID string) bool {
	store := c.router.cache
	if store == nil || c.req.Fresh {
		return false
	}
	t, err := c.router.split(modelID)
	if err != nil {
		return false // run tells it
	}
	k := &keeping{cache: store, req: &c.req}
	k.answer.key, k.answer.scope = digests(t, &c.req)
	found, ok := store.get(k.answer.key, time.Now())
	if question := lastQuestion(&c.req); !ok && question != "" && store.cfg.Embedding != "" && !store.cfg.HashOnly {
		k.answer.question = question
		found = store.near(ctx, c.router, k.answer.scope, question, c.req.Account)
	}
	if found == nil {
		c.keep = k
		return false
	}
	c.play(found, store.cfg)
	return true
}

// play yields a kept answer as a model would. It used no tokens.
func (c *call) play(a *answer, cfg Caching) {
	pieces := []string{a.text}
	if c.req.Deltas {
		pieces = cut(a.text, cfg.ChunkStrategy, cfg.ChunkLength)
	}
	for _, text := range pieces {
		if text != "" && !c.yield(Chunk{Text: text}, nil) {
			return
		}
	}
	last := a.last
	last.Usage = chat.Usage{}
	last.Cached = true
	c.yield(last, nil)
}

// add notes a chunk; fresh tells that an attempt begins with it.
func (k *keeping) add(chunk Chunk, fresh bool) {
	if k == nil {
		return
	}
	if fresh {
		k.texts = k.texts[:0]
	}
	if chunk.Text != "" {
		k.texts = append(k.texts, chunk.Text)
	}
	if chunk.Done {
		k.answer.last, k.done = chunk, true
	}
}

// store keeps a whole answer. One that asks for tools is not given to other
// wordings, as its arguments hold the first one.
func (k *keeping) store() {
	if k == nil || !k.done {
		return
	}
	a := k.answer
	a.text, a.made = strings.Join(k.texts, ""), time.Now()
	a.last.Text = ""
	if !k.usable(&a) {
		return
	}
	if len(a.last.Calls) > 0 {
		a.question = ""
	}
	k.cache.put(&a)
}

// usable tells whether an answer is worth to be given again: one that was cut,
// filtered or empty is not, nor one that its reader will have to refuse.
func (k *keeping) usable(a *answer) bool {
	if a.last.Finish != "stop" && a.last.Finish != "tool_calls" || a.text == "" && len(a.last.Calls) == 0 {
		return false
	}
	if wants := k.req.JSON || len(k.req.Schema) > 0; wants && len(a.last.Calls) == 0 && !json.Valid([]byte(a.text)) {
		return false
	}
	for _, c := range a.last.Calls {
		known := slices.ContainsFunc(k.req.Tools, func(t chat.ToolSpec) bool { return t.Name == c.Name })
		if !known || len(c.Args) > 0 && !json.Valid(c.Args) {
			return false
		}
	}
	return true
}

// digests returns the key of a request, which covers all that a model sees of
// it, and its scope: the same without the last question, but with who asks.
func digests(t target, req *Request) (key, scope digest) {
	h := hasher{sha256.New()}
	h.text(t.id, req.SchemaName, req.Purpose, string(req.Schema))
	h.number(req.Settings.Temperature != nil, req.Settings.MaxTokens != nil, req.JSON, req.NoCalls)
	if s := req.Settings; s.Temperature != nil {
		h.uint(math.Float64bits(*s.Temperature))
	}
	if s := req.Settings; s.MaxTokens != nil {
		h.uint(uint64(*s.MaxTokens))
	}
	h.uint(uint64(len(req.Tools)))
	for _, tool := range req.Tools {
		h.text(tool.Name, tool.Description, string(tool.Schema))
	}
	h.uint(uint64(len(req.Messages)))
	question := lastQuestion(req)
	for i, m := range req.Messages {
		content := m.Content
		if i == len(req.Messages)-1 && question != "" {
			content = ""
		}
		h.message(&m, content)
	}
	// Sum does not end the hash: the key goes on where the scope branches off.
	base := digest(h.h.Sum(nil))
	keyed, scoped := hasher{sha256.New()}, hasher{sha256.New()}
	keyed.text(string(base[:]), question)
	scoped.text(string(base[:]), req.Account.Agent, req.Account.User)
	return digest(keyed.h.Sum(nil)), digest(scoped.h.Sum(nil))
}

// hasher writes fields so that no two lists of them look alike.
type hasher struct{ h hash.Hash }

func (h hasher) uint(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	_, _ = h.h.Write(b[:])
}

func (h hasher) text(fields ...string) {
	for _, f := range fields {
		h.uint(uint64(len(f)))
		_, _ = h.h.Write([]byte(f))
	}
}

func (h hasher) number(flags ...bool) {
	for _, f := range flags {
		n := uint64(0)
		if f {
			n = 1
		}
		h.uint(n)
	}
}

func (h hasher) message(m *chat.Message, content string) {
	h.text(string(m.Role), content, m.CallID)
	h.uint(uint64(len(m.Calls)))
	for _, c := range m.Calls {
		h.text(c.ID, c.Name, string(c.Args), c.Seal)
	}
	h.uint(uint64(len(m.Parts)))
	for _, p := range m.Parts {
		h.text(string(p.Kind), p.MediaType, p.Name, string(p.Data))
	}
}

// cut cuts text into pieces of n units: sentences, paragraphs, words or
// characters. Together the pieces are the text.
func cut(text, strategy string, n int) []string {
	ends := endOfSentence
	switch strategy {
	case "paragraphs":
		ends = endOfParagraph
	case "words":
		ends = endOfWord
	case "characters":
		ends = func(string, int) bool { return true }
	}
	var pieces []string
	from, units := 0, 0
	for i := 0; i < len(text); {
		_, size := utf8.DecodeRuneInString(text[i:])
		i += size
		if !ends(text, i) {
			continue
		}
		if units++; units >= n {
			pieces = append(pieces, text[from:i])
			from, units = i, 0
		}
	}
	if from < len(text) {
		pieces = append(pieces, text[from:])
	}
	return pieces
}

// The following tell whether a unit ends before text[i].

func endOfWord(text string, i int) bool {
	return isSpace(text[i-1]) && (i == len(text) || !isSpace(text[i]))
}

func endOfParagraph(text string, i int) bool {
	return strings.HasSuffix(text[:i], "\n\n") && (i == len(text) || text[i] != '\n')
}

// endOfSentence is after the white space behind a full stop, or behind the
// stop of a script that writes none.
func endOfSentence(text string, i int) bool {
	for _, stop := range [...]string{"。", "！", "？"} {
		if strings.HasSuffix(text[:i], stop) {
			return true
		}
	}
	if !endOfWord(text, i) {
		return false
	}
	before := strings.TrimRight(text[:i], " \n\t\r")
	if strings.Contains(text[len(before):i], "\n") {
		return true
	}
	return before != "" && strings.ContainsRune(".!?…:", lastRune(before))
}

func lastRune(s string) rune { r, _ := utf8.DecodeLastRuneInString(s); return r }

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
