package tokens

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Lease is this process' share of one window of one key or, of a rolling limit, of one bucket. Times are nanoseconds of the
// owner's clock. Methods that are marked "Owner" need the owner's lock; all others are
// safe for concurrent use. A nil Lease is over and holds nothing.
type Lease struct {
	Window backend.Window // never changes

	// These three estimates of the window's end differ because the store read its clock
	// at an unknown instant between sending and reply. Stock is spent only before
	// deadline, the earliest. Results report reset. After latest the window is surely over,
	// and a request opens the next one.
	deadline atomic.Int64
	reset    atomic.Int64

	stock     atomic.Int64 // tokens to spend
	reorder   atomic.Int64 // order a batch when the stock falls to this; none = never
	remaining atomic.Int64 // tokens left in the store at the last reading
	denied    atomic.Int64 // until when more than stock and remaining is denied; not positive = ask the store

	latest int64 // owner
	Bucket int64 // of a rolling limit, else 0; never changes
}

// These are re-order points to which no stock falls, because further fields would not fit
// into the cache line. due says that an order is due, because the stock has fallen to the point.
const (
	none = -1
	due  = -2
)

// New returns an empty lease of w. It is not alive until Apply gives it an end.
func New(w backend.Window) *Lease {
	l := &Lease{Window: w, latest: math.MaxInt64 / 2}
	l.reorder.Store(none)
	return l
}

// Apply applies a reading of the store that was requested at sent and came at now. The
// closest bounds of all readings count. LatestEnd never falls below Deadline, although the
// store counts in microseconds and its clock may be set. Owner.
func (l *Lease) Apply(s backend.State, sent, now int64) {
	left := int64(s.Left)
	deadline := l.deadline.Load()
	if !l.doubts(sent) {
		deadline = max(deadline, sent+left-left/drift)
	}
	l.latest = max(min(l.latest, now+left+left/drift), deadline)
	l.deadline.Store(deadline)
	l.reset.Store(min(max(l.reset.Load(), sent+left), l.latest))
	l.remaining.Store(s.Remaining)
}

// turn returns the lease that a rolling limit has after l: of a bucket, whose stock may be spent until deadline and which is over at
// latest. It is l if that is of the same window and bucket, and else an empty one that knows what l knows. A nil l knows nothing. If l is in
// doubt, the lease is, too, unless sent, when the reading was requested that it follows, is later. Owner.
func (l *Lease) turn(w backend.Window, bucket, deadline, latest, sent int64) *Lease {
	to := l
	if l == nil || l.Window != w || l.Bucket != bucket {
		to = New(w)
		to.Bucket = bucket
	}
	if l != nil && to != l {
		to.reset.Store(l.reset.Load())
		to.reorder.Store(l.reorder.Load())
		to.remaining.Store(l.remaining.Load())
	}
	if l.doubts(sent) {
		deadline = l.deadline.Load()
	}
	to.deadline.Store(deadline)
	to.latest = latest
	return to
}

// Free records that more tokens of a rolling limit come after that time. Owner.
func (l *Lease) Free(after time.Duration, now int64) {
	l.reset.Store(now + int64(after) + int64(after)/drift)
}

// Frees is the time that Free has recorded, and Freed reports whether it has come.
func (l *Lease) Frees() int64         { return l.reset.Load() }
func (l *Lease) Freed(now int64) bool { return now >= l.reset.Load() }

// Doubt keeps the stock from being spent until a reading that is requested at now or later says that
// the window is open. Owner.
func (l *Lease) Doubt(now int64) { l.deadline.Store(-1 - now) }

// Doubted reports whether no reading has lifted a Doubt.
func (l *Lease) Doubted() bool { return l != nil && l.deadline.Load() < 0 }

// doubts reports whether a reading that was requested at sent lifts no Doubt, because it is older.
func (l *Lease) doubts(sent int64) bool { return l.Doubted() && sent < -1-l.deadline.Load() }

// Alive reports whether stock may be spent at now.
func (l *Lease) Alive(now int64) bool { return l != nil && now < l.deadline.Load() }

// Over reports whether the window is surely over, so that a request to the store opens
// the next one. Owner.
func (l *Lease) Over(now int64) bool { return l == nil || now > l.latest }

