package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// maxTyped is the longest message that a line of input may hold, in bytes.
const maxTyped = 1 << 20

// chat is one conversation.
type chat struct {
	a             *app
	f             *client.Formation
	req           client.ChatRequest
	whole, async  bool
	origin        string // where the key is from, in words
	key, userName string
	draft         bool
}

func (a *app) chatCommand() *cobra.Command {
	c := &chat{a: a}
	cmd := &cobra.Command{
		Use:   "chat ID [MESSAGE]",
		Short: "Talk to a formation, one message or line by line",
		Args:  cobra.RangeArgs(1, 2),

		ValidArgsFunction: a.completeIDs,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, err := c.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer c.f.Close()
			if len(args) == 2 {
				err = c.say(cmd.Context(), args[1])
			} else {
				err = c.lines(cmd.Context(), t)
			}
			return c.advise(t, err)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&c.key, "key", "", "key of the formation (default: from the profile or the local home)")
	flags.StringVar(&c.userName, "user", a.userName, "user id to talk as")
	flags.StringVar(&c.req.AgentID, "agent", "", "agent to talk to (default: the formation chooses)")
	flags.StringVar(&c.req.SessionID, "session", "", "session to continue")
	flags.BoolVar(&c.draft, "draft", false, "talk to the draft that runs instead of what is deployed")
	flags.BoolVar(&c.async, "async", false, "hand the message over, then wait for the result")
	flags.BoolVar(&c.whole, "no-stream", false, "print the answer when it is whole")
	return cmd
}

// open finds the supervisor and the key.
func (c *chat) open(ctx context.Context, id string) (*target, error) {
	t, s, err := c.a.connect()
	if err != nil {
		return nil, err
	}
	s.Close()
	if err := c.findKey(ctx, t, id); err != nil {
		return nil, err
	}
	cfg := client.FormationConfig{ClientKey: client.Secret(c.key), UserID: c.userName}
	if strings.HasPrefix(c.key, "fma_") {
		cfg.ClientKey, cfg.AdminKey = "", client.Secret(c.key)
	}
	cfg.Draft = c.draft
	c.f, err = t.formation(id, cfg)
	return t, err
}

// findKey takes --key, else a saved key, else the generated one of a local home.
func (c *chat) findKey(ctx context.Context, t *target, id string) error {
	if c.key != "" {
		c.origin = "--key"
		return nil
	}
	if key, ok := t.keys[id]; ok {
		c.key, c.origin = string(key), t.origin
		return nil
	}
	if t.home != nil && c.draft {
		keys, err := t.draftKeys(ctx, id, c.userName)
		if err != nil {
			return err
		}
		c.key, c.origin = keys.Client, "the draft in "+t.home.dir
		return nil
	}
	if t.home == nil {
		return usagef("no key for %s: give --key, or save one as keys.%s of the %s", id, id, t.origin)
	}
	keys, err := t.home.keys(id)
	if err != nil {
		return err
	}
	if keys.Client == "" {
		return usagef("the manifest of %s sets its client key: give it as --key", id)
	}
	c.key, c.origin = keys.Client, t.home.formationDir(id)
	return nil
}

// lines answers each line of the input until it ends. A person sees an error
// and goes on; a script ends with it.
func (c *chat) lines(ctx context.Context, t *target) error {
	typed := make(chan string)
	ended := make(chan error, 1)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go c.read(reading, typed, ended)
	for {
		if c.a.inTTY {
			fmt.Fprint(c.a.err, "> ")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case line := <-typed:
			err := c.say(ctx, line)
			if err != nil && (!c.a.inTTY || ctx.Err() != nil) {
				return err
			}
			if err != nil {
				c.a.say("%v", c.advise(t, err))
			}
		}
	}
}

// read sends the lines that are not blank. It may outlive the command while it
// waits for a terminal, which the end of the program ends.
func (c *chat) read(ctx context.Context, typed chan<- string, ended chan<- error) {
	in := bufio.NewScanner(c.a.in)
	in.Buffer(nil, maxTyped)
	for in.Scan() {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}
		select {
		case typed <- in.Text():
		case <-ctx.Done():
			return
		}
	}
	if err := in.Err(); err != nil {
		ended <- fmt.Errorf("read the message: %w", err)
		return
	}
	ended <- nil
}

// say sends one message and prints the answer. Later messages are of the same
// session.
func (c *chat) say(ctx context.Context, message string) error {
	c.req.Message = message
	switch {
	case c.async:
		return c.later(ctx)
	case c.whole || c.a.json():
		reply, err := c.f.Chat(ctx, c.req)
		if err != nil {
			return err
		}
		c.req.SessionID = reply.SessionID
		if c.a.json() {
			return c.a.printJSON(reply)
		}
		return c.a.result("%s", reply.Response)
	}
	return c.stream(ctx)
}

// later hands the message over and waits for the result. An interrupt leaves
// the formation at work.
func (c *chat) later(ctx context.Context) error {
	accepted, err := c.f.ChatAsync(ctx, c.req)
	if err != nil {
		return err
	}
	c.a.say("accepted as %s", accepted.RequestID)
	r, err := c.f.WaitRequest(ctx, accepted.RequestID)
	if err != nil {
		return err
	}
	if c.a.json() {
		err = c.a.printJSON(r)
	} else if r.Response != "" {
		err = c.a.result("%s", r.Response)
	}
	if r.Status != "completed" && err == nil {
		err = fmt.Errorf("request %s is %s: %s", r.RequestID, r.Status, orDash(r.Failure))
	}
	return err
}

// stream prints the answer as it comes.
func (c *chat) stream(ctx context.Context) error {
	shown := false
	last, err := c.f.ChatStream(ctx, c.req, func(tok client.Token) error {
		if tok.SessionID != "" {
			c.req.SessionID = tok.SessionID
		}
		if tok.Type != "content" || tok.Content == "" {
			return nil
		}
		shown = true
		_, err := fmt.Fprint(c.a.out, printable(tok.Content))
		return err
	})
	if shown {
		fmt.Fprintln(c.a.out)
	}
	if err != nil {
		return err
	}
	if last.StreamDiscontinuity && shown {
		c.a.say("the stream was interrupted; this is the whole answer:")
		shown = false
	}
	if shown {
		return nil
	}
	return c.a.result("%s", last.Content)
}

// advise adds to an error what the person can do.
func (c *chat) advise(t *target, err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if ok && e.Status == http.StatusUnauthorized {
		return &hint{err, "the key is from " + c.origin}
	}
	if ok && c.draft && (e.Status == http.StatusNotFound || e.Status == http.StatusServiceUnavailable) {
		return &hint{err, "`supervisor dev` or `up` runs a directory, `supervisor draft run` a draft"}
	}
	return t.advise(err)
}
