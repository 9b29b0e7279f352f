package server

import (
	"fmt"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/embedder/hub"
	"github.com/agentformation/service/pkg/embedder/model"
	"github.com/agentformation/service/pkg/embedder/ort"
	"github.com/agentformation/service/pkg/embedder/purego"
)

// The engines that can be asked for.
const (
	EngineAuto = "auto"        // the ONNX Runtime where its library is, else Go
	EngineORT  = "onnxruntime" // nothing else
	EngineGo   = "go"
)

// EngineConfig says which engine to take.
type EngineConfig struct {
	Kind    string // one of the above, "" is EngineAuto
	Library string // path of the ONNX Runtime, "" looks for it as hub.FindLibrary does
	Caches  []string
	Lookup  func(string) (string, bool) // the environment
	Log     zerolog.Logger
}

// NewEngine chooses the engine. With EngineAuto a library that can't be loaded is
// told in the log, and Go runs the models.
func NewEngine(cfg EngineConfig) (model.Engine, error) {
	switch cfg.Kind {
	case EngineGo:
		return purego.Engine{}, nil
	case EngineAuto, EngineORT, "":
	default:
		return nil, fmt.Errorf("engine %q: want %s, %s or %s", cfg.Kind, EngineAuto, EngineORT, EngineGo)
	}
	path, err := hub.FindLibrary(cfg.Library, cfg.Lookup, cfg.Caches...)
	if err == nil && path != "" {
		var engine *ort.Engine
		if engine, err = ort.New(path, 0); err == nil {
			return engine, nil
		}
	}
	if cfg.Kind == EngineORT {
		if err == nil {
			err = fmt.Errorf("no ONNX Runtime in %v; name its library in %s", cfg.Caches, hub.LibraryEnv)
		}
		return nil, err
	}
	cfg.Log.Warn().Err(err).Msgf("no ONNX Runtime: models run in Go, ten times slower; `supervisor init` fetches it, or put libonnxruntime.so in %s/onnxruntime, or name it in %s", first(cfg.Caches), hub.LibraryEnv)
	return purego.Engine{}, nil
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
