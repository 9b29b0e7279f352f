package ort_test

import (
	"testing"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/ort"
)

func TestEngine_Conforms(t *testing.T) {
	t.Parallel()
	engine, err := ort.New(embedtest.Library(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	embedtest.Conform(t, engine)
}
