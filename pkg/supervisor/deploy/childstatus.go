package deploy

import (
	"context"

	"github.com/agentformation/service/pkg/control"
)

// ChildStatus asks the serving process of id how it is. The error is 404 for an
// unknown formation and control.ErrNoAnswer when no process serves.
func (s *Service) ChildStatus(ctx context.Context, id string) (control.Status, error) {
	f, err := s.member(id)
	if err != nil {
		return control.Status{}, err
	}
	child, ok := f.mgr.Control()
	if !ok {
		return control.Status{}, control.ErrNoAnswer
	}
	return child.Status(ctx)
}
