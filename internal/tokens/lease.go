package tokens

import (
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Lease is this process' share of one window of one key or, of a rolling limit, of one bucket. Callers spend
// from it without a lock: they may load each atomic field, and Spend and ClaimReorder write two of them. All
// else is the owner's, under its lock. Times are nanoseconds of the owner's clock. A nil Lease is over.
type Lease struct {
	Window backend.Window // never changes

	// Three estimates of the window's end differ because the store read its clock at an unknown instant
	// between sending and reply. Stock is spent only before Deadline, the earliest. Results report Reset.
	// After Latest the window is surely over, and a request opens the next one. A rolling limit has no reset:
	// there Reset is when its next tokens count no more.
	Deadline atomic.Int64 // negative while the lease is in doubt
	Reset    atomic.Int64

	Stock     atomic.Int64 // tokens to spend
	Reorder   atomic.Int64 // order a batch when the stock falls to this; or None, or Due
	Remaining atomic.Int64 // tokens left in the store at the last reading
	denied    atomic.Int64 // until when more than stock and remaining is denied; not positive = ask the store

	Latest int64 // for the owner only
	Bucket int64 // of a rolling limit, else 0; never changes
}

// These are re-order points to which no stock falls, because further fields would not fit into the cache
// line. Due says that an order is due, because the stock has fallen to the point.
const (
	None = -1
	Due  = -2
)

// Read applies a reading of the store that was requested at sent and came at now. The closest bounds of all
// readings count. Latest never falls below Deadline, although the store counts in microseconds and its clock
// may be set.
func (l *Lease) Read(s backend.State, sent, now int64) {
	// The store read its clock after sent and before now. So the end is not before sent+left, nor after
	// now+left.
	left, deadline := int64(s.Left), l.Deadline.Load()
	if deadline >= 0 || sent >= -1-deadline { // or the reading is older than a doubt
		deadline = max(deadline, sent+left-left/drift)
	}
	l.Latest = max(min(l.Latest, now+left+left/drift), deadline)
	l.Deadline.Store(deadline)
	l.Reset.Store(min(max(l.Reset.Load(), sent+left), l.Latest))
	l.Remaining.Store(s.Remaining)
}

// Free records that more tokens of a rolling limit come after that time.
func (l *Lease) Free(after time.Duration, now int64) {
	l.Reset.Store(now + int64(after) + int64(after)/drift)
}

// Doubt keeps the stock from being spent until a reading that is requested at now or later says that the
// window is open.
func (l *Lease) Doubt(now int64) { l.Deadline.Store(-1 - now) }

// Doubted reports whether no reading has lifted a Doubt.
func (l *Lease) Doubted() bool { return l != nil && l.Deadline.Load() < 0 }

// Alive reports whether stock may be spent at now. It is safe for concurrent use.
func (l *Lease) Alive(now int64) bool { return l != nil && now < l.Deadline.Load() }

// Over reports whether the window is surely over, so that a request to the store opens the next one.
func (l *Lease) Over(now int64) bool { return l == nil || now > l.Latest }

// Spend takes n tokens from the stock, if it has that many, and returns what is left. It is safe for
// concurrent use.
func (l *Lease) Spend(n int64) (left int64, ok bool) {
	for s := l.Stock.Load(); s >= n; s = l.Stock.Load() {
		if l.Stock.CompareAndSwap(s, s-n) {
			return s - n, true
		}
	}
	return 0, false
}

// spendUpTo takes n tokens from the stock, or all if it has fewer, and returns how many.
func (l *Lease) spendUpTo(n int64) int64 {
	for {
		s := l.Stock.Load()
		spent := min(s, n)
		if l.Stock.CompareAndSwap(s, s-spent) {
			return spent
		}
	}
}

// ClaimReorder reports whether left is at the re-order point or below. It reports so only once, to the caller
// that must order, until the owner sets the point again. It is safe for concurrent use.
func (l *Lease) ClaimReorder(left int64) bool {
	for at := l.Reorder.Load(); left <= at; at = l.Reorder.Load() {
		if l.Reorder.CompareAndSwap(at, Due) {
			return true
		}
	}
	return false
}

// CancelOrder records that no order is due any more.
func (l *Lease) CancelOrder() {
	if l != nil {
		l.Reorder.CompareAndSwap(Due, None)
	}
}

// Denies reports whether stock and store surely have fewer than n tokens at now. It is safe for concurrent
// use. It loads denied twice: if the value did not change, no stock was reserved in between, because each
// deny stores another instant.
func (l *Lease) Denies(n, now int64) bool {
	d := l.denied.Load()
	return now < d && n > l.Remaining.Load()+l.Stock.Load() && d == l.denied.Load()
}

// Rounding is how much later than it was told a lease lets callers be refused, at most.
const Rounding = 2 << 10

// deny stores until, if it is positive, rounded up by at most two microseconds. The last bits are a counter,
// so that each call stores another instant; see Denies. While nobody is denied, the last instant is kept as a
// negative number.
func (l *Lease) deny(until int64) {
	const bits = 1<<10 - 1
	last := l.denied.Load()
	switch {
	case until > 0:
		l.denied.Store((until+bits)&^bits + (max(last, -last)+1)&bits)
	case last > 0:
		l.denied.Store(-last)
	}
}
