package main

import (
	"context"
	"os"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/formation"
)

// runChild is the life of a child: the supervisor drives it over control.
func runChild(in *control.Inherited) error {
	log := zerolog.New(in.Log).Level(zerolog.InfoLevel).With().Timestamp().Str("formation", in.FormationID).Logger()
	ctx, cancel := untilSignal(log)
	defer cancel(nil)
	f := formation.New(formation.Config{
		FormationID: in.FormationID, LaunchID: in.LaunchID, CheckHello: in.CheckHello,
		Listen: control.Listener, CloseSocket: control.ShutdownListener,
		SecretsKey: secretsKey(), Env: os.LookupEnv, Fatal: cancel, Log: log,
	})
	err := control.Serve(ctx, f, in.ServeOptions(log))
	if cause := context.Cause(ctx); err == nil && cause != nil {
		return cause
	}
	return err
}

// secretsKey is the key to secrets.enc from the environment. It is taken out
// of it, so that no tool process inherits it.
func secretsKey() string {
	const name = "SVC_SECRETS_KEY"
	key := os.Getenv(name)
	_ = os.Unsetenv(name)
	return key
}
