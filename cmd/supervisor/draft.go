package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// maxDraftFile is the largest file that one call can write, in bytes: a
// request may have 1 MiB, and base64 makes four bytes of three.
const maxDraftFile = 768 << 10

// draftCall is a command on the draft of one formation.
type draftCall struct {
	use, short string
	args       int // the most arguments behind the id
	least      int // the fewest
	request    func(args []string) (client.DraftRequest, error)
	show       func(r *client.DraftReply) error
}

func (a *app) draftCommand() *cobra.Command {
	draft := &cobra.Command{
		Use:   "draft",
		Short: "Work on the draft of a formation, on the supervisor's machine",
		Long: `Work on the draft of a formation, on the supervisor's machine.

A formation has at most one draft: a directory beside its versions that can be
written file by file, run under /draft/ID/ beside the version that is deployed,
and deployed when it is good.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var clone bool
	begin := a.draftFiles(draftCall{
		use: "init ID", short: "Begin a draft with a minimal manifest, or with the files that are deployed",
		request: func([]string) (client.DraftRequest, error) {
			mode := "new"
			if clone {
				mode = "clone"
			}
			return client.DraftRequest{Action: client.DraftInit, Mode: mode}, nil
		},
		show: func(r *client.DraftReply) error { return a.result("the draft is made%s", basedOn(r)) },
	})
	begin.Flags().BoolVar(&clone, "clone", false, "copy the version that is deployed")
	draft.AddCommand(begin,
		a.draftFiles(draftCall{use: "list ID [DIR]", short: "List the files of a draft", args: 1, show: a.showEntries, request: onPath(client.DraftList)}),
		a.draftFiles(draftCall{use: "read ID FILE", short: "Print a file of a draft", args: 1, least: 1, show: a.showContent, request: onPath(client.DraftRead)}),
		a.draftFiles(draftCall{
			use: "write ID FILE [FROM]", short: "Write a file of a draft, from a local file or from stdin", args: 2, least: 1,
			request: a.writeRequest,
			show: func(r *client.DraftReply) error {
				return a.result("%s written (%s)", r.Data.Path, bytesText(r.Data.Size))
			},
		}),
		a.draftFiles(draftCall{
			use: "delete ID FILE|DIR", short: "Remove a file or directory of a draft", args: 1, least: 1, request: onPath(client.DraftDelete),
			show: func(r *client.DraftReply) error { return a.result("%s deleted", r.Data.Path) },
		}),
		a.draftFiles(draftCall{
			use: "discard ID", short: "Remove a draft with all its files", request: onPath(client.DraftDiscard),
			show: func(*client.DraftReply) error { return a.result("the draft is discarded") },
		}),
		a.draftDeployCommand(), a.draftRunCommand(), a.draftStopCommand())
	return draft
}

// draftFiles makes the command of a call.
func (a *app) draftFiles(c draftCall) *cobra.Command {
	return &cobra.Command{
		Use: c.use, Short: c.short, Args: cobra.RangeArgs(1+c.least, 1+c.args),
		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			req, err := c.request(args[1:])
			if err != nil {
				return err
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			reply, err := s.Draft(cmd.Context(), args[0], req)
			if err != nil {
				return t.advise(err)
			}
			if a.json() {
				return a.printJSON(reply)
			}
			return c.show(reply)
		}),
	}
}

// onPath is a request whose only argument, when there is one, is a path.
func onPath(action string) func([]string) (client.DraftRequest, error) {
	return func(args []string) (client.DraftRequest, error) {
		req := client.DraftRequest{Action: action}
		if len(args) > 0 {
			req.Path = args[0]
		}
		return req, nil
	}
}

// writeRequest reads what is to be written.
func (a *app) writeRequest(args []string) (client.DraftRequest, error) {
	from := a.in
	if len(args) == 2 && args[1] != "-" {
		f, err := os.Open(args[1])
		if err != nil {
			return client.DraftRequest{}, fmt.Errorf("read the file: %w", err)
		}
		defer f.Close()
		from = f
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxDraftFile+1))
	if err != nil {
		return client.DraftRequest{}, fmt.Errorf("read the file: %w", err)
	}
	if len(raw) > maxDraftFile {
		return client.DraftRequest{}, fmt.Errorf("the file is over the limit of %s for one call: "+
			"put it into the directory and use `supervisor update`", bytesText(maxDraftFile))
	}
	req := client.DraftRequest{Action: client.DraftWrite, Path: args[0], Content: string(raw), Encoding: "utf-8"}
	if !utf8.Valid(raw) {
		req.Content, req.Encoding = base64.StdEncoding.EncodeToString(raw), "base64"
	}
	return req, nil
}

func basedOn(r *client.DraftReply) string {
	if r.Draft.BaseVersion == "" {
		return " with a minimal manifest; --clone copies what is deployed"
	}
	return " from version " + r.Draft.BaseVersion
}

func (a *app) showEntries(r *client.DraftReply) error {
	t := table{heading: []string{"NAME", "SIZE"}}
	for _, e := range r.Data.Entries {
		size := "-"
		if e.Type == "file" {
			size = bytesText(e.Size)
		}
		t.add(e.Name, size)
	}
	return a.printTable(a.out, t)
}

// showContent prints a file as it is when it goes to another program, and what
// a terminal may see otherwise.
func (a *app) showContent(r *client.DraftReply) error {
	content := []byte(r.Data.Content)
	if r.Data.Encoding == "base64" {
		var err error
		if content, err = base64.StdEncoding.DecodeString(r.Data.Content); err != nil {
			return errors.New("the answer is no base64")
		}
	}
	if a.outTTY {
		content = []byte(printable(string(content)))
	}
	_, err := a.out.Write(content)
	return err
}

func (a *app) draftDeployCommand() *cobra.Command {
	return &cobra.Command{
		Use: "deploy ID", Short: "Deploy a draft, as a new formation or as its next version", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			launched, err := a.deployDraft(cmd.Context(), s, args[0])
			if err != nil {
				return t.advise(err)
			}
			return a.printLaunched(launched)
		}),
	}
}

// deployDraft deploys a draft. An interrupt cancels an update; a new formation
// stays, because its files are the draft itself.
func (a *app) deployDraft(ctx context.Context, s *client.Server, id string) (*client.Launched, error) {
	way, deployed := newAttempt(false), false
	switch _, err := s.Get(ctx, id); {
	case err == nil:
		deployed = true
		close(way.sent)
	case client.StatusOf(err) != http.StatusNotFound:
		return nil, err
	}
	launched, err := a.swap(ctx, s, swap{id: id, way: way, do: func(ctx context.Context, show func(client.Progress)) (*client.Launched, error) {
		return s.DeployDraft(ctx, id, show)
	}})
	if err != nil && ctx.Err() != nil && !deployed {
		a.say("%s may still be deployed: look with `supervisor status %s`", id, id)
	}
	return launched, stageOf(err, deployed)
}

func (a *app) draftRunCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run ID", Short: "Run a draft beside the version that is deployed", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			dev, err := s.DevRun(cmd.Context(), args[0])
			if err != nil {
				return t.advise(err)
			}
			return a.printDev(t, dev)
		}),
	}
}

func (a *app) draftStopCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stop ID", Short: "Stop a draft that runs; its files stay", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			return a.stopDev(cmd, args[0])
		}),
	}
}
