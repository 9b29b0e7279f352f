package turn

import "context"

// Lapse does now what Purge does every hour.
func (s *Service) Lapse(ctx context.Context) error { return s.lapse(ctx) }
