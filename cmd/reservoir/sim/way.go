package sim

import (
	"context"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// way is one process' way to the store: a network that takes its time, and a ledger of
// what the process holds. The book is told of grants as the process hears of them: what
// is still on its way is in nobody's hands.
type way struct {
	backend.Store // what no limiter asks for while it decides takes no time
	book          *book
	travel        func(ctx context.Context, back bool) error // half of a call; counts it on its way there
	known         map[string]account                         // by key, of the window last heard of; guarded by the book
}

// account is what a process holds or has spent of a window, by the store's ledger.
type account struct {
	client string
	window backend.Window
	net    int64
}

// call makes one call. If ctx ends on the way there it was surely not carried out.
func call[R, T any](ctx context.Context, w *way, op string, f func(context.Context, R) (T, error), r R) (answer T, err error) {
	if err := w.travel(ctx, false); err != nil {
		return answer, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	if answer, err = f(ctx, r); err != nil {
		return answer, err
	}
	if err := w.travel(ctx, true); err != nil {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unknown, Err: err}
	}
	return answer, nil
}

// Sync implements backend.Store.
func (w *way) Sync(ctx context.Context, q backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := call(ctx, w, "sync", w.Store.Sync, q)
	if err == nil {
		w.book.hear(w, q, reply)
	}
	return reply, err
}

// Take implements backend.Store.
func (w *way) Take(ctx context.Context, q backend.TakeRequest) (backend.TakeReply, error) {
	return call(ctx, w, "take", w.Store.Take, q)
}

// Refund implements backend.Store.
func (w *way) Refund(ctx context.Context, q backend.RefundRequest) (int64, error) {
	return call(ctx, w, "refund", w.Store.Refund, q)
}

// Shard names the shard of a key, for limiters estimate their lead time by shard.
func (w *way) Shard(key string) string { return placement.Shard(w.Store, key) }
