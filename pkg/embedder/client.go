// Package embedder asks the embedding process of a host for vectors of texts,
// and starts that process when nobody has.
//
// One process serves all formations over a unix socket, so a model is in memory
// once. It may be away at any time: every error of a call is a fault, Unavailable
// when the same call may succeed later, and whoever asks goes on without vectors.
// Formations and the supervisor import it; it links neither engine nor model.
package embedder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
)

// Names of the faults that Embed returns beside those of the model itself. All
// are Unavailable.
const (
	NameUnavailable = "EMBEDDER_UNAVAILABLE"    // there is no embedding process, or it died
	NameLoading     = "EMBEDDING_MODEL_LOADING" // it is fetching or loading the model
	NameBusy        = "EMBEDDER_BUSY"           // too many calls wait
	NameTimeout     = "EMBEDDER_TIMEOUT"        // the call took longer than Config.Timeout
)

// Config is what a Client needs.
type Config struct {
	// Dir is the directory of the socket: DefaultDir, or the one that a
	// supervisor names.
	Dir string
	// Command starts the process; "--dir" and Dir are added to it. Without a
	// command the client takes what is there: in a child of a supervisor, which
	// keeps the process itself.
	Command []string
	// Env is the environment of the process; Environ makes one.
	Env []string
	// Timeout limits one call, beside its context; 0 is 60 s.
	Timeout time.Duration
	// StartTimeout limits a start; 0 is 15 s.
	StartTimeout time.Duration
	Log          zerolog.Logger
}

// Client is safe for concurrent use.
type Client struct {
	cfg    Config
	http   *http.Client
	starts *starter
}

// Embedding is the result of a call.
type Embedding struct {
	Vectors   [][]float32 // one per text, in order
	Dimension int         // of each
	Tokens    int         // of all texts, prefixes and special tokens included
}

// Info describes a model.
type Info struct {
	Model     string `json:"model"`
	Revision  string `json:"revision"` // the commit
	Dimension int    `json:"dimension"`
	MaxTokens int    `json:"max_tokens"` // longer texts are cut
	Engine    string `json:"engine"`
}

// New checks the configuration; it neither connects nor starts anything.
func New(cfg Config) (*Client, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("embedder: the directory %q is not absolute", cfg.Dir)
	}
	if len(socketPath(cfg.Dir)) > maxSocketPath {
		return nil, fmt.Errorf("embedder: the path %s is longer than the %d bytes that a socket may have", socketPath(cfg.Dir), maxSocketPath)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 15 * time.Second
	}
	c := &Client{cfg: cfg, starts: &starter{cfg: cfg}}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, cfg.Dir) },
		// Idle connections would keep an idle process from ending, so few and short.
		MaxIdleConns: 4, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}}
	return c, nil
}

// Close drops idle connections. The process goes on; it ends when nobody has
// called it for a while.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Embed returns a vector per text. task is "", "query", "document",
// "clustering" or "classification". Long texts are cut to what the model reads.
// When the process is not there it is started, and when it dies within the call
// it is started and asked once more.
func (c *Client) Embed(ctx context.Context, model string, texts []string, task string) (Embedding, error) {
	out := Embedding{Vectors: make([][]float32, 0, len(texts))}
	for len(texts) > 0 {
		req := Request{Model: model, Task: task, Texts: share(texts)}
		n := len(req.Texts)
		var res Response
		if err := c.call(ctx, PathEmbed, req, &res); err != nil {
			return Embedding{}, err
		}
		vectors, err := res.Unpack(n)
		if err != nil {
			return Embedding{}, unavailable(err)
		}
		out.Vectors = append(out.Vectors, vectors...)
		out.Tokens += res.Tokens
		out.Dimension = res.Dimension
		texts = texts[n:]
	}
	return out, nil
}

// Info loads the model, fetching it when it must be, and describes it. It proves
// that the model works here.
func (c *Client) Info(ctx context.Context, model string) (Info, error) {
	var info Info
	err := c.call(ctx, PathInfo, Request{Model: model}, &info)
	return info, err
}

// share is the first of the texts, as many as one request takes.
func share(texts []string) []string {
	var out []string
	size := 0
	for _, t := range texts[:min(len(texts), MaxTexts)] {
		t = clip(t)
		if size += maxEscaped*len(t) + 3; size > MaxBody-frame && len(out) > 0 {
			break
		}
		out = append(out, t)
	}
	return out
}

// maxEscaped is how many bytes JSON makes of one at most, and frame what a
// request has around its texts.
const (
	maxEscaped = 6
	frame      = 64 << 10
)

// clip cuts a text between two characters.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// A process that dies takes its connections down before its socket: for a moment
// there seems to be one. lookAgain is the pause before the next look, and looks
// how many there are. A call that ends two processes may be what ends them.
const (
	lookAgain = 20 * time.Millisecond
	looks     = 10
	mostTries = 2
)

// call asks, starts the process where there is none, and asks again.
func (c *Client) call(ctx context.Context, path string, req Request, into any) error {
	limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err := c.post(limited, path, req, into)
	for i, tries := 0, 0; i < looks && tries < mostTries && limited.Err() == nil; i++ {
		if _, lost := errors.AsType[*lostError](err); !lost {
			break
		}
		if i > 0 {
			wait(limited, lookAgain)
		}
		c.http.CloseIdleConnections()
		var fresh bool
		if fresh, err = c.starts.ensure(limited); err == nil {
			err = c.post(limited, path, req, into)
		}
		if fresh {
			tries++
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("embed with %s: %w", req.Model, context.Cause(ctx))
	case limited.Err() != nil:
		return fault.Wrap(fault.Unavailable, NameTimeout, fmt.Sprintf("the embedding process gave no answer within %s", c.cfg.Timeout), err)
	case fault.NameOf(err) != "":
		return err
	}
	return unavailable(err)
}

func unavailable(err error) error {
	return fault.Wrap(fault.Unavailable, NameUnavailable, fmt.Sprintf("the embedding process can't be reached: %v", err), err)
}

// lostError is a connection that wasn't made or broke: a new process may help.
type lostError struct{ cause error }

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// maxAnswer limits an answer, in bytes: MaxTexts vectors of 16384 numbers.
const maxAnswer = 8 << 20

func (c *Client) post(ctx context.Context, path string, req Request, into any) error {
	body, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("write the request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://embedder"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(r)
	if err != nil {
		return &lostError{err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return &lostError{err}
	}
	if len(data) > maxAnswer {
		return fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if res.StatusCode != http.StatusOK {
		var f Failure
		if json.Unmarshal(data, &f) != nil || f.Name == "" {
			return fmt.Errorf("the embedding process answered %s", res.Status)
		}
		return fault.New(fault.ParseKind(f.Kind), f.Name, f.Message)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
