package mcpserver

import (
	"bytes"
	"net/http"
)

// recorder takes an answer of the API.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	// stream takes the body instead once it is known to be a stream of events.
	stream func(p []byte) error
}

func newRecorder() *recorder { return &recorder{header: make(http.Header)} }

// Header is the header of the answer.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader begins the answer.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

// Write takes a part of the body.
func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.stream != nil && r.header.Get("Content-Type") == eventStream {
		return len(p), r.stream(p)
	}
	return r.body.Write(p)
}

// Flush has nothing to do: all is here.
func (*recorder) Flush() {}

// fail makes it the answer to a call that never was a request.
func (r *recorder) fail(envelope []byte) {
	r.status = http.StatusUnprocessableEntity
	r.body.Reset()
	r.body.Write(envelope)
}
