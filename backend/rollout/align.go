package rollout

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// client is the name in which windows are opened. It is charged nothing.
const client = "rollout"

// patience is how long to wait for a window that only one of the stores says is
// over. Clocks that differ by more cost tokens and calls, but never a limit.
const patience = 25 * time.Millisecond

// align makes both stores count the key in the same window: if only one has a
// window open, the other adopts it. It returns the old store's window, 0 if none is
// open. Where the stores differ in spite of it, the window that ends first is
// what binds.
func (s *Store) align(ctx context.Context, op, key string, l backend.Limit) (backend.Window, error) {
	if w := s.aligned.get(key); w != 0 {
		return w, nil
	}
	for {
		began := time.Now()
		a, b, err := s.states(ctx, op, key, l)
		switch {
		case err != nil:
		case a.Window == 0 && b.Window != 0:
			a, err = adopt(ctx, s.old, key, l, b.Window)
			err = named(op, "old", err)
		case a.Window != 0 && b.Window == 0:
			b, err = adopt(ctx, s.new, key, l, a.Window)
			err = named(op, "new", err)
		}
		if err != nil {
			return 0, err
		}
		left := sooner(a, b)
		if a.Window == b.Window || left > patience {
			s.aligned.put(key, a.Window, began.Add(left-left/1000))
			return a.Window, nil
		}
		if err := wait(ctx, op, left); err != nil {
			return 0, err
		}
	}
}

// states reads the key in both stores.
func (s *Store) states(ctx context.Context, op, key string, l backend.Limit) (a, b backend.State, err error) {
	if a, err = s.old.Check(ctx, key, l); err != nil {
		return a, b, named(op, "old", err)
	}
	b, err = s.new.Check(ctx, key, l)
	return a, b, named(op, "new", err)
}

// adopt has a store open a window that runs elsewhere, if it has none open.
func adopt(ctx context.Context, store backend.Store, key string, l backend.Limit, w backend.Window) (backend.State, error) {
	reply, err := store.Sync(ctx, backend.SyncRequest{Key: key, Client: client, Limit: l, Window: w, Strand: -1})
	return reply.State, err
}

// sooner is when the first of the open windows ends.
func sooner(a, b backend.State) time.Duration {
	switch {
	case a.Window == 0:
		return b.Left
	case b.Window == 0:
		return a.Left
	default:
		return min(a.Left, b.Left)
	}
}

// wait returns when a window that has so much left is over.
func wait(ctx context.Context, op string, left time.Duration) error {
	timer := time.NewTimer(left + time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: ctx.Err()}
	}
}

// cache remembers of which keys both stores have a window open. It is small and
// forgets what it has no room for: then the stores are asked once more.
type cache [1024]atomic.Pointer[window]

type window struct {
	hash  uint64
	id    backend.Window
	until time.Time
}

func (c *cache) slot(hash uint64) *atomic.Pointer[window] {
	return &c[(hash^hash>>32)%uint64(len(c))]
}

func (c *cache) get(key string) backend.Window {
	h := placement.Hash(key)
	if w := c.slot(h).Load(); w != nil && w.hash == h && time.Now().Before(w.until) {
		return w.id
	}
	return 0
}

func (c *cache) put(key string, id backend.Window, until time.Time) {
	if h := placement.Hash(key); id != 0 {
		c.slot(h).Store(&window{hash: h, id: id, until: until})
	}
}

func (c *cache) forget(key string) { c.slot(placement.Hash(key)).Store(nil) }
