package provider

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
)

// noKey stands in for a key where the server wants none; it is not sent.
const noKey = "none"

// trip is what happened to one call below the SDK. The SDK tells a fault in
// words only, and prints some of them to the process's own log.
type trip struct {
	status int // 0 when there was no reply
	header http.Header
	body   []byte // of an error
	page   bool   // a web page came
	err    error  // that ended the exchange or the body
}

// tripKey is where the context of a call holds its *trip.
type tripKey struct{}

// tripper carries the SDK's calls and keeps their trips.
type tripper struct{ next http.RoundTripper }

// RoundTrip makes one exchange. Errors of reading the reply are kept from the
// SDK: to it the reply just ends.
func (t tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	on, ok := req.Context().Value(tripKey{}).(*trip)
	if !ok {
		return nil, errors.New("a call of the SDK's own")
	}
	if req.Header.Get("X-Goog-Api-Key") == noKey {
		req.Header.Del("X-Goog-Api-Key")
	}
	res, err := t.next.RoundTrip(req)
	if err != nil {
		on.err = err
		return nil, err
	}
	on.status, on.header = res.StatusCode, res.Header
	on.page = strings.HasPrefix(res.Header.Get("Content-Type"), "text/html")
	if res.StatusCode != http.StatusOK {
		on.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
		_ = res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(on.body))
		return res, nil
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body = newEventBody(on, res.Body)
	} else {
		res.Body = &tripBody{on: on, body: res.Body, left: maxReply}
	}
	return res, nil
}

// tripBody is a plain reply within bounds.
type tripBody struct {
	on   *trip
	body io.ReadCloser
	left int
}

func (b *tripBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if b.left -= n; b.left < 0 {
		n, err = 0, errReplyTooLong
	}
	return n, b.on.ends(err)
}

// Close closes the reply.
func (b *tripBody) Close() error {
	_ = b.body.Close() // nothing depends on it, and the SDK would print it
	return nil
}

// ends keeps the error that ends a body: to the SDK it just ends.
func (t *trip) ends(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	t.err = err
	return io.EOF
}

// eventBody is a stream within bounds of which the SDK sees the data of events
// alone, one line each. What proxies add, such as comments that keep a connection
// open, the names of events and a last [DONE], it takes for faults, and it
// searches all that it holds of an event again with every read.
type eventBody struct {
	tripBody
	events eventReader
	event  []byte // made ready for the SDK
	rest   []byte // of it, not yet read
}

func newEventBody(on *trip, body io.ReadCloser) *eventBody {
	return &eventBody{tripBody: tripBody{on: on, body: body}, events: eventReader{in: bufio.NewReaderSize(body, readSize)}}
}

func (b *eventBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if err := b.next(); err != nil {
			return 0, b.on.ends(err)
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next makes an event ready. An error of the server may stand in the stream as
// lines of JSON that are no event.
func (b *eventBody) next() error {
	const begin = "data: "
	b.event = append(b.event[:0], begin...)
	for bare := false; ; {
		line, err := b.events.line()
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		switch bare = bare || len(b.event) == len(begin) && bytes.HasPrefix(line, []byte("{")); {
		case bare:
			b.event = append(append(b.event, line...), ' ')
		case ok:
			b.event = append(append(b.event, bytes.TrimSpace(data)...), ' ')
		}
		switch {
		case len(b.event) > maxEvent:
			return errEventTooLong
		case err != nil && (!errors.Is(err, io.EOF) || len(b.event) == len(begin)):
			return err
		case err != nil, len(line) == 0 && len(b.event) > len(begin):
			if said := bytes.TrimSpace(b.event[len(begin):]); len(said) > 0 && string(said) != "[DONE]" {
				b.event = append(b.event, "\n\n"...)
				b.rest = b.event
				return nil
			}
			if err != nil {
				return err
			}
			b.event = b.event[:len(begin)]
		}
	}
}
