package server_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/embedder/purego"
	"github.com/agentformation/service/pkg/embedder/server"
	"github.com/agentformation/service/pkg/fault"
)

// wild is an engine that panics where it is told to, as a library may on a file
// that somebody made for that.
type wild struct {
	purego.Engine
	opening atomic.Bool // of what lies in no folder "onnx"
	running atomic.Bool
}

func (w *wild) Open(path string) (model.Session, error) {
	if w.opening.Load() && filepath.Base(filepath.Dir(path)) != "onnx" {
		panic("a wild file")
	}
	s, err := w.Engine.Open(path)
	return &wildSession{s, w}, err
}

type wildSession struct {
	model.Session
	engine *wild
}

func (s *wildSession) Run(ctx context.Context, b model.Batch) (model.Tensor, error) {
	if s.engine.running.Load() {
		panic("a wild text")
	}
	return s.Session.Run(ctx, b)
}

func TestServe_AModelThatBreaksItsReaderIsRefusedAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	files := embedtest.Files(r.bert)
	files["model.onnx"] = files["onnx/model.onnx"]
	delete(files, "onnx/model.onnx")
	r.Add("acme/wild", files)
	engine := &wild{}
	engine.opening.Store(true)
	serve(t, r, func(cfg *server.Config) { cfg.Engine = engine })
	c := r.clientOf(t, embedder.Config{})
	_, err := c.Embed(t.Context(), "local/acme/wild", []string{"cat"}, "")
	wantFault(t, err, fault.Unprocessable, model.NameUnsuitable, "a wild file")
	r.right(t, c, "cat")
}

func TestServe_ATextThatBreaksTheModelIsAnErrorAndTheNextOneIsNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	engine := &wild{}
	serve(t, r, func(cfg *server.Config) { cfg.Engine = engine })
	c := r.clientOf(t, embedder.Config{})
	r.right(t, c, "cat")
	engine.running.Store(true)
	_, err := c.Embed(t.Context(), tiny, []string{"cat"}, "")
	wantFault(t, err, fault.Unavailable, embedder.NameUnavailable, "a wild text")
	engine.running.Store(false)
	r.right(t, c, "cat")
}
