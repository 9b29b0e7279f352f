package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentformation/service/pkg/client"
)

// answer is an answer that comes as a stream.
type answer struct {
	c *chat
	p *stages
	// request and event are those of the last frame that came.
	request, event string
	shown          bool // some of it is printed
}

// stream prints the answer as it comes.
func (c *chat) stream(ctx context.Context) error {
	n := &answer{c: c, p: &stages{a: c.a, on: c.a.errTTY || c.verbose, all: c.verbose}}
	last, err := n.follow(ctx)
	if n.shown {
		fmt.Fprintln(c.a.out)
	}
	if err != nil {
		c.left(ctx, n.request)
		return c.failed(ctx, err, n.request)
	}
	if last.StreamDiscontinuity && n.shown {
		c.a.say("the stream was interrupted; this is the whole answer:")
		n.shown = false
	}
	if !n.shown {
		if err := c.a.result("%s", last.Content); err != nil {
			return err
		}
	}
	c.asked(last.UI, last.RequiresUserResponse)
	return c.after(last.Content, last.UI, last.RequestID)
}

// follow sends the message and takes the frames. A stream that breaks after its
// first frame, as at the death of a process, is taken up after the last one: the
// turn itself goes on.
func (n *answer) follow(ctx context.Context) (*client.Token, error) {
	tick := time.NewTicker(n.c.a.pause)
	defer tick.Stop()
	req, said := n.c.req, false
	for failed := 0; ; failed++ {
		before := n.event
		last, err := n.c.f.ChatStream(ctx, req, n.frame)
		if n.event != before {
			failed = 0
		}
		if n.event == "" || !broke(err) || failed == followTries || ctx.Err() != nil {
			return last, err
		}
		if !said {
			said = true
			n.p.endLine()
			n.c.a.say("the stream broke: the answer goes on when the formation is back")
		}
		req.RequestID, req.LastEventID, req.SessionID, req.Files = n.request, n.event, n.c.req.SessionID, nil
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// broke tells whether a stream ended without an answer or an error of its own,
// and may be taken up.
func broke(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.IsDown() {
		return false
	}
	switch e.Name {
	case client.NameBrokenStream, client.NameUnreachable, "BadGateway", "FormationUnavailable":
		return true
	}
	return false
}

// frame prints one frame.
func (n *answer) frame(tok client.Token) error {
	n.request, n.event = tok.RequestID, tok.EventID
	if tok.SessionID != "" {
		n.c.req.SessionID = tok.SessionID
	}
	if tok.Type != "content" || tok.Content == "" {
		n.p.show(tok)
		return nil
	}
	n.shown = true
	text := printable(tok.Content)
	n.p.wrote(text)
	_, err := fmt.Fprint(n.c.a.out, text)
	return err
}
