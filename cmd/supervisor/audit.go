package main

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) auditCommand() *cobra.Command {
	var since, until string
	f := client.AuditFilter{}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who called the supervisor for what, newest first",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) (err error) {
			now := time.Now()
			if f.Since, err = pointInTime("--since", since, now); err != nil {
				return err
			}
			if f.Until, err = pointInTime("--until", until, now); err != nil {
				return err
			}
			if f.Limit < 1 || f.Limit > 1000 {
				return usagef("--limit %d: it must be 1 to 1000", f.Limit)
			}
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			entries, err := s.Audit(cmd.Context(), f)
			if err != nil {
				return t.advise(err)
			}
			return a.printAudit(entries)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&since, "since", "", "only what is newer: a time (2026-01-02T15:04:05Z), a day (2026-01-02) or an age (2h, 7d)")
	flags.StringVar(&until, "until", "", "only what is older, given likewise")
	flags.StringVar(&f.Actor, "actor", "", "only calls with this key id")
	flags.StringVar(&f.Action, "action", "", "only this action, such as formations.deploy")
	flags.StringVar(&f.ID, "id", "", "only what concerns this formation")
	flags.IntVarP(&f.Limit, "limit", "n", 100, "how many, up to 1000")
	cmd.AddCommand(a.auditVerifyCommand())
	return cmd
}

func (a *app) auditVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Check that no audit record was changed or removed",
		Args:  cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			t, s, err := a.connect()
			if err != nil {
				return err
			}
			defer s.Close()
			check, err := s.VerifyAudit(cmd.Context())
			if err != nil {
				return t.advise(err)
			}
			return a.printAuditCheck(check)
		}),
	}
}

// printAuditCheck prints what was found. A broken chain is an error: scripts
// must not overlook it.
func (a *app) printAuditCheck(c *client.AuditCheck) error {
	if a.json() {
		if err := a.printJSON(c); err != nil {
			return err
		}
	}
	if !c.Valid {
		at := "an unknown place"
		if c.BrokenAt != nil {
			at = "record " + strconv.FormatInt(*c.BrokenAt, 10)
		}
		return errors.New("the audit log is broken at " + at + ": it, or a record before it, was changed or removed; " +
			"compare it with a backup and with logs/audit.log")
	}
	if a.json() {
		return nil
	}
	if c.Count == 0 {
		return a.result("the audit log is whole: it has no records yet")
	}
	return a.result("the audit log is whole: %d records, %d to %d", c.Count, c.FirstSeq, c.LastSeq)
}

func (a *app) printAudit(entries []client.AuditEntry) error {
	if a.json() {
		if entries == nil {
			entries = []client.AuditEntry{}
		}
		return a.printJSON(map[string]any{"entries": entries, "count": len(entries)})
	}
	t := table{heading: []string{"TIME", "SEQ", "ACTOR", "ACTION", "FORMATION", "RESULT", "STATUS", "FROM", "REQUEST"}}
	for _, e := range entries {
		result := cell{e.Result, plain}
		if e.Status >= 400 {
			result.colour = red
		}
		t.rows = append(t.rows, []cell{
			{text: e.Time.Local().Format(time.DateTime)},
			{text: strconv.FormatInt(e.Seq, 10)},
			{text: orDash(e.Actor)},
			{text: e.Action},
			{text: orDash(e.ID)},
			result,
			{text: strconv.Itoa(e.Status)},
			{text: orDash(e.RemoteAddr)},
			{text: orDash(e.RequestID)},
		})
	}
	return a.printTable(a.out, t)
}

// pointInTime reads a time, a day in local time, or an age before now.
func pointInTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, nil
		}
	}
	if age, err := parseAge(text); err == nil {
		return now.Add(-age), nil
	}
	return time.Time{}, usagef("%s %q: it must be a time (2026-01-02T15:04:05Z), a day (2026-01-02) or an age (2h, 7d)", flag, text)
}

// parseAge reads a duration; beside Go's units it knows days.
func parseAge(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	if n := len(text); n > 1 && text[n-1] == 'd' {
		days, err := strconv.ParseUint(text[:n-1], 10, 16)
		return time.Duration(days) * day, err
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("it is negative")
	}
	return d, err
}
