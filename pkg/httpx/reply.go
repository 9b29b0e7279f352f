package httpx

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// keptBuffer is the largest buffer, in bytes, that goes back to a pool: one
// large body must not stay in memory for good.
const keptBuffer = 64 << 10

// A pool of empty buffers has no identity.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// writeTimeout is how long one reply or batch of frames may take to leave. A
// client that reads nothing for so long loses its connection, not the turn
// behind it.
const writeTimeout = 20 * time.Second

// setWriteDeadline bounds the next writes. The next request on the connection
// takes the deadline back. Writers that know none, such as a recorder in a
// test, do without.
func setWriteDeadline(rc *http.ResponseController) {
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// leftoverTimeout is how long a reply waits for the rest of a body that nobody
// read: net/http takes it off the connection before the first byte goes out.
const leftoverTimeout = 5 * time.Second

// boundLeftover keeps a client that announced a body and does not send it from
// holding the reply. The server takes the deadline back for the next request.
func boundLeftover(c echo.Context, rc *http.ResponseController) {
	if c.Request().ContentLength != 0 {
		_ = rc.SetReadDeadline(time.Now().Add(leftoverTimeout))
	}
}

func getBuffer() *bytes.Buffer { return buffers.Get().(*bytes.Buffer) }

func putBuffer(b *bytes.Buffer) {
	if b.Cap() > keptBuffer {
		return
	}
	b.Reset()
	buffers.Put(b)
}

// Shared header value, only read.
var jsonType = []string{"application/json"}

// JSON answers with v as JSON: one Marshal into a pooled buffer, one Write,
// with Content-Length. Characters such as < stay as they are. Nothing is sent
// when v cannot be encoded.
func JSON(c echo.Context, status int, v any) error {
	buf := getBuffer()
	defer putBuffer(buf)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	return Raw(c, status, buf.Bytes())
}

// Raw answers with a body that is JSON already.
func Raw(c echo.Context, status int, body []byte) error {
	res := c.Response()
	h := res.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	rc := http.NewResponseController(res.Writer)
	setWriteDeadline(rc)
	boundLeftover(c, rc)
	res.WriteHeader(status)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	// A failed write means that the client left; there is nobody to tell.
	_, _ = res.Write(body)
	return nil
}
