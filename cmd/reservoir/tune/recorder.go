package tune

import (
	"context"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// recorder is one process' way to the store. It tells the book what its process
// calls and what it is granted, as that becomes known to the process: what is
// still on its way is in nobody's hands.
type recorder struct {
	store  backend.Store
	shards backend.Store // below the network
	book   *book
	since  func() time.Duration // of the traffic's time

	mu       sync.Mutex
	accounts map[string]account // by key, of the window last heard of
}

// account is what a process holds or has spent of a window, by the ledger.
type account struct {
	client string
	window backend.Window
	net    int64
}

// Sync implements backend.Store.
func (r *recorder) Sync(ctx context.Context, q backend.SyncRequest) (backend.SyncReply, error) {
	r.book.call(r.since())
	reply, err := r.store.Sync(ctx, q)
	if err == nil {
		r.book.grant(reply.Grant)
		now := account{q.Client, reply.Window, reply.Granted - reply.Returned}
		r.book.charge(q.Key, reply.Window, now.net-r.before(q.Key, now))
	}
	return reply, err
}

// before remembers an account and returns what it came to so far. Calls of one
// key and process do not overlap, so neither do their replies.
func (r *recorder) before(key string, now account) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.accounts[key]
	r.accounts[key] = now
	if was.window != now.window || was.client != now.client {
		return 0
	}
	return was.net
}

// Take implements backend.Store.
func (r *recorder) Take(ctx context.Context, q backend.TakeRequest) (backend.TakeReply, error) {
	r.book.call(r.since())
	return r.store.Take(ctx, q)
}

// Check implements backend.Store.
func (r *recorder) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	r.book.call(r.since())
	return r.store.Check(ctx, key, l)
}

// Refund implements backend.Store.
func (r *recorder) Refund(ctx context.Context, q backend.RefundRequest) (int64, error) {
	r.book.call(r.since())
	return r.store.Refund(ctx, q)
}

// Shard names the shard of a key, for limiters estimate their lead time by shard.
func (r *recorder) Shard(key string) string { return placement.Shard(r.shards, key) }
