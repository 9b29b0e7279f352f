package httpx

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
)

// Body size limits in bytes (reference server.md 1.1).
const (
	// MaxFormationBody is for formation routes, whose files travel as base64.
	MaxFormationBody = 80 << 20
	// MaxManagementBody is for the management API's JSON.
	MaxManagementBody = 1 << 20
)

// A body gets bodyGrace plus the time it takes at minBodyRate bytes per second.
const (
	bodyGrace   = 30 * time.Second
	minBodyRate = 64 << 10
)

// Body is a JSON request body in memory. Release gives its memory back; after
// that nothing taken from Bytes may be used.
type Body struct {
	buf   *bytes.Buffer
	limit int64
}

// ReadBody reads the body of c's request, at most limit bytes and not slower
// than 64 KiB/s after 30 s of grace. Errors: fault.TooLarge over the limit,
// fault.Invalid when it stops arriving, fault.Canceled when the client left.
func ReadBody(c echo.Context, limit int64) (*Body, error) {
	req := c.Request()
	if req.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	expected := req.ContentLength
	if expected < 0 {
		expected = limit
	}
	rc := http.NewResponseController(c.Response().Writer)
	_ = rc.SetReadDeadline(time.Now().Add(bodyGrace + time.Duration(expected/minBodyRate)*time.Second))
	buf := getBuffer()
	_, err := buf.ReadFrom(io.LimitReader(req.Body, limit+1))
	// A deadline left behind would cancel the request while it is answered.
	_ = rc.SetReadDeadline(time.Time{})
	b := &Body{buf: buf, limit: limit}
	if err == nil && int64(buf.Len()) > limit {
		err = tooLarge(limit)
	}
	if err != nil {
		b.Release()
		return nil, bodyFault(err)
	}
	return b, nil
}

// Release puts the memory of b back.
func (b *Body) Release() {
	if b != nil && b.buf != nil {
		putBuffer(b.buf)
		b.buf = nil
	}
}

// Bytes is the body as it came, until Release.
func (b *Body) Bytes() []byte { return b.buf.Bytes() }

// Decode fills dst, a pointer to a struct, as Bind does.
func (b *Body) Decode(dst any) error { return decodeObject(b.buf.Bytes(), dst) }

// CanonicalHash returns the SHA-256 of the body written in one form: sorted
// keys, no spaces, one way to escape. Two bodies with the same hash mean the
// same. The body must have passed Decode.
func (b *Body) CanonicalHash() ([32]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(b.buf.Bytes()))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return [32]byte{}, fmt.Errorf("read body for its hash: %w", err)
	}
	canonical, err := json.Marshal(v)
	if err != nil {
		return [32]byte{}, fmt.Errorf("write body for its hash: %w", err)
	}
	return sha256.Sum256(canonical), nil
}

func tooLarge(limit int64) *fault.Error {
	return fault.Errorf(fault.TooLarge, "", "request body is larger than %d bytes", limit)
}

func bodyFault(err error) error {
	var f *fault.Error
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return err
	case errors.As(err, &big):
		return tooLarge(big.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.Wrap(fault.Invalid, "", "request body arrived too slowly", err)
	default:
		return fault.Wrap(fault.Canceled, "", "request body ended early", err)
	}
}
