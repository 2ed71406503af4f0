package torture

import (
	"context"

	"github.com/go-reservoir/reservoir/backend"
)

// skewed is a store that grants more than it charges, or less: what no store may
// do. Processes that use it are to be found out.
type skewed struct {
	backend.Store
	by int64 // tokens per grant
}

func (s skewed) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := s.Store.Sync(ctx, r)
	if reply.Grant > 1 {
		reply.Grant += s.by
	}
	return reply, err
}
