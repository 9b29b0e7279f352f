package main

import (
	"context"
	"os"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
	"github.com/agentformation/service/pkg/redact"
)

// runChild is the life of a child: the supervisor drives it over control.
func runChild(in *control.Inherited) error {
	hide := redact.New()
	tap := formation.NewLogTap(in.Log)
	log := zerolog.New(hide.Writer(tap)).Level(zerolog.InfoLevel).With().Timestamp().Str("formation", in.FormationID).Logger()
	ctx, cancel := untilSignal(log)
	defer cancel(nil)
	f := formation.New(formation.Config{
		FormationID: in.FormationID, LaunchID: in.LaunchID, CheckHello: in.CheckHello,
		Listen: control.Listener, CloseSocket: control.ShutdownListener,
		SecretsKey: secretsKey(), Redact: hide, Env: os.LookupEnv, Fatal: cancel, Log: log, Tap: tap,
		Embedder: keptEmbedder(log),
	})
	err := control.Serve(ctx, f, in.ServeOptions(log))
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause
	}
	return without(hide, err)
}

// without returns err with a text that holds no secret: it goes to the error log.
func without(hide *redact.Redactor, err error) error {
	if err == nil {
		return nil
	}
	return &redacted{err, hide.String(err.Error())}
}

// redacted is an error told without its secrets.
type redacted struct {
	error
	text string
}

// Error returns the text without secrets.
func (r *redacted) Error() string { return r.text }

// Unwrap returns the error itself.
func (r *redacted) Unwrap() error { return r.error }

// secretsKey is the key to secrets.enc from the environment. It is taken out
// of it, so that no tool process inherits it.
func secretsKey() string {
	const name = "SVC_SECRETS_KEY"
	key := os.Getenv(name)
	_ = os.Unsetenv(name)
	return key
}
