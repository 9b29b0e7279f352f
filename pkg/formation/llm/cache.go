package llm

import (
	"container/list"
	"context"
	"crypto/sha256"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/agentformation/service/pkg/formation/chat"
)

// Caching tells how answers are reused. The zero value reuses none.
type Caching struct {
	Enabled bool
	// MaxEntries bounds the answers kept; 0 means 10000.
	MaxEntries int
	// P is the cosine from which another wording counts as the same question.
	P float64
	// HashOnly reuses answers to equal requests only.
	HashOnly bool
	// TTL is how long an answer is reused; 0 means as long as there is room.
	TTL time.Duration
	// Embedding is the model id that compares wordings; "" compares none.
	Embedding string
	// ChunkStrategy cuts a replayed stream into sentences (the default),
	// paragraphs, words or characters, ChunkLength of them to a piece.
	ChunkStrategy string
	ChunkLength   int
}

// Bounds of the cache beside the author's.
const (
	cacheEntries = 10000
	cacheBytes   = 32 << 20 // of texts and vectors
	nearest      = 128      // wordings compared for one question
	entryBytes   = 512      // of an entry without its texts
)

// cache keeps answers in memory, the ones used last. An answer is found again
// by an equal request, whoever asks: all that went into it is in the request.
// It is found by another wording only in the same conversation state, for the
// same agent and user, since it may repeat what the first wording said.
type cache struct {
	cfg Caching

	mu     sync.Mutex // guards the fields that follow
	exact  map[digest]*list.Element
	scopes map[digest][]*answer // answers by all but the last question
	order  *list.List           // of *answer, the last used in front
	bytes  int
}

type digest [sha256.Size]byte

// answer is a kept reply.
type answer struct {
	key, scope digest
	question   string
	vector     []float32 // of question, made when another wording first needs it
	made       time.Time
	text       string
	last       Chunk
}

func newCache(cfg Caching) *cache {
	if !cfg.Enabled {
		return nil
	}
	if cfg.MaxEntries <= 0 {
		cfg.MaxEntries = cacheEntries
	}
	return &cache{cfg: cfg, exact: map[digest]*list.Element{}, scopes: map[digest][]*answer{}, order: list.New()}
}

// get returns the answer to an equal request.
func (c *cache) get(key digest, now time.Time) (*answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.exact[key]
	if !ok {
		return nil, false
	}
	a := of(e)
	if c.cfg.TTL > 0 && now.Sub(a.made) >= c.cfg.TTL {
		c.drop(e)
		return nil, false
	}
	c.order.MoveToFront(e)
	return a, true
}

// put keeps an answer and forgets the ones unused for longest.
func (c *cache) put(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.exact[a.key]; ok {
		c.drop(old)
	}
	c.exact[a.key] = c.order.PushFront(a)
	if a.question != "" {
		c.scopes[a.scope] = append(c.scopes[a.scope], a)
	}
	c.bytes += a.size()
	for c.order.Len() > c.cfg.MaxEntries || c.bytes > cacheBytes {
		c.drop(c.order.Back())
	}
}

// drop forgets an answer; the caller holds mu.
func (c *cache) drop(e *list.Element) {
	a := of(e)
	c.order.Remove(e)
	delete(c.exact, a.key)
	c.bytes -= a.size()
	if rest := slices.DeleteFunc(c.scopes[a.scope], func(o *answer) bool { return o == a }); len(rest) > 0 {
		c.scopes[a.scope] = rest
	} else {
		delete(c.scopes, a.scope)
	}
}

func of(e *list.Element) *answer {
	a, _ := e.Value.(*answer) // the list holds nothing else
	return a
}

func (a *answer) size() int {
	n := entryBytes + len(a.text) + len(a.question) + 4*len(a.vector)
	for _, c := range a.last.Calls {
		n += len(c.Name) + len(c.Args) + len(c.Seal)
	}
	return n
}

// wordings returns the newest answers to other wordings of what scope leaves open.
func (c *cache) wordings(scope digest, now time.Time) []*answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*answer
	for _, a := range slices.Backward(c.scopes[scope]) {
		if c.cfg.TTL <= 0 || now.Sub(a.made) < c.cfg.TTL {
			out = append(out, a)
		}
		if len(out) == nearest {
			break
		}
	}
	return out
}

// near finds the answer to another wording of question. Vectors are made only
// when there is something to compare with, all in one call.
func (c *cache) near(ctx context.Context, r *Router, scope digest, question string, who Account) *answer {
	found := slices.DeleteFunc(c.wordings(scope, time.Now()), func(a *answer) bool { return !sameNumbers(a.question, question) })
	if len(found) == 0 {
		return nil
	}
	texts, missing := []string{question}, []*answer(nil)
	c.mu.Lock()
	for _, a := range found {
		if a.vector == nil {
			texts, missing = append(texts, a.question), append(missing, a)
		}
	}
	c.mu.Unlock()
	out, err := r.Embed(ctx, c.cfg.Embedding, EmbedRequest{Texts: texts, Account: who})
	if err != nil {
		r.cfg.Log.Debug().Err(err).Msg("answers are compared by their hash only")
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, a := range missing {
		if a.vector == nil {
			a.vector = out.Vectors[i+1]
			if _, kept := c.exact[a.key]; kept {
				c.bytes += 4 * len(a.vector)
			}
		}
	}
	var best *answer
	most := c.cfg.P
	for _, a := range found {
		if p := cosine(out.Vectors[0], a.vector); p >= most {
			best, most = a, p
		}
	}
	return best
}

// cosine of two vectors; 0 when they do not compare.
func cosine(a, b []float32) float64 {
	if len(a) != len(b) {
		return 0
	}
	var dot, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		dot, aa, bb = dot+x*y, aa+x*x, bb+y*y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return dot / math.Sqrt(aa*bb)
}

// sameNumbers tells whether the same numbers and codes stand in both texts:
// vectors hardly see them, but an answer about order 4711 is none about 4712.
func sameNumbers(a, b string) bool { return slices.Equal(numbers(a), numbers(b)) }

func numbers(text string) []string {
	return slices.DeleteFunc(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), func(w string) bool { return !strings.ContainsFunc(w, unicode.IsDigit) })
}

// lastQuestion returns the text of the last message when it is the user's own:
// the one thing that may be worded otherwise.
func lastQuestion(req *Request) string {
	if n := len(req.Messages); n > 0 && req.Messages[n-1].Role == chat.User {
		return req.Messages[n-1].Content
	}
	return ""
}
