package purego_test

import (
	"testing"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/purego"
)

func TestEngine_Conforms(t *testing.T) {
	t.Parallel()
	embedtest.Conform(t, purego.Engine{})
}
