package rollout

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// client is the client name under which adopt opens windows. It is charged nothing.
const client = "rollout"

// patience is how long to wait for a window that is over in only one of the stores. If
// the clocks differ by more, that costs tokens and calls, but the limit holds.
const patience = 25 * time.Millisecond

// align makes both stores count the key in the same window: if only one has a window
// open, the other adopts it. It returns the old store's window, with an id of 0 if
// none is open. If the stores still differ, the window that ends first limits the key.
// If one has a window of another length open, align adopts nothing and returns that
// store's state.
func (s both) align(ctx context.Context, op, key string, l backend.Limit) (w *window, conflict backend.State, err error) {
	if w := s.aligned.get(key, l.Window); w != nil {
		return w, backend.State{}, nil
	}
	for {
		began := time.Now()
		a, b, err := s.states(ctx, op, key, l)
		switch {
		case err != nil || a.Length != 0 || b.Length != 0:
		case a.Window == 0 && b.Window != 0:
			a, err = adopt(ctx, s.old, key, l, b.Window)
			err = named(op, "old", err)
		case a.Window != 0 && b.Window == 0:
			b, err = adopt(ctx, s.new, key, l, a.Window)
			err = named(op, "new", err)
		}
		if err != nil {
			return nil, backend.State{}, err
		}
		if a.Length != 0 || b.Length != 0 {
			return nil, less(a, b), nil
		}
		left := min(a.Left, b.Left) // until the first of the open windows ends
		if a.Window == 0 || b.Window == 0 {
			left = max(a.Left, b.Left)
		}
		if a.Window == b.Window || left > patience {
			return s.aligned.put(key, l.Window, a.Window, began.Add(left-left/1000)), backend.State{}, nil
		}
		if err := wait(ctx, op, left); err != nil {
			return nil, backend.State{}, err
		}
	}
}

// realign makes the next call align the key again, if a store has reported a window of
// another length.
func (s both) realign(key string, reported backend.State) {
	if reported.Length != 0 {
		s.aligned.forget(key)
	}
}

// states reads the key in both stores.
func (s both) states(ctx context.Context, op, key string, l backend.Limit) (a, b backend.State, err error) {
	if a, err = s.old.Check(ctx, key, l); err != nil {
		return a, b, named(op, "old", err)
	}
	b, err = s.new.Check(ctx, key, l)
	return a, b, named(op, "new", err)
}

// adopt makes a store open a window that is open elsewhere, if it has none open.
func adopt(ctx context.Context, store backend.Store, key string, l backend.Limit, w backend.Window) (backend.State, error) {
	reply, err := store.Sync(ctx, backend.SyncRequest{Key: key, Client: client, Limit: l, Window: w, Strand: -1})
	return reply.State, err
}

// wait returns a millisecond after left, when a window with so much time left is over.
func wait(ctx context.Context, op string, left time.Duration) error {
	select {
	case <-time.After(left + time.Millisecond):
		return nil
	case <-ctx.Done():
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: ctx.Err()}
	}
}

// cache remembers the windows that both stores have open. It is small: if it has dropped
// a window to make room, align asks the stores again.
type cache [1024]atomic.Pointer[window]

// window is a window that both stores have open, for limits of one length.
type window struct {
	key    string
	length time.Duration
	id     backend.Window // the old store's
	until  time.Time
	undos  undos // of takes from the old store
}

// undone returns the account for undoing a take that the old store has charged to a window.
func (w *window) undone(charged backend.Window) *undos {
	if charged == w.id {
		return &w.undos
	}
	return new(undos)
}

func (c *cache) slot(key string) *atomic.Pointer[window] {
	hash := placement.Hash(key)
	return &c[(hash^hash>>32)%uint64(len(c))]
}

// get returns nil if the cache has no window of the key, or one for limits of another
// length.
func (c *cache) get(key string, length time.Duration) *window {
	if w := c.slot(key).Load(); w != nil && w.key == key && w.length == length && time.Now().Before(w.until) {
		return w
	}
	return nil
}

// put returns a window, and caches it if it has an id.
func (c *cache) put(key string, length time.Duration, id backend.Window, until time.Time) *window {
	w := &window{key: strings.Clone(key), length: length, id: id, until: until}
	if id != 0 {
		c.slot(key).Store(w)
	}
	return w
}

func (c *cache) forget(key string) { c.slot(key).Store(nil) }
