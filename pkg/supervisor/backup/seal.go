package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
)

// The seal is the last sealSize bytes of a backup: an empty gzip member whose
// comment is the SHA-256 of all bytes before it. gunzip and tar read it as
// nothing. gzip's own checksum does not cover its header, and damage to the
// compressed form need not change the content; the seal notices every byte.
const (
	sealHead = "\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xff" // deflate, with a comment
	sealTail = "\x00" +                                   // end of the comment
		"\x03\x00" + // no data
		"\x00\x00\x00\x00\x00\x00\x00\x00" // its checksum and length
	sealSize = len(sealHead) + 2*sha256.Size + len(sealTail)
)

func seal(sum []byte) []byte { return []byte(sealHead + hex.EncodeToString(sum) + sealTail) }

// sealer writes and remembers what the seal says.
type sealer struct {
	w    io.Writer
	hash hash.Hash
}

func newSealer(w io.Writer) *sealer { return &sealer{w: w, hash: sha256.New()} }

// Write implements io.Writer.
func (s *sealer) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.hash.Write(p[:n])
	return n, err
}

// close writes the seal.
func (s *sealer) close() error {
	_, err := s.w.Write(seal(s.hash.Sum(nil)))
	return err
}

// unsealer reads what stands before the seal.
type unsealer struct {
	ctx  context.Context //nolint:containedctx // a reader has no other way to learn that its caller left
	r    *bufio.Reader
	hash hash.Hash
}

const unsealBlock = 64 << 10

func newUnsealer(ctx context.Context, r io.Reader) *unsealer {
	return &unsealer{ctx: ctx, r: bufio.NewReaderSize(r, unsealBlock+sealSize), hash: sha256.New()}
}

// Read implements io.Reader; io.EOF comes before the seal.
func (u *unsealer) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	ahead, err := u.r.Peek(min(len(p), unsealBlock) + sealSize)
	if n := len(ahead) - sealSize; n > 0 {
		n = copy(p, ahead[:n])
		u.hash.Write(p[:n])
		_, err := u.r.Discard(n)
		return n, err
	}
	if err == nil {
		err = io.EOF // p is empty
	}
	return 0, err
}

// check reads the rest and compares the seal.
func (u *unsealer) check() error {
	if _, err := io.Copy(io.Discard, u); err != nil {
		return err
	}
	got, err := u.r.Peek(sealSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(got, seal(u.hash.Sum(nil))) {
		return damaged("the backup is damaged or truncated: its seal is not that of its content")
	}
	return nil
}
