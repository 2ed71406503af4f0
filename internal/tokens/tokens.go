// Package tokens has the tokens of one key in one process: the stock that is spent without a lock, and the
// account of them with the store.
//
// The store has charged all of them already. Callers spend from a [Lease] by compare-and-swap, after
// comparing the clock with its deadline. The owner of the key reserves some for callers in line, applies the
// store's replies, and states the account.
//
// A statement is numbered and absolute: it says what the store should have charged, and that is always what
// is held and spent. So a grant whose reply was lost is undone by the next statement, and what a lost one
// gave back is said again. Times are nanoseconds of the owner's clock. The package has no lock, clock or I/O.
//
// Fixed and rolling limits share the lease, the sums of the account, and all rules about them. Only a [Ring]
// knows of buckets. Builds with -race assert that each token is in one place:
//
//	0 <= said <= debt, 0 <= said <= back
//	balance == taken + refunded - returned and confirmed - expired, over the account's life
//	sums of a ring's buckets == sums of its account
package tokens

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Tokens are those of one key. Call Account.Begin first. The owner's lock guards all but what a Lease lets
// others do.
//
// Those of a fixed limit belong to a window, and so does the lease. Those of a rolling limit belong to
// buckets; see [Ring]. Its lease is that of the first bucket of which there are tokens, and ends with it,
// though the stock has those of later ones, too.
type Tokens struct {
	Lease    atomic.Pointer[Lease] // from which requests are served; nil = none. Anybody may load it, and Tokens writes it
	Reserved int64                 // taken out of the lease for callers in line. The owner takes from it for one who is served
	Account  Account               // the owner states it; Tokens makes all other changes
}

// Charge is what a request was charged: so many tokens, in a window or, of a rolling limit, under the lease
// of a bucket.
type Charge struct {
	Tokens int64
	Window backend.Window
	Bucket int64
}

// Held is what the process holds, whether it may still be spent or not.
func (t *Tokens) Held() int64 {
	n := t.Reserved
	if w := t.Lease.Load(); w != nil {
		n += w.Stock.Load()
	}
	return n
}

// Spent is how many tokens requests have used over the account's life.
func (t *Tokens) Spent() int64 {
	n := t.Account.Balance - t.Reserved
	if w := t.Lease.Load(); w != nil {
		n -= w.Stock.Load()
	}
	if o := t.Account.open; o != nil {
		n -= o.back
	}
	return n
}

// Empty reports whether nothing is held, and the store has confirmed all debt and all that has gone back.
func (t *Tokens) Empty() bool {
	debt, back := t.Account.Unconfirmed()
	return t.Held() == 0 && debt == 0 && back == 0
}

// Until is until when the store takes a statement of what is held and owed; 0 = there is none. In the last
// moment of a fixed window it is too late; what a rolling limit's account has may count for longer than its
// lease.
func (t *Tokens) Until() int64 {
	w := t.Lease.Load()
	if w == nil {
		return 0
	}
	if t.Account.Ring != nil {
		return w.Latest
	}
	return w.Deadline.Load()
}

// Owed is what a statement at now may still settle: the debt, and how many tokens have gone back. It is nothing when that is too late.
func (t *Tokens) Owed(now int64) (debt, back int64) {
	w, o := t.Lease.Load(), t.Account.open
	if w == nil || o == nil || t.Account.Ring != nil && now >= w.Latest || t.Account.Ring == nil && now >= w.Deadline.Load() {
		return 0, 0
	}
	return o.debt, o.back
}

// Frees is when the next tokens of a rolling limit count no more, as the last refusal has said; 0 = the limit
// has a reset instead.
func (t *Tokens) Frees() int64 {
	if w := t.Lease.Load(); t.Account.Ring != nil && w != nil {
		return w.Reset.Load()
	}
	return 0
}

// Last is until when tokens of the last bucket may be spent of which there are some, and its number; 0 =
// there is none.
func (t *Tokens) Last() (until, bucket int64) {
	r := t.Account.Ring
	if r == nil || r.Last() == 0 {
		return 0, 0
	}
	return r.Deadline(r.Last()), r.Last()
}

