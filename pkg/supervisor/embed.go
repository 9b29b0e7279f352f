package supervisor

import (
	"context"
	"path/filepath"

	"github.com/agentformation/service/pkg/embedder"
)

// embedderDir holds the socket of the embedding process, which all formations
// of this home share.
func (s *Supervisor) embedderDir() string { return filepath.Join(s.path("run"), "embedder") }

// keepEmbedder runs the embedding process when a formation asks for it. Without
// it formations go on with less: what fails is logged and ends nothing else.
func (s *Supervisor) keepEmbedder(ctx context.Context) {
	cfg := embedder.KeeperConfig{Config: embedder.Config{
		Dir: s.embedderDir(), Command: []string{s.cfg.Runtime, "embed"}, Log: s.log,
		Env: embedder.EnvironOf(s.cfg.modelEnv),
	}}
	if u := s.cfg.Formations.UserRange; u != nil {
		cfg.Users = &embedder.UIDRange{First: uint32(u.First), Last: uint32(u.Last)}
	}
	keeper, err := embedder.NewKeeper(cfg)
	if err == nil {
		err = keeper.Run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn().Err(err).Msg("formations have no local embeddings")
	}
}
