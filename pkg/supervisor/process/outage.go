package process

import (
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/ports"
)

// outage bounds how long clients wait while no child accepts: after the limit
// the supervisor answers on the formation's socket itself.
type outage struct {
	log     zerolog.Logger
	limit   time.Duration
	handler http.Handler

	mu     sync.Mutex    // guards what follows; held for socket calls, which return at once
	socket *ports.Socket // nil before the first start
	down   bool
	timer  *time.Timer
}

// use sets the socket to answer on.
func (o *outage) use(socket *ports.Socket) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.socket = socket
}

// begin starts the clock, unless it runs.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return
	}
	o.down = true
	o.timer = time.AfterFunc(o.limit, o.elapsed)
}

func (o *outage) elapsed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		o.answer()
	}
}

// now answers from this moment on: no child is going to come.
func (o *outage) now() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	o.down = true
	o.answer()
}

// answer begins to serve; mu is held.
func (o *outage) answer() {
	if o.socket == nil || o.handler == nil {
		return
	}
	// An adopted child's socket may have died with it.
	err := o.socket.Bind()
	if err == nil {
		err = o.socket.Serve503(o.handler)
	}
	if err != nil {
		o.log.Error().Err(err).Msg("cannot answer on the formation's port")
		return
	}
	o.log.Warn().Int("port", o.socket.Port()).Msg("no process serves: answering 503 on the formation's port")
}

// end stops the clock and the answering. It comes after a child serves, so that
// at no moment nobody accepts.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = false
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if o.socket != nil {
		o.socket.StopServing()
	}
}