// Longest is how long a token counts at most after its grant: until the window's end or, of a rolling limit,
// that of the last bucket that it may be for, and a window.
func Longest(l backend.Limit) time.Duration {
	if l.Rolls {
		return l.Window * backend.MaxChanges / backend.Buckets
	}
	return l.Window
}

// Reserve takes the stock out for callers in line, so that a newcomer cannot spend what they wait for. Until
// the next Publish nobody is refused without a lock.
func (t *Tokens) Reserve() {
	if w := t.Lease.Load(); w != nil {
		w.deny(0)
		t.Reserved += w.Stock.Swap(0)
	}
}

// Publish puts what is reserved into the stock, and then lets callers be refused until denied; 0 = the store
// may have more.
func (t *Tokens) Publish(denied int64) {
	if w := t.Lease.Load(); w != nil {
		w.Stock.Add(t.Reserved)
		t.Reserved = 0
		w.deny(denied)
	}
}

// Withhold takes the stock out, so that nobody spends it, and lets callers be refused until denied; 0 = under the lock only.
func (t *Tokens) Withhold(denied int64) {
	t.Reserve()
	if w := t.Lease.Load(); w != nil {
		w.deny(denied)
	}
}

// Apply applies the reply r to q, the last statement, which was sent at sent, and is neither void nor astray.
// Grants are reserved then, and so is all that is held. It reports whether the account has entered another
// window, or the first, or none; a rolling limit has one that never ends.
func (t *Tokens) Apply(q *backend.Statement, r *backend.Reply, sent, now int64) (m Moved, entered bool) {
	// The account. The stock is taken out first, because what is spent meanwhile would count as held.
	t.Reserve()
	m, t.Reserved = t.Account.Apply(q, r, t.Reserved, sent, now)
	// Is it in another window?
	was, of := t.Lease.Load(), backend.Window{}
	if was != nil {
		of = was.Window
	}
	entered = t.Account.Ring == nil && of != r.Window && (was != nil || r.Window.End != 0)

	// The lease. How long the statement took to arrive is not known, so tokens of a rolling limit may count
	// that long from now.
	switch {
	case t.Account.Ring != nil:
		w := t.turn(r.Window, sent, now+int64(Longest(q.Limit)))
		w.Remaining.Store(r.Remaining)
	case r.Window.End == 0: // nothing is charged, and so no window is open
		t.Lease.Store(nil)
	default:
		t.turn(r.Window, sent, math.MaxInt64/2).Read(r.State, sent, now)
	}
	return m, entered
}

// turn makes the lease that of the window or, of a rolling limit, of the first bucket with tokens, which is
// over at latest. sent is when the reading was requested that says so, and -1 if none has just come.
func (t *Tokens) turn(of backend.Window, sent, latest int64) *Lease {
	ring, bucket := t.Account.Ring, int64(0)
	if ring != nil {
		bucket = ring.First()
	}

	// Another lease, if it is not the same.
	from := t.Lease.Load()
	to := from
	if from == nil || from.Window != of || from.Bucket != bucket {
		to = &Lease{Window: of, Bucket: bucket, Latest: latest}
		to.Reorder.Store(None)
		if from != nil && ring != nil { // it knows what the last one knew, and is in doubt as that was
			to.Reset.Store(from.Reset.Load())
			to.Reorder.Store(from.Reorder.Load())
			to.Remaining.Store(from.Remaining.Load())
			to.Deadline.Store(from.Deadline.Load())
		}
	}

	// Until when. Readings set the bounds of a window, and the ring knows those of a bucket. A doubt stays
	// until a reading that is newer.
	if ring != nil {
		until, last := latest, to.Deadline.Load()
		if last < 0 && sent < -1-last {
			until = last
		} else if bucket != 0 {
			until = ring.Deadline(bucket)
		}
		to.Latest = latest
		to.Deadline.Store(until)
	}

	// It replaces the old one before the stock moves, so that a caller who finds that empty finds the new
	// one.
	if to != from {
		t.Lease.Store(to)
		if from != nil {
			t.Reserved += from.Stock.Swap(0)
		}
	}
	return to
}

