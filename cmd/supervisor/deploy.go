package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// sendOptions are the flags of deploy and update.
type sendOptions struct {
	includeDB, force, dryRun, plain bool
	// mustExist refuses a formation that is not deployed yet.
	mustExist bool
}

func (a *app) deployCommand() *cobra.Command {
	return a.sendCommand(&sendOptions{}, &cobra.Command{
		Use:   "deploy DIR|BUNDLE",
		Short: "Check a formation, upload it and wait until it runs",
		Long: `Check a formation, upload it and wait until it runs.

A formation that is deployed already is updated: the new version takes over on
the same port when it is ready, and requests that are under way finish on the
old one. When the new version fails, the old one serves on.

Ctrl-C undoes what was begun: a new formation is removed again, an update is
cancelled.`,
	})
}

func (a *app) updateCommand() *cobra.Command {
	return a.sendCommand(&sendOptions{mustExist: true}, &cobra.Command{
		Use:   "update DIR|BUNDLE",
		Short: "Replace a formation that is deployed by a new version, without a gap",
		Long: `Replace a formation that is deployed by a new version, without a gap.

The version in the manifest must be higher than the one that runs, unless
--force is given. The new version takes over on the same port when it is ready,
and requests that are under way finish on the old one. When the new version
fails, the old one serves on. Ctrl-C cancels the update.`,
	})
}

func (a *app) sendCommand(opts *sendOptions, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = a.completeDir
	cmd.RunE = does(func(cmd *cobra.Command, args []string) error {
		t, s, err := a.connect()
		if err != nil {
			return err
		}
		defer s.Close()
		b, err := a.openBundle(cmd.Context(), args[0], keepsName(opts.includeDB))
		if err != nil {
			return err
		}
		err = t.advise(a.send(cmd.Context(), s, b, *opts))
		if err == nil && !opts.dryRun && b.tools {
			a.warnOfTools(cmd.Context(), b.id)
		}
		return errors.Join(err, b.close())
	})
	flags := cmd.Flags()
	flags.BoolVar(&opts.includeDB, "include-db", false, "send the directory's memory.db as the formation's first memory")
	flags.BoolVar(&opts.force, "force", false, "update also to a version that is not higher than the one that runs")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "check and compare, but send nothing")
	flags.BoolVar(&opts.plain, "no-stream", false, "ask for one answer at the end instead of the steps")
	return cmd
}

// plan is what a deploy is going to do.
type plan struct {
	ID      string `json:"formation_id"`
	Action  string `json:"action"` // deploy or update
	Version string `json:"version"`
	// Current is the version that runs, "" for a new formation.
	Current string `json:"current_version,omitempty"`
	Bytes   int64  `json:"bundle_bytes"`
	SHA256  string `json:"bundle_sha256"`
}

// send deploys a bundle, or updates the formation that has its id.
func (a *app) send(ctx context.Context, s *client.Server, b *bundle, opts sendOptions) error {
	p, err := planOf(ctx, s, b, opts)
	if err != nil {
		return err
	}
	if opts.dryRun {
		return a.printPlan(p)
	}
	do := a.deploy
	if p.Action == "update" {
		do = a.update
	}
	launched, err := do(ctx, s, b, opts.plain)
	if err != nil {
		return stageOf(err, p.Action == "update")
	}
	return a.printLaunched(launched)
}

