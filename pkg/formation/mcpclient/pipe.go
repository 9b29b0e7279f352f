package mcpclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"
)

// The limits of what a process may write to its standard output.
const (
	readBuffer = 16 << 10 // bytes; a message may be longer
	maxGarbage = 1000     // lines in a row that are no messages
)

// pipe is a connection to a process, one message a line. The SDK's own
// would break at the first line that is none, which many servers print; it would
// wait for a server that does not read; and it leaves the process to others.
type pipe struct {
	p       *process
	most    int // bytes of a message
	garbage func(line []byte)

	in      *bufio.Reader // read by one goroutine
	queue   []jsonrpc.Message
	useless int

	writing chan struct{} // holds a token while nobody writes
	closing sync.Once
}

func newPipe(p *process, most int, garbage func([]byte)) *pipe {
	c := &pipe{p: p, most: most, garbage: garbage, in: bufio.NewReaderSize(p.stdout, readBuffer), writing: make(chan struct{}, 1)}
	c.writing <- struct{}{}
	return c
}

// Connect implements mcpsdk.Transport.
func (c *pipe) Connect(context.Context) (mcpsdk.Connection, error) { return c, nil }

// SessionID implements mcpsdk.Connection.
func (c *pipe) SessionID() string { return "" }

var errTooLarge = errors.New("it sent a message that is too large")

// Read implements mcpsdk.Connection. Lines that are no messages are passed over.
func (c *pipe) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if len(c.queue) > 0 {
			msg := c.queue[0]
			c.queue = c.queue[1:]
			return msg, nil
		}
		line, err := c.line()
		if err != nil {
			c.Close()
			return nil, c.lost(err)
		}
		if msgs := messages(line); msgs != nil {
			c.queue, c.useless = msgs, 0
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		c.garbage(line)
		if c.useless++; c.useless > maxGarbage {
			c.Close()
			return nil, fmt.Errorf("it writes other things than messages to its standard output, for example %q", clip(line, 80))
		}
	}
}

// lostError is an io.EOF that says why.
type lostError struct{ text string }

// Error implements error.
func (e *lostError) Error() string { return e.text }

// Unwrap returns io.EOF.
func (e *lostError) Unwrap() error { return io.EOF }

// lost says why nothing comes any more.
func (c *pipe) lost(err error) error {
	if errors.Is(err, errTooLarge) {
		return err
	}
	if how := c.p.itself(); how != "" {
		return &lostError{"its process " + how}
	}
	return &lostError{"it closed its standard output"}
}

// line reads one line, without its end. It is valid until the next call.
func (c *pipe) line() ([]byte, error) {
	var long []byte
	for {
		part, err := c.in.ReadSlice('\n')
		if err == nil && long == nil {
			return part, nil
		}
		if len(long)+len(part) > c.most {
			return nil, fmt.Errorf("%w: more than %d MiB", errTooLarge, c.most>>20)
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return long, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err // a line without an end is no message
		}
	}
}

// messages decodes a line: a message, or a list of them as older servers write.
// nil when it is neither.
func messages(line []byte) []jsonrpc.Message {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	parts := []json.RawMessage{line}
	switch line[0] {
	case '{':
	case '[':
		if json.Unmarshal(line, &parts) != nil {
			return nil
		}
	default:
		return nil
	}
	var out []jsonrpc.Message
	for _, part := range parts {
		msg, err := jsonrpc.DecodeMessage(part)
		if err != nil {
			return nil
		}
		out = append(out, msg)
	}
	return out
}

// Write implements mcpsdk.Connection. It returns when ctx ends, also when the
// process does not read; a message of which a part was written then breaks the
// connection.
func (c *pipe) Write(ctx context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	select {
	case <-c.writing:
		defer func() { c.writing <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := writeUntil(ctx, c.p.stdin, append(data, '\n'))
	if n > 0 {
		attemptOf(ctx).begun.Store(true)
	}
	if err != nil && (n > 0 || ctx.Err() == nil) {
		c.Close()
	}
	if errors.Is(err, unix.EPIPE) {
		if how := c.p.itself(); how != "" {
			return &lostError{"its process " + how}
		}
	}
	return err
}

// writeUntil is Write with an end.
func writeUntil(ctx context.Context, f *os.File, data []byte) (int, error) {
	if ctx.Done() == nil {
		return f.Write(data)
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetWriteDeadline(time.Unix(1, 0))
		close(fired)
	})
	n, err := f.Write(data)
	if !stop() {
		<-fired
		_ = f.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// Close implements mcpsdk.Connection: the process begins to end, and the reader
// hears no more.
func (c *pipe) Close() error {
	c.closing.Do(func() {
		c.p.end()
		_ = c.p.stdout.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

// clip returns the first n bytes of a line as text.
func clip(line []byte, n int) string {
	if len(line) > n {
		return string(bytes.ToValidUTF8(line[:n], nil)) + "…"
	}
	return string(bytes.ToValidUTF8(line, nil))
}
