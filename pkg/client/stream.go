package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// errIdle is the cause of a context that ended because a stream fell silent.
var errIdle = errors.New("the stream was silent for too long")

// streaming is one stream of events to be read.
type streaming struct {
	call *call
	idle time.Duration // of silence that ends it; 0 means never
	// onEvent returns done at the last event of the stream.
	onEvent func(Event) (done bool, err error)
	// onReply takes a success that is no stream; nil refuses it.
	onReply func(body []byte) error
}

// events sends the call once and hands each event of the answer to onEvent.
// A stream that ends before its last event is an *Error NameBrokenStream.
func (r *caller) events(ctx context.Context, s streaming) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.call.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.call.timeout)
		defer stop()
	}
	resp, err := r.open(ctx, s.call)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !isEventStream(resp.Header) {
		return plainReply(resp, s.onReply)
	}
	var body io.Reader = resp.Body
	if s.idle > 0 {
		timer := time.AfterFunc(s.idle, func() { cancel(errIdle) })
		defer timer.Stop()
		body = &awake{r: resp.Body, timer: timer, idle: s.idle}
	}
	err = readEvents(body, s.onEvent)
	if errors.Is(context.Cause(ctx), errIdle) {
		return brokenStream("not one byte came for "+s.idle.String(), errIdle)
	}
	return err
}

func plainReply(resp *http.Response, onReply func([]byte) error) error {
	if onReply == nil {
		return badReply(resp.StatusCode, "a reply that is no stream of events")
	}
	body, err := readReply(resp.Body)
	if err != nil {
		return brokenStream(err.Error(), err)
	}
	return onReply(body)
}

func readEvents(body io.Reader, onEvent func(Event) (bool, error)) error {
	events := NewEventReader(body)
	for {
		ev, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return brokenStream("it ended before its last event", io.ErrUnexpectedEOF)
		case err != nil:
			return brokenStream(err.Error(), err)
		}
		if done, err := onEvent(ev); done || err != nil {
			return err
		}
	}
}

func brokenStream(what string, cause error) *Error {
	return &Error{Name: NameBrokenStream, Message: "the stream broke: " + what, cause: cause}
}

// awake puts off the end of a silent stream at every byte, comments included.
type awake struct {
	r     io.Reader
	timer *time.Timer
	idle  time.Duration
}

// Read reads from the stream.
func (a *awake) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.timer.Reset(a.idle)
	}
	return n, err
}
