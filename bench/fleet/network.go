package fleet

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// oneWay is half of a call: all of them take as long, but for what the lane adds.
const oneWay = 500 * time.Microsecond

// network is one process' way to the store that all share.
type network struct {
	store backend.Store
	calls *atomic.Int64 // of all processes
	begin time.Time
	lane  lane
}

// travel never takes as long as a fetch timeout, so that no context needs to be
// watched.
func (n *network) travel(to event) {
	now := time.Since(n.begin)
	time.Sleep(n.lane.next(now+oneWay, to) - now)
}

func call[R, T any](ctx context.Context, n *network, f func(context.Context, R) (T, error), r R) (T, error) {
	n.calls.Add(1)
	n.travel(reach)
	answer, err := f(ctx, r)
	n.travel(reply)
	return answer, err
}

// Sync implements backend.Store.
func (n *network) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return call(ctx, n, n.store.Sync, r)
}

// Take implements backend.Store.
func (n *network) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return call(ctx, n, n.store.Take, r)
}

// Check implements backend.Store.
func (n *network) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	check := func(ctx context.Context, key string) (backend.State, error) { return n.store.Check(ctx, key, l) }
	return call(ctx, n, check, key)
}

// Refund implements backend.Store.
func (n *network) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return call(ctx, n, n.store.Refund, r)
}
