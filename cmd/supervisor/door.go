package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

// keyWish says which key of a formation a command takes.
type keyWish int

const (
	wantClient keyWish = iota // it speaks for one user
	wantAdmin                 // it looks at all users where it may
	needAdmin                 // the client key does not do
)

// door is how a command calls one formation: with which key, and as whom.
type door struct {
	a         *app
	wish      keyWish
	key, user string
	draft     bool

	t      *target
	f      *client.Formation
	origin string // where the key is from, in words
}

// flags registers what says with which key and as whom. The words on the user
// are "" for commands that know none.
func (d *door) flags(cmd *cobra.Command, user string) {
	kind := map[keyWish]string{wantClient: "key", wantAdmin: "admin or client key", needAdmin: "admin key"}[d.wish]
	cmd.Flags().StringVar(&d.key, "key", "", kind+" of the formation (default: from the profile or the local home)")
	cmd.Flags().BoolVar(&d.draft, "draft", false, "the draft that runs instead of what is deployed")
	if user != "" {
		cmd.Flags().StringVar(&d.user, "user", d.user, user)
	}
}

// open finds the supervisor and the key. The formation is the caller's to close.
func (d *door) open(ctx context.Context, id string) error {
	t, s, err := d.a.connect()
	if err != nil {
		return err
	}
	s.Close()
	d.t = t
	if err := d.findKey(ctx, id); err != nil {
		return err
	}
	cfg := client.FormationConfig{UserID: d.user, Draft: d.draft}
	// A key of the manifest does not show which it is: each route takes what it knows.
	if !strings.HasPrefix(d.key, "fma_") {
		cfg.ClientKey = client.Secret(d.key)
	}
	if !strings.HasPrefix(d.key, "fmc_") {
		cfg.AdminKey = client.Secret(d.key)
	} else if d.wish == wantAdmin && cfg.UserID == "" {
		cfg.UserID = d.a.userName // a client key shows one user's
	}
	d.f, err = t.formation(id, cfg)
	return err
}

// findKey takes --key, else a saved key, else a generated one of a local home.
func (d *door) findKey(ctx context.Context, id string) error {
	if d.key != "" {
		d.origin = "--key"
		return nil
	}
	if key, ok := d.t.keys[id]; ok {
		d.key, d.origin = string(key), d.t.origin
		return nil
	}
	if d.t.home == nil {
		return usagef("no key for %s: give --key, or save one as keys.%s of the %s", id, id, d.t.origin)
	}
	var keys *formationKeys
	var err error
	if d.draft {
		keys, err = d.t.draftKeys(ctx, id, d.a.userName)
		d.origin = "the draft in " + d.t.home.dir
	} else {
		keys, err = d.t.home.keys(id)
		d.origin = d.t.home.formationDir(id)
	}
	if err != nil {
		return err
	}
	d.key = keys.Client
	if d.wish != wantClient && (keys.Admin != "" || d.wish == needAdmin) {
		d.key = keys.Admin
	}
	switch {
	case d.key != "":
		return nil
	case d.wish == wantClient:
		return usagef("the manifest of %s sets its client key: give it as --key", id)
	}
	return usagef("the manifest of %s sets its admin key: give it as --key", id)
}

// advise adds to an error what the person can do.
func (d *door) advise(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case ok && e.Status == http.StatusUnauthorized && d.wish == needAdmin && strings.HasPrefix(d.key, "fmc_"):
		return &hint{err, "the client key from " + d.origin + " is not enough, give the admin key as --key"}
	case ok && e.Status == http.StatusUnauthorized:
		return &hint{err, "the key is from " + d.origin}
	case ok && len(fieldFaults(e)) > 0:
		return &replaced{err, e.Name + ": " + strings.Join(fieldFaults(e), "; ")}
	case ok && e.Status == http.StatusBadRequest && d.wish == wantAdmin && d.user == "" && strings.Contains(e.Message, "user id"):
		return &hint{err, "name the user with --user"}
	case ok && d.draft && (e.Status == http.StatusNotFound && e.Name != "REQUEST_NOT_FOUND" || e.Status == http.StatusServiceUnavailable):
		return &hint{err, "`supervisor dev` or `up` runs a directory, `supervisor draft run` a draft"}
	}
	return d.t.advise(err)
}

// within runs the work of a command in an open formation.
func (d *door) within(ctx context.Context, id string, work func(*client.Formation) error) error {
	switch err := d.open(ctx, id); {
	case err != nil && d.t != nil:
		return d.t.advise(err)
	case err != nil:
		return err
	}
	defer d.f.Close()
	return d.advise(work(d.f))
}

// fieldFaults are the faults that a formation found in a body; its message only
// counts them.
func fieldFaults(e *client.Error) []string {
	var data struct {
		Faults []struct{ Field, Msg string } `json:"validation_errors"`
	}
	if json.Unmarshal(e.Data, &data) != nil {
		return nil
	}
	var list []string
	for _, f := range data.Faults {
		list = append(list, strings.TrimPrefix(f.Field+": "+f.Msg, ": "))
	}
	return list
}
