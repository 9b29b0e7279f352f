package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/agentformation/service/pkg/fault"
)

// Bundle is an uploaded archive in a temporary file.
type Bundle struct {
	Sum  [sha256.Size]byte // SHA-256 of the bytes
	Size int64             // bytes
	path string
}

// SHA256 returns the sum as lower-case hex, as the registry keeps it.
func (b *Bundle) SHA256() string { return hex.EncodeToString(b.Sum[:]) }

// Discard removes the file. A nil bundle has none.
func (b *Bundle) Discard() {
	if b != nil {
		_ = os.Remove(b.path) // Restore sweeps what stays
	}
}

// Receive streams body to a temporary file and hashes it on the way; it is
// never held in memory. A body beyond the limit is fault.TooLarge
// "PayloadTooLarge". The caller discards the bundle.
func (s *Service) Receive(ctx context.Context, body io.Reader) (_ *Bundle, err error) {
	f, err := os.CreateTemp(s.cfg.Dirs.Tmp, "bundle-*")
	if err != nil {
		return nil, s.diskError("DirectoryError", "the upload cannot be stored", err)
	}
	b := &Bundle{path: f.Name()}
	defer func() {
		if err != nil {
			b.Discard()
		}
	}()
	limit := s.cfg.Limits.MaxBytes
	hash := sha256.New()
	b.Size, err = io.Copy(io.MultiWriter(f, hash), &bounded{r: body, left: limit})
	err = errors.Join(err, f.Close())
	var big *http.MaxBytesError
	switch {
	case err == nil:
	case errors.Is(err, errTooLong), errors.As(err, &big):
		return nil, fault.Errorf(fault.TooLarge, "PayloadTooLarge", "the bundle is larger than %d bytes (limits.bundle.max_bytes)", limit)
	case ctx.Err() != nil:
		return nil, fault.Wrap(fault.Canceled, "", "the caller left during the upload", err)
	default:
		if _, ok := errors.AsType[*os.PathError](err); ok {
			return nil, s.diskError("DirectoryError", "the upload cannot be stored", err)
		}
		return nil, fault.Errorf(fault.Invalid, "ExtractError", "the upload broke off: %w", err)
	}
	hash.Sum(b.Sum[:0])
	return b, nil
}

var errTooLong = errors.New("the body is longer than allowed")

// bounded is an io.LimitedReader that tells a longer body from one that ends
// at the limit.
type bounded struct {
	r    io.Reader
	left int64
}

// Read fails as soon as more than the limit has come.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// unpackError keeps the faults of the archive and names the errors of the disk.
func (s *Service) unpackError(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return s.diskError("DirectoryError", "the bundle cannot be unpacked", fmt.Errorf("unpack bundle: %w", err))
}