// Expire ends what is over: a window's tokens and debt, unless a reply that is on its way decides, and tokens
// of buckets. It reports whether the lease is another bucket's now, so that all that is held is reserved.
func (t *Tokens) Expire(now int64, inFlight bool) (m Moved, turned bool) {
	w := t.Lease.Load()
	if w == nil {
		return m, false
	}

	// A window is over when that is sure. The reply on its way may say that it still runs, or was carried
	// over. A bucket's end is sure at its deadline, and what a Reset may have voided waits for a reply.
	over := w.Over(now) && !inFlight
	if w.Bucket != 0 {
		over = !w.Doubted() && now >= w.Deadline.Load()
		turned = over
	}
	if !over {
		return m, false
	}
	// Taken out first, or callers could spend meanwhile what goes back.
	t.Reserve()
	if m, t.Reserved = t.Account.Expire(t.Reserved, now); turned {
		t.turn(w.Window, -1, w.Latest)
	}
	return m, turned
}

// Drop ends the account, if no reply does that: what is held expires.
func (t *Tokens) Drop() Moved {
	t.Reserve()
	held := t.Reserved
	t.Reserved = 0
	t.Lease.Store(nil)
	return t.Account.Drop(held)
}

// Return takes up to n tokens out of the stock that go back with the next statement, or all that is held if n
// is negative. It returns how many.
func (t *Tokens) Return(n int64) int64 {
	if n < 0 { // also what callers in line would get: the key leaves
		t.Reserve()
		n, t.Reserved = t.Reserved, 0
	} else if w := t.Lease.Load(); w != nil {
		n = w.spendUpTo(n)
		w.Remaining.Add(n)
	}
	if n > 0 {
		t.Account.Return(n, n+t.Held())
	}
	return n
}

// Refund takes back n tokens of c that were not used, as [Account.Refund] does. What may be spent again is
// reserved. ok is false if they belong to a window that is over, or to buckets that count no more: they have
// expired.
func (t *Tokens) Refund(c Charge, n int64, spend bool, now int64) (r Refunded, ok bool) {
	w, a := t.Lease.Load(), &t.Account
	if w == nil || !a.Has(c.Window, w.Window) {
		return r, false
	}
	r = a.Refund(n, c.Bucket, t.Held(), spend && !w.Doubted(), now)
	if t.Reserved += r.Stock; r.Stock > 0 {
		t.turn(w.Window, -1, w.Latest)
	}
	return r, a.Ring == nil || r.Stock+r.Back > 0
}

// Overrun takes n tokens that were used above a charge out of the stock, and what it lacks as debt. It
// returns how much is debt.
func (t *Tokens) Overrun(n, now int64) (debt int64) {
	if debt = n - t.Lease.Load().spendUpTo(n); debt > 0 {
		t.Account.Declare(debt, now)
	}
	return debt
}

// Lease is this process' share of one window of one key or, of a rolling limit, of one bucket. Callers spend
// from it without a lock: they may load each atomic field, and Spend and ClaimReorder write two of them. All
// else is the owner's, under its lock. Times are nanoseconds of the owner's clock. A nil Lease is over.
type Lease struct {
	// Three estimates of the window's end differ because the store read its clock at an unknown instant
	// between sending and reply. Stock is spent only before Deadline, the earliest. Results report Reset.
	// After Latest the window is surely over, and a request opens the next one. A rolling limit has no reset:
	// there Reset is when its next tokens count no more. What an admission reads comes first, because it then
	// often shares a cache line.
	Deadline  atomic.Int64   // negative while the lease is in doubt
	Stock     atomic.Int64   // tokens to spend
	Reorder   atomic.Int64   // order a batch when the stock falls to this; or None, or Due
	Remaining atomic.Int64   // tokens left in the store at the last reading
	Window    backend.Window // never changes
	Bucket    int64          // of a rolling limit, else 0; never changes

	Reset  atomic.Int64
	denied atomic.Int64 // until when more than stock and remaining is denied; not positive = ask the store
	Latest int64        // for the owner only
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
		deadline = max(deadline, sent+left-left/Drift)
	}
	l.Latest = max(min(l.Latest, now+left+left/Drift), deadline)
	l.Deadline.Store(deadline)
	l.Reset.Store(min(max(l.Reset.Load(), sent+left), l.Latest))
	l.Remaining.Store(s.Remaining)
}

// Free records that more tokens of a rolling limit come after that time.
func (l *Lease) Free(after time.Duration, now int64) {
	l.Reset.Store(now + int64(after) + int64(after)/Drift)
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
