package turn

import (
	"context"

	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/store"
)

// journal is agent.Journal over the store. Steps of an earlier life were read
// when the turn was resumed; steps of this life are asked for by nobody.
type journal struct {
	service *Service
	turn    *live
}

// Done returns a step of an earlier life.
func (j *journal) Done(step string) ([]byte, bool) {
	payload, ok := j.turn.steps[step]
	return payload, ok
}

// Save commits a finished step. A cancelled turn saves nothing more.
func (j *journal) Save(ctx context.Context, step string, payload []byte) error {
	return j.SaveAll(ctx, []overlord.Step{{Name: step, Payload: payload}})
}

// SaveAll commits finished steps together.
func (j *journal) SaveAll(ctx context.Context, steps []overlord.Step) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	j.turn.journalled.Store(true)
	return j.service.cfg.DB.Write(ctx, func(tx *store.Tx) error {
		for _, s := range steps {
			if err := request.SaveStep(tx, j.turn.rec.ID, s.Name, s.Payload); err != nil {
				return err
			}
		}
		return nil
	})
}
