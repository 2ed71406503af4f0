package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Rockset is our own version of what is published in "How We Improved the
// Concurrency and Scalability of Our Redis Rate Limiting System" (Rockset, 2021):
//
//   - Each key has a mutex, a condition variable and a batch of tokens.
//   - A request that fits into the batch, while that has not expired, takes from it.
//   - Otherwise the first request fetches a whole new batch, without the mutex, and the
//     others wait on the condition variable until it is there.
//   - By the rule of the text, a request that finds the new batch used up by others goes
//     to Redis alone.
//   - The fetch is all or nothing. If it is refused, so are all waiters.
//   - A batch has a fixed size or, by the ladder, is half as large again as the last one if
//     that was used up, and half as large if most of that was wasted.
//
// Where the listing has a mistake, this follows its intention: the expiry is the stored
// end of the window, and a failed fetch ends. Requests are for one token each.
type Rockset struct {
	Store backend.Store
	Limit backend.Limit
	Batch int64
	Most  int64 // the ladder climbs from Batch to Most; 0 = all batches have the size of Batch
	keys  perKey[rocksetKey]
}

type rocksetKey struct {
	mu      sync.Mutex
	over    *sync.Cond // signals the end of a fetch
	size    int64      // of the last batch, of which tokens are left
	tokens  int64
	window  backend.Window
	expires time.Time
	fetch   *rocksetFetch // in flight; nil = none
}

type rocksetFetch struct {
	over, success bool
	window        backend.Window
}

// Allow asks for a token of key. The error is the store's. Allow is safe for concurrent
// use.
func (r *Rockset) Allow(ctx context.Context, key string) (bool, error) {
	allowed, _, err := r.AllowIn(ctx, key)
	return allowed, err
}

// AllowIn is Allow, and also returns the end of the window of the answer, Unix ms.
func (r *Rockset) AllowIn(ctx context.Context, key string) (allowed bool, end int64, err error) {
	allowed, alone, w, err := r.share(ctx, key, r.keys.get(key, newRocksetKey))
	if alone {
		reply, err := r.take(ctx, key, 1)
		return reply.Grant > 0, reply.Window.End, err
	}
	return allowed, w.End, err
}

// share takes from the batch, or reports that the request has to go to Redis alone.
func (r *Rockset) share(ctx context.Context, key string, k *rocksetKey) (allowed, alone bool, w backend.Window, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.fetch
	switch {
	case k.spend():
		return true, false, k.window, nil
	case f == nil:
		f = &rocksetFetch{}
		err = r.run(ctx, key, k, f)
	default:
		for !f.over {
			if k.over.Wait(); k.fetch != nil {
				f = k.fetch // waiters reserve nothing, so they wait for the next batch as well
			}
		}
	}
	allowed = f.success && k.spend()
	return allowed, f.success && !allowed, f.window, err // the others were quicker
}

// run replaces the batch. The caller holds k.mu, which run releases during the call.
func (r *Rockset) run(ctx context.Context, key string, k *rocksetKey, f *rocksetFetch) error {
	k.fetch = f
	size := r.next(k)
	k.mu.Unlock()
	reply, err := r.take(ctx, key, size)
	k.mu.Lock()
	k.fetch, f.over, f.success, f.window = nil, true, reply.Grant > 0, reply.Window
	if f.success {
		k.size, k.tokens, k.window, k.expires = size, size, reply.Window, time.Now().Add(reply.Left)
	}
	k.over.Broadcast()
	return err
}

// next returns the size of the batch that follows the last one.
func (r *Rockset) next(k *rocksetKey) int64 {
	switch {
	case r.Most == 0 || k.size == 0:
		return r.Batch
	case k.tokens == 0:
		return min(k.size+max(k.size/2, 1), r.Most)
	case k.tokens > k.size/2:
		return max(k.size/2, r.Batch)
	}
	return k.size
}

func (r *Rockset) take(ctx context.Context, key string, n int64) (backend.Reply, error) {
	return r.Store.Sync(ctx, backend.Statement{Key: key, Limit: r.Limit, Need: n})
}

func newRocksetKey() *rocksetKey {
	k := new(rocksetKey)
	k.over = sync.NewCond(&k.mu)
	return k
}

func (k *rocksetKey) spend() bool {
	if k.tokens < 1 || !time.Now().Before(k.expires) {
		return false
	}
	k.tokens--
	return true
}

// A yardstick that lets too much or too little through would measure nothing.
func TestRocksetAdmitsTheLimit(t *testing.T) {
	for _, r := range []*Rockset{{Batch: 100}, {Batch: 1, Most: 50}} {
		r.Store, r.Limit = memstore.New(), backend.Limit{Tokens: 5_000, Window: time.Hour}
		workers := make([]*worker, 64)
		for i := range workers {
			workers[i] = &worker{ctx: t.Context(), keys: keys{list: []string{"k"}}, sample: newSample()}
		}
		inParallel(workers, func(_ int, w *worker) { w.make(asking(r.Allow), 100) })
		all := total(workers)
		require.NoError(t, all.err)
		require.LessOrEqual(t, all.good, int64(5_000))
		require.Greater(t, all.good, int64(4_900), "all but less than a batch")
	}
}

func TestRocksetsLadder(t *testing.T) {
	r := &Rockset{Batch: 10, Most: 20}
	for _, c := range []struct{ size, left, next int64 }{{0, 0, 10}, {10, 0, 15}, {15, 0, 20}, {20, 10, 20}, {20, 11, 10}, {15, 8, 10}} {
		require.Equal(t, c.next, r.next(&rocksetKey{size: c.size, tokens: c.left}), "after %d of which %d are left", c.size, c.left)
	}
}
