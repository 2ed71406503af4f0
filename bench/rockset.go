package bench

import (
	"context"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Rockset is our own version of the rule published in "How We Improved the
// Concurrency and Scalability of Our Redis Rate Limiting System" (Rockset, 2021):
//
//   - Each key has a mutex, a condition variable and a batch of tokens.
//   - A request that fits into the batch, while that has not expired, takes from
//     it, under the mutex.
//   - Otherwise the first request to come fetches a whole new batch, without the
//     mutex, and the others wait on the condition variable until it is there.
//   - A request larger than a batch, or one that finds the new batch used up by
//     others, goes to Redis by itself.
//   - The fetch is all or nothing; one that is refused refuses all who waited.
//
// It is the rule as it was meant: the expiry is checked the right way round and
// is the stored end of the window, and a fetch that fails is over. It counts in
// the same store as the library, so that a comparison is one of rules only.
type Rockset struct {
	store backend.Store
	limit backend.Limit
	batch int64
	keys  sync.Map // string → *rocksetKey
}

type rocksetKey struct {
	mu       sync.Mutex
	fetched  *sync.Cond // a fetch is over
	tokens   int64
	expires  time.Time
	fetching bool
	success  bool // of the last fetch
}

// NewRockset returns a limiter that takes batch tokens at a time from store.
func NewRockset(store backend.Store, limit backend.Limit, batch int64) *Rockset {
	return &Rockset{store: store, limit: limit, batch: batch}
}

// AllowN asks for n tokens of key, all or none.
func (r *Rockset) AllowN(ctx context.Context, key string, n int64) (bool, error) {
	if n > r.batch {
		reply, err := r.take(ctx, key, n)
		return reply.Allowed, err
	}
	k := r.key(key)
	k.mu.Lock()
	if k.spend(n) {
		k.mu.Unlock()
		return true, nil
	}
	var err error
	if k.fetching {
		for k.fetching {
			k.fetched.Wait()
		}
	} else {
		err = r.fetch(ctx, key, k)
	}
	allowed, refused := k.success && k.spend(n), !k.success
	k.mu.Unlock()
	if allowed || refused || err != nil {
		return allowed, err
	}
	reply, err := r.take(ctx, key, n) // the others were quicker
	return reply.Allowed, err
}

// fetch replaces the batch. It is entered and left with the lock.
func (r *Rockset) fetch(ctx context.Context, key string, k *rocksetKey) error {
	k.fetching = true
	k.mu.Unlock()
	reply, err := r.take(ctx, key, r.batch)
	k.mu.Lock()
	k.fetching, k.success = false, reply.Allowed
	if reply.Allowed {
		k.tokens, k.expires = r.batch, time.Now().Add(reply.Left)
	}
	k.fetched.Broadcast()
	return err
}

func (r *Rockset) take(ctx context.Context, key string, n int64) (backend.TakeReply, error) {
	return r.store.Take(ctx, backend.TakeRequest{Key: key, Limit: r.limit, Tokens: n})
}

func (r *Rockset) key(key string) *rocksetKey {
	if k, ok := r.keys.Load(key); ok {
		return k.(*rocksetKey)
	}
	k := new(rocksetKey)
	k.fetched = sync.NewCond(&k.mu)
	held, _ := r.keys.LoadOrStore(key, k)
	return held.(*rocksetKey)
}

func (k *rocksetKey) spend(n int64) bool {
	if k.tokens < n || !time.Now().Before(k.expires) {
		return false
	}
	k.tokens -= n
	return true
}
