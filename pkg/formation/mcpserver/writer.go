package mcpserver

import (
	"net/http"
	"sync"
	"time"
)

// writeTimeout is how long one write may take to leave.
const writeTimeout = 20 * time.Second

// writer is the way to a client that may wait for long: silence is filled with
// comments, and one that reads nothing loses its connection. The lock keeps the
// timer's comments between the protocol's events, each of which is one write.
type writer struct {
	http.ResponseWriter
	rc *http.ResponseController

	mu     sync.Mutex
	timer  *time.Timer // nil: silence is kept
	pace   time.Duration
	closed bool
}

func newWriter(w http.ResponseWriter) *writer {
	return &writer{ResponseWriter: w, rc: http.NewResponseController(w)}
}

// keepAlive begins to fill silence. The answer is a stream of events, whose
// header is complete by now.
func (w *writer) keepAlive(pace time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil || w.closed { // a batch of calls has one way to its client
		return
	}
	w.pace = pace
	w.timer = time.AfterFunc(pace, w.tick)
}

func (w *writer) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if _, err := w.write([]byte(": keepalive\n\n")); err == nil && w.rc.Flush() == nil {
		w.timer.Reset(w.pace)
	}
}

// Write sends what the protocol has to say.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil && !w.closed {
		w.timer.Reset(w.pace)
	}
	return w.write(p)
}

func (w *writer) write(p []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of a test has none
	return w.ResponseWriter.Write(p)
}

// FlushError sends what waits.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rc.Flush()
}

// close ends the comments: the response belongs to the server again.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}
