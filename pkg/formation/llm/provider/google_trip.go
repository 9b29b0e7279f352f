package provider

import (
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
	res.Body = &tripBody{
		on: on, body: res.Body, left: maxReply,
		events: strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"),
	}
	return res, nil
}

// tripBody is a reply within bounds. Those of one event matter most: the SDK
// searches all that it holds of it again with every read.
type tripBody struct {
	on     *trip
	body   io.ReadCloser
	left   int
	events bool
	line   int // bytes of the line that is being read
}

func (b *tripBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.left -= n
	if at := bytes.LastIndexByte(p[:n], '\n'); at >= 0 {
		b.line = n - at - 1
	} else {
		b.line += n
	}
	switch {
	case b.left < 0:
		n, err = 0, errReplyTooLong
	case b.events && b.line > maxEvent:
		n, err = 0, errEventTooLong
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.on.err = err
		err = io.EOF
	}
	return n, err
}

func (b *tripBody) Close() error {
	_ = b.body.Close() // nothing depends on it, and the SDK would print it
	return nil
}
