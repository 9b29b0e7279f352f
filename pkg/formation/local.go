package formation

import (
	"context"

	"github.com/agentformation/service/pkg/embedder"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// localModel is in front of the ids that the embedding process takes; the router
// has cut it off.
const localModel = "local/"

// local is the host's embedding process as the router wants it.
type local struct{ client *embedder.Client }

// localModels returns nil without a client, so that the router refuses local
// models with its own words.
func localModels(client *embedder.Client) llm.Embedder {
	if client == nil {
		return nil
	}
	return local{client}
}

// Dimension implements llm.Describer. It has the model fetched and loaded.
func (l local) Dimension(ctx context.Context, model string) (int, error) {
	info, err := l.client.Info(ctx, localModel+model)
	return info.Dimension, err
}

// Embed implements llm.Embedder. Its errors are faults; Unavailable ones say that
// the process or its model is not there now.
func (l local) Embed(ctx context.Context, req llm.EmbedRequest) (llm.Embedding, error) {
	out, err := l.client.Embed(ctx, localModel+req.Model, req.Texts, req.Task)
	if err != nil {
		return llm.Embedding{}, err
	}
	return llm.Embedding{Vectors: out.Vectors, Usage: chat.Usage{PromptTokens: out.Tokens, TotalTokens: out.Tokens}, Model: localModel + req.Model}, nil
}