// Deadline is until when stock may be spent, the lower bound of the window's end. Owner.
func (l *Lease) Deadline() int64 { return l.deadline.Load() }

// LatestEnd is when the window is surely over, the upper bound of its end. Owner.
func (l *Lease) LatestEnd() int64 { return l.latest }

// RetryAfter is the best estimate of the time until the window ends, at least 1 ns.
func (l *Lease) RetryAfter(now int64) time.Duration {
	return time.Duration(max(l.reset.Load()-now, 1))
}

// Spend takes n tokens from the stock, if it has that many, and returns what is left.
func (l *Lease) Spend(n int64) (left int64, ok bool) {
	for s := l.stock.Load(); s >= n; s = l.stock.Load() {
		if l.stock.CompareAndSwap(s, s-n) {
			return s - n, true
		}
	}
	return 0, false
}

// SpendUpTo takes n tokens from the stock, or all if it has fewer.
func (l *Lease) SpendUpTo(n int64) (spent, left int64) {
	for {
		s := l.stock.Load()
		spent = min(s, n)
		if l.stock.CompareAndSwap(s, s-spent) {
			return spent, s - spent
		}
	}
}

// ClaimReorder reports whether left is at the re-order point or below. It reports so only
// once, to the caller that must order, until SetReorder sets the point again.
func (l *Lease) ClaimReorder(left int64) bool {
	for at := l.reorder.Load(); left <= at; at = l.reorder.Load() {
		if l.reorder.CompareAndSwap(at, due) {
			return true
		}
	}
	return false
}

// SetReorder sets the re-order point; a negative one is none. No order is due then.
func (l *Lease) SetReorder(n int64) { l.reorder.Store(max(n, none)) }

// Order records that an order is due, as ClaimReorder does when the stock falls to the point.
func (l *Lease) Order() { l.reorder.Store(due) }

// OrderDue reports whether an order is due.
func (l *Lease) OrderDue() bool { return l != nil && l.reorder.Load() == due }

// CancelOrder records that no order is due any more.
func (l *Lease) CancelOrder() {
	if l != nil {
		l.reorder.CompareAndSwap(due, none)
	}
}

// Denies reports whether stock and store surely have fewer than n tokens at now. It loads
// denied twice: if the value did not change, no stock was reserved in between, because
// each Publish stores another instant.
func (l *Lease) Denies(n, now int64) bool {
	d := l.denied.Load()
	return now < d && n > l.remaining.Load()+l.stock.Load() && d == l.denied.Load()
}

// Available is what the store had left at the last reading, and the stock. It does not
// include reserved tokens.
func (l *Lease) Available() int64 { return l.remaining.Load() + l.stock.Load() }

// Remaining is what the store had left at the last reading.
func (l *Lease) Remaining() int64 { return l.remaining.Load() }

// AddRemaining records that the store has n tokens more than at the last reading, or fewer
// if n is negative. Owner.
func (l *Lease) AddRemaining(n int64) { l.remaining.Store(max(l.remaining.Load()+n, 0)) }

// Reserve takes the stock out for callers in line, so that a newcomer cannot spend what
// they wait for. Until the next Publish nobody is refused without a lock. Owner.
func (l *Lease) Reserve() int64 {
	l.deny(0)
	return l.stock.Swap(0)
}

// Publish puts n tokens into the stock, and then lets callers be refused until denied. A
// denied of 0 means that the store may have more. Owner.
func (l *Lease) Publish(n, denied int64) {
	if n != 0 {
		l.stock.Add(n)
	}
	l.deny(denied)
}

// Rounding is how much later than it was told a lease lets callers be refused, at most.
const Rounding = 2 << 10

// deny stores until, if it is positive, rounded up by at most two microseconds. The last
// bits are a counter, so that each call stores another instant; see Denies. While nobody
// is denied, the last instant is kept as a negative number.
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

// Drain takes all tokens out. Owner.
func (l *Lease) Drain() int64 {
	if l == nil {
		return 0
	}
	return l.stock.Swap(0)
}

// Stock is how many tokens may be spent now.
func (l *Lease) Stock() int64 {
	if l == nil {
		return 0
	}
	return l.stock.Load()
}
