package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
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
	door
	req                   client.ChatRequest
	whole, async, verbose bool
	files                 []string // paths of what goes with the first message
	id                    string   // of the formation
	pending               *client.Widget
	one                   bool // one message, then the command ends
}

const chatHelp = `Talk to a formation, one message or line by line.

The answer goes to stdout, what the formation does meanwhile to stderr: for a
person at a terminal, or with --verbose. Below the answer are its widgets: choices
as a numbered list, links, resources of tool servers. Line by line, the number or
the name of a choice takes it.

The turn is the formation's: an answer whose connection breaks is taken up again
where it broke, and an interrupt leaves the formation at work on it.`

func (a *app) chatCommand() *cobra.Command {
	c := &chat{door: door{a: a, wish: wantClient, user: a.userName}}
	cmd := &cobra.Command{
		Use:   "chat ID [MESSAGE]",
		Short: "Talk to a formation, one message or line by line",
		Long:  chatHelp,
		Example: `  supervisor chat hello "What is 12 times 12?"
  supervisor chat hello --agent writer --session s1 --file report.pdf "Sum this up"
  supervisor chat hello --verbose --no-stream "What can you do?" > answer.txt`,
		Args: cobra.RangeArgs(1, 2),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) (err error) {
			if c.req.Files, err = readFiles(c.files); err != nil {
				return err
			}
			return c.within(cmd.Context(), args[0], func(*client.Formation) error {
				c.id, c.one = args[0], len(args) == 2
				if c.one {
					return c.say(cmd.Context(), args[1])
				}
				return c.lines(cmd.Context())
			})
		}),
	}
	c.flags(cmd, "user id to talk as")
	flags := cmd.Flags()
	flags.StringVar(&c.req.AgentID, "agent", "", "agent to talk to (default: the formation chooses)")
	flags.StringVar(&c.req.SessionID, "session", "", "session to continue")
	flags.StringArrayVar(&c.files, "file", nil, "file that goes with the first message, may be repeated")
	flags.BoolVar(&c.async, "async", false, "hand the message over, then wait for the result")
	flags.BoolVar(&c.whole, "no-stream", false, "print the answer when it is whole")
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "show on stderr all that the formation does, also without a terminal")
	return cmd
}

// lines answers each line of the input until it ends. A person sees an error
// and goes on; a script ends with it.
func (c *chat) lines(ctx context.Context) error {
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
				c.a.say("%v", c.advise(err))
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

// say sends one message, or the choice that it is, and prints the answer. Later
// messages are of the same session, and without the files.
func (c *chat) say(ctx context.Context, message string) (err error) {
	c.req.Message, c.req.UIResponse = message, nil
	if i, ok := choice(c.pending, message); ok {
		c.req.Message, c.req.UIResponse = "", &client.UIResponse{ID: c.pending.ID, Index: &i}
	}
	switch {
	case c.async:
		err = c.later(ctx)
	case c.whole || c.a.json():
		err = c.atOnce(ctx)
	default:
		err = c.stream(ctx)
	}
	if err == nil {
		c.req.Files = nil
	}
	return err
}

// atOnce waits for the whole answer.
func (c *chat) atOnce(ctx context.Context) error {
	reply, err := c.f.Chat(ctx, c.req)
	if err != nil {
		return c.failed(ctx, err, "")
	}
	c.req.SessionID = reply.SessionID
	c.asked(reply.Message.UI, reply.Asks())
	if c.a.json() {
		return c.a.printJSON(reply)
	}
	if err := c.a.result("%s", reply.Response); err != nil {
		return err
	}
	return c.after(reply.Response, reply.Message.UI, reply.RequestID)
}

// failed adds to the failure of a turn where to see how it came.
func (c *chat) failed(ctx context.Context, err error, request string) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || ctx.Err() != nil || e.Status != http.StatusInternalServerError {
		return err
	}
	if request = cmp.Or(e.RequestID, request); request == "" || c.draft {
		return err
	}
	return &hint{err, "`supervisor trace " + c.id + " " + request + "` shows what was done"}
}

// left tells, after an interrupt, that the formation was not interrupted.
func (c *chat) left(ctx context.Context, request string) {
	if ctx.Err() == nil || request == "" || c.draft {
		return
	}
	c.a.say("the formation may still work on it: `supervisor trace %s %s` shows what comes of it", c.id, request)
}

// later hands the message over and waits for the result. An interrupt leaves
// the formation at work.
func (c *chat) later(ctx context.Context) error {
	if c.req.SessionID == "" { // the promise does not name the one that it makes
		c.req.SessionID = "sess_" + rand.Text()[:21]
	}
	accepted, err := c.f.ChatAsync(ctx, c.req)
	if err != nil {
		return err
	}
	c.a.say("accepted as %s", accepted.RequestID)
	r, err := c.f.WaitRequest(ctx, accepted.RequestID)
	if err != nil {
		return err
	}
	asks := r.Status == "awaiting_clarification"
	c.asked(r.UI, asks)
	text := r.Response
	if asks {
		text = r.Question
	}
	if c.a.json() {
		err = c.a.printJSON(r)
	} else if text != "" || len(r.UI) > 0 {
		if err = c.a.result("%s", text); err == nil {
			err = c.after(text, r.UI, r.RequestID)
		}
	}
	if r.Status != "completed" && !asks && err == nil {
		err = fmt.Errorf("request %s is %s: %s", r.RequestID, r.Status, orDash(r.Failure))
	}
	return err
}
