package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/server"
)

type embedFlags struct {
	dir, users, library, engine string
	ready, inherit              bool
	idle                        time.Duration
	models                      int
}

// embedCommand is the embedding process of a host. Formations and supervisors
// start it; people need not know it.
func embedCommand() *cobra.Command {
	var flags embedFlags
	cmd := &cobra.Command{
		Use: "embed", Short: "Serve local embeddings on a unix socket", Args: cobra.NoArgs, Hidden: true,
		Long: "Serves embeddings to the formations of this host until nobody has asked for a while.\n" +
			"It is started by those who need it. Models come from the cache (SVC_CACHE_DIR, HF_HOME)\n" +
			"or the model hub (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).",
		RunE: func(cmd *cobra.Command, _ []string) error { return serveEmbeddings(cmd.ErrOrStderr(), flags) },
	}
	f := cmd.Flags()
	f.StringVar(&flags.dir, "dir", embedder.DefaultDir(os.LookupEnv), "directory of the socket")
	f.StringVar(&flags.library, "library", "", "path of the ONNX Runtime (default: SVC_ONNXRUNTIME_LIB, else in the cache)")
	f.StringVar(&flags.engine, "engine", server.EngineAuto, "auto, onnxruntime or go")
	f.DurationVar(&flags.idle, "idle", 10*time.Minute, "end when nobody has asked for this long; below 0 never")
	f.IntVar(&flags.models, "models", 3, "models to keep in memory")
	f.StringVar(&flags.users, "users", "", "range of user ids that may ask too, as 100-199")
	f.BoolVar(&flags.ready, "ready", false, "tell descriptor 3 when it serves")
	f.BoolVar(&flags.inherit, "inherit", false, "accept on descriptor 4")
	return cmd
}

// keptEmbedder asks the embedding process that a supervisor keeps, which names
// its directory. nil is none, and local models are then refused: what a child
// started would live within the limits of one formation.
func keptEmbedder(log zerolog.Logger) *embedder.Client {
	if _, kept := os.LookupEnv(embedder.DirEnv); !kept {
		return nil
	}
	return embedderClient(log)
}

// embedderClient asks the embedding process of a directory that the environment
// names, or one that this user's programs share and start.
func embedderClient(log zerolog.Logger) *embedder.Client {
	cfg := embedder.Config{Dir: embedder.DefaultDir(os.LookupEnv), Env: embedder.Environ(os.Environ()), Log: log}
	if dir, ok := os.LookupEnv(embedder.DirEnv); ok {
		cfg.Dir = dir
	} else if exe, err := os.Executable(); err == nil {
		cfg.Command = []string{exe, "embed"}
	}
	client, err := embedder.New(cfg)
	if err != nil {
		log.Warn().Err(err).Msg("no local embeddings")
		return nil
	}
	return client
}

func serveEmbeddings(out io.Writer, flags embedFlags) error {
	// The limits of a formation are not for a process that holds models.
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(100)
	log := zerolog.New(out).Level(zerolog.InfoLevel).With().Timestamp().Logger()
	told := false
	ready := func(err error) {
		if flags.ready && !told {
			embedder.Ready(err)
		}
		told = true
	}
	cfg, err := embedConfig(flags, log)
	if err != nil {
		ready(err)
		return err
	}
	cfg.Ready = ready
	ctx, cancel := untilSignal(log, syscall.SIGINT)
	defer cancel(nil)
	if flags.inherit {
		gone := embedder.KeeperGone()
		go func() {
			<-gone
			log.Info().Msg("the keeper is gone, ending")
			cancel(context.Canceled)
		}()
	}
	if err := server.Run(ctx, cfg); err != nil && !errors.Is(err, context.Canceled) {
		ready(err)
		return err
	}
	return nil
}

func embedConfig(flags embedFlags, log zerolog.Logger) (server.Config, error) {
	cfg := server.Config{Dir: flags.dir, Idle: flags.idle, MaxModels: flags.models, Log: log}
	if flags.users != "" {
		users, err := embedder.ParseUIDRange(flags.users)
		if err != nil {
			return cfg, fmt.Errorf("--users: %w", err)
		}
		cfg.Users = &users
	}
	if flags.inherit {
		f := os.NewFile(embedder.ListenFD, "socket")
		l, err := net.FileListener(f)
		if err != nil {
			return cfg, fmt.Errorf("take over the socket: %w", err)
		}
		_ = f.Close()
		cfg.Listener = l
	} else if err := os.MkdirAll(flags.dir, 0o700); err != nil {
		return cfg, fmt.Errorf("--dir: %w", err)
	}
	hubConfig, err := hub.FromEnv(os.LookupEnv)
	if err != nil {
		return cfg, err
	}
	hubConfig.Log = log
	if cfg.Hub, err = hub.New(hubConfig); err != nil {
		return cfg, err
	}
	cfg.Engine, err = server.NewEngine(server.EngineConfig{
		Kind: flags.engine, Library: flags.library, Caches: caches(hubConfig.Dir), Lookup: os.LookupEnv, Log: log,
	})
	return cfg, err
}

// caches are where the ONNX Runtime may lie: beside the models, or in the user's
// own cache.
func caches(models string) []string {
	all := []string{models}
	own, err := hub.CacheDir(func(string) (string, bool) { return "", false })
	if err == nil && own != models {
		all = append(all, own)
	}
	return all
}
