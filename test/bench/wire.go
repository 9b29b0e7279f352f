package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// caller sends one prebuilt request again and again over one kept connection.
// It reads replies with as little work as it can, because it shares the
// machine with what it measures.
type caller struct {
	addr    string
	request []byte
	done    []byte // what a complete reply contains, near its end

	conn  net.Conn
	in    *bufio.Reader
	body  []byte
	first time.Time // when the first content frame of the last reply came
}

// replyTimeout bounds one request; nothing measured here takes that long.
const replyTimeout = 30 * time.Second

// contentFrame is in every frame that carries a slice of the answer.
var contentFrame = []byte(`"type":"content"`)

// call sends the request and reads its reply. Any error drops the connection.
func (c *caller) call() error {
	err := c.try()
	if err != nil {
		c.close()
	}
	return err
}

func (c *caller) try() error {
	if c.conn == nil {
		conn, err := net.DialTimeout("tcp", c.addr, replyTimeout)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.conn, c.in = conn, bufio.NewReaderSize(conn, 16<<10)
	}
	c.first = time.Time{}
	if err := c.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	status, last, err := c.read()
	if err != nil {
		return fmt.Errorf("read the reply: %w", err)
	}
	if status != 200 || !bytes.Contains(c.body, c.done) {
		return fmt.Errorf("status %d: %.300s", status, c.body)
	}
	if last {
		c.close()
	}
	return nil
}

func (c *caller) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// read reads one reply into c.body and says whether the server closes after it.
func (c *caller) read() (status int, last bool, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, false, err
	}
	if len(line) < 12 {
		return 0, false, fmt.Errorf("status line %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, false, fmt.Errorf("status line %q", line)
	}
	length, chunked := 0, false
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return 0, false, err
		}
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		if !ok {
			break
		}
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, false, fmt.Errorf("content length %q", value)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		case bytes.EqualFold(name, []byte("Connection")):
			last = bytes.EqualFold(value, []byte("close"))
		}
	}
	c.body = c.body[:0]
	if !chunked {
		return status, last, c.take(length)
	}
	return status, last, c.readChunks()
}

func (c *caller) readChunks() error {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return fmt.Errorf("chunk size %q", line)
		}
		begin := len(c.body)
		if err := c.take(int(size)); err != nil {
			return err
		}
		if c.first.IsZero() && bytes.Contains(c.body[begin:], contentFrame) {
			c.first = time.Now()
		}
		if _, err := c.in.Discard(2); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}

// maxReply bounds a reply; the answers of the model server are short.
const maxReply = 1 << 20

// take appends n bytes of the connection to the body.
func (c *caller) take(n int) error {
	if n > maxReply-len(c.body) {
		return errors.New("the reply is over 1 MiB")
	}
	begin := len(c.body)
	if cap(c.body) < begin+n {
		c.body = append(make([]byte, 0, 2*(begin+n)), c.body...)
	}
	c.body = c.body[:begin+n]
	_, err := io.ReadFull(c.in, c.body[begin:])
	return err
}