// planOf compares the bundle with what is deployed under its id and refuses
// what makes no sense, before anything is sent.
func planOf(ctx context.Context, s *client.Server, b *bundle, opts sendOptions) (*plan, error) {
	p := &plan{ID: b.id, Action: "deploy", Version: b.version, Bytes: b.size, SHA256: b.sum}
	f, err := s.Get(ctx, b.id)
	switch {
	case client.StatusOf(err) == http.StatusNotFound && opts.mustExist:
		return nil, &hint{err, "`supervisor deploy` deploys a new formation"}
	case client.StatusOf(err) == http.StatusNotFound:
		return p, nil
	case err != nil:
		return nil, err
	}
	p.Action, p.Current = "update", f.Version.Semantic
	if b.sum == f.Version.Current {
		return nil, conflict("NoChange", "%s is deployed already with this very bundle (version %s, %s): there is nothing to update",
			b.id, orDash(p.Current), f.Status)
	}
	if !opts.force && !higher(b.version, p.Current) {
		return nil, conflict("VersionNotHigher", "the version %s is not higher than %s, which %s is deployed with: "+
			"raise `version` in the manifest, or give --force", b.version, orDash(p.Current), b.id)
	}
	return p, nil
}

// conflict is a refusal that this program makes itself.
func conflict(name, format string, args ...any) error {
	return &client.Error{Status: http.StatusConflict, Name: name, Message: fmt.Sprintf(format, args...)}
}

func (a *app) printPlan(p *plan) error {
	if a.json() {
		return a.printJSON(p)
	}
	what := fmt.Sprintf("deploy %s %s as a new formation", p.ID, p.Version)
	if p.Action == "update" {
		what = fmt.Sprintf("update %s from %s to %s", p.ID, orDash(p.Current), p.Version)
	}
	_, err := fmt.Fprintf(a.out, "would %s (%s)\n", what, bytesText(p.Bytes))
	return err
}

// deploy sends a new formation. Interrupted, it leaves none behind.
func (a *app) deploy(ctx context.Context, s *client.Server, b *bundle, plain bool) (*client.Launched, error) {
	view := a.newProgress(b.id)
	way := newAttempt(plain)
	work, release := way.context(ctx, nil)
	launched, err := s.Deploy(work, b.request(plain), func(p client.Progress) {
		way.step(p)
		view.show(b.id, p)
	})
	release()
	view.close()
	if err != nil && ctx.Err() != nil {
		a.undo(ctx, s, b, way)
	}
	return launched, err
}

// update sends a new version. An interrupt cancels it.
func (a *app) update(ctx context.Context, s *client.Server, b *bundle, plain bool) (*client.Launched, error) {
	return a.swap(ctx, s, swap{id: b.id, way: newAttempt(plain), do: func(ctx context.Context, show func(client.Progress)) (*client.Launched, error) {
		return s.Update(ctx, b.request(plain), show)
	}})
}

func (b *bundle) request(plain bool) client.DeployRequest {
	return client.DeployRequest{ID: b.id, Bundle: b.file, Plain: plain}
}

// stageOf says where a deploy ended, and what became of the version that served
// before, if there was one.
func stageOf(err error, served bool) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Stage == "" || e.Status == http.StatusNotFound || e.Status == http.StatusConflict {
		return err // what was never begun ended at no stage
	}
	text := fmt.Sprintf("%s at %s: %s", e.Name, e.Stage, e.Message)
	if e.Details != "" && !strings.HasPrefix(e.Details, "{") { // an object is for programs; the message says it too
		text += "\n" + e.Details
	}
	switch {
	case !served:
	case e.RollbackStatus == "success" || e.RollbackStatus == "not_needed":
		text += "\nthe version before serves on"
	case e.RollbackStatus == "failed":
		text += "\nthe version before could not be brought back: look with `supervisor status`"
	}
	return &replaced{err, text}
}

func (a *app) printLaunched(l *client.Launched) error {
	if a.json() {
		return a.printJSON(l)
	}
	text := l.FormationID + ": " + l.Status
	if l.Port != 0 {
		text += fmt.Sprintf(" on port %d", l.Port)
	}
	if l.PreviousVersion != "" {
		text += fmt.Sprintf(", version %s (before: %s)", orDash(l.Version), l.PreviousVersion)
	}
	if l.URL != "" {
		text += ", " + l.URL
	}
	_, err := fmt.Fprintln(a.out, printable(text))
	return err
}
