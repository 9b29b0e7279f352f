package archive

import (
	"bufio"
	"context"
	"io"
)

// compressed counts and bounds the bytes taken from the network or the disk.
// It is an io.ByteReader, so that the gzip reader takes no byte beyond its
// own stream and trailing garbage can be seen.
type compressed struct {
	ctx context.Context //nolint:containedctx // a reader has no other way to learn that its caller left
	r   *bufio.Reader
	n   int64
	max int64
}

func (c *compressed) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	return n, c.count(n, err)
}

func (c *compressed) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err != nil {
		return 0, err
	}
	return b, c.count(1, nil)
}

func (c *compressed) count(n int, err error) error {
	c.n += int64(n)
	if c.n > c.max {
		return tooLarge("the bundle is larger than %d bytes (limits.bundle.max_bytes)", c.max)
	}
	return err
}

// unpacked counts and bounds the decompressed bytes, tar headers included:
// an archive of a million empty files costs its headers.
type unpacked struct {
	ctx   context.Context //nolint:containedctx // see compressed
	r     io.Reader
	in    *compressed
	n     int64
	max   int64
	ratio int64
}

func (u *unpacked) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := u.r.Read(p)
	u.n += int64(n)
	switch {
	case u.n > u.max:
		return n, tooLarge("the bundle unpacks to more than %d bytes (limits.bundle.max_unpacked_bytes)", u.max)
	case u.n > ratioFloor && u.n > u.ratio*u.in.n:
		return n, tooLarge("the bundle unpacks to more than %d times its size (limits.bundle.max_ratio)", u.ratio)
	}
	return n, err
}
