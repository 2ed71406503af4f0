package reservoir

import (
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// window is one window of one key as this process knows it, with the stock it
// may spend there. The first three fields never change; the others are atomics,
// read and spent from without a lock, and raised or set only under entry.mu.
// Tokens die with their window: a new window is a new object.
type window struct {
	id backend.Window

	// Two bounds of the same instant, in clock time, because when the store
	// read its clock is known only to lie between sending and reply. Stock is
	// spent before the earlier one, so never late; RetryAfter counts to the
	// later one, so that who obeys it does not come early.
	deadline atomic.Int64

	stock     atomic.Int64 // tokens to spend
	reorder   atomic.Int64 // restock when the stock falls to this; none = never
	remaining atomic.Int64 // tokens left in the store when it was last heard
	ends      atomic.Int64
	of        int64        // the limit that remaining is of; under entry.mu
	direct    int64        // tokens charged by direct calls and not refunded; under entry.mu
	quiet     atomic.Int64 // entry.quiet, where stock is all there is; 0 otherwise
}

func newWindow(s backend.State) *window {
	w := &window{id: s.Window}
	w.ends.Store(1<<63 - 1)
	w.reorder.Store(none)
	return w
}

// none is a re-order point that no stock falls to.
const none = -1

// drift is what two clocks may differ by in speed: 500 parts in a million.
const drift = 2000

// heard takes in a reply that was sent for at sent, under limit l, and has just
// come. Of several bounds for one window the closest count, but they do not pass
// each other: the store counts in microseconds, and its clock may be set.
func (w *window) heard(s backend.State, l Limit, sent, now int64) {
	left := int64(s.Left)
	deadline := max(w.deadline.Load(), sent+left-left/drift)
	w.deadline.Store(deadline)
	w.ends.Store(max(min(w.ends.Load(), now+left+left/drift), deadline))
	w.remaining.Store(s.Remaining)
	w.of = l.Tokens
}

// used is how many tokens the store had charged when it was last heard. Under
// entry.mu.
func (w *window) used() int64 { return max(w.of-w.remaining.Load(), 0) }

// alive reports whether stock may be spent at now.
func (w *window) alive(now int64) bool { return w != nil && now < w.deadline.Load() }

// spend takes n tokens from stock, if that many are there, and returns what is
// left.
func (w *window) spend(n int64) (left int64, ok bool) {
	for s := w.stock.Load(); s >= n; s = w.stock.Load() {
		if w.stock.CompareAndSwap(s, s-n) {
			return s - n, true
		}
	}
	return 0, false
}

// denies reports whether n tokens are surely not to be had at now, from stock or
// store. It costs four loads, as stock must not have been taken away for a while
// between the first and the last; see entry.release.
func (w *window) denies(n, now int64) bool {
	q := w.quiet.Load()
	return now < q && n > w.remaining.Load()+w.stock.Load() && q == w.quiet.Load()
}

// admit fills in r for n tokens that were spent and left that stock. A Result is
// nine words: on the hot path it is written where the caller will read it.
func (w *window) admit(r *Result, limit, n, stock int64, from Source) {
	r.Allowed, r.Limit, r.Remaining = true, limit, w.remaining.Load()+stock
	r.Reset, r.Source, r.charged = w.id.Time(), from, n
}

func (w *window) refuse(r *Result, limit, now int64, from Source) {
	r.Limit, r.Remaining = limit, w.remaining.Load()+w.stock.Load()
	r.Reset, r.Source = w.id.Time(), from
	r.RetryAfter = time.Duration(max(w.ends.Load()-now, 1))
}
