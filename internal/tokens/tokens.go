// Package tokens has the tokens of one key in one process: the stock that is spent without a lock, and the account of them
// with the store.
//
// The store has charged all of them already. Callers spend from a [Lease] by compare-and-swap, after comparing the clock with its
// deadline. The owner of the key reserves some for callers in line, applies the store's replies, and states the account.
//
// A statement is numbered and absolute: it says what the store should have charged, and that is always what is held and
// spent. So a grant whose reply was lost goes with the next statement, and what was given back in vain is said again. Times are
// nanoseconds of the owner's clock. The package has no lock, clock or I/O.
//
// Every token is in one place. Builds with -race assert it:
//
//	0 <= said <= debt, 0 <= said <= back
//	balance == taken + refunded - returned and confirmed - expired, over the account's life
package tokens

import (
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Tokens are those of one key. Call Init first. Lease is safe for concurrent use; the owner's lock guards all else.
//
// Those of a fixed limit belong to a window, and so does the lease. Those of a rolling limit belong to buckets; see [Buckets].
// Its lease is that of the first bucket of which there are tokens, and ends with it, though the stock has those of later ones, too.
type Tokens struct {
	Lease    atomic.Pointer[Lease] // from which requests are served; nil = none. Anybody may load it, and Tokens writes it
	Reserved int64                 // taken out of the lease for callers in line. The owner takes from it for one who is served

	account Account
	buckets *Buckets // the account of a rolling limit; otherwise nil
}

// Charge is what a request was charged: so many tokens, in a window or, of a rolling limit, under the lease of a bucket.
type Charge struct {
	Tokens int64
	Window backend.Window
	Bucket int64
}

// Init begins a life of the account, which must have a higher number than all lives of this limiter before it.
func (t *Tokens) Init(limit backend.Limit, life int64) {
	if t.account.Begin(life); limit.Rolls {
		t.buckets = new(Buckets)
		t.buckets.Begin(limit, life)
	}
}

// Rolls reports whether the limit is a rolling one.
func (t *Tokens) Rolls() bool { return t.buckets != nil }

// Held is what the process holds, whether it may still be spent or not.
func (t *Tokens) Held() int64 {
	if w := t.Lease.Load(); w != nil {
		return w.Stock.Load() + t.Reserved
	}
	return t.Reserved
}

// Spent is how many tokens requests have used over the account's life.
func (t *Tokens) Spent() int64 { return t.Balance() - t.Held() - t.Unconfirmed() }

// Balance is the sum of the tokens held, spent and unconfirmed.
func (t *Tokens) Balance() int64 {
	if t.buckets != nil {
		return t.buckets.balance
	}
	return t.account.balance
}

// Unpaid is the debt that the store has not confirmed.
func (t *Tokens) Unpaid() int64 {
	if t.buckets != nil {
		return t.buckets.Unpaid()
	}
	return t.account.Unpaid()
}

// Unconfirmed is how many returned tokens the store has not confirmed.
func (t *Tokens) Unconfirmed() int64 {
	if t.buckets != nil {
		return t.buckets.Unconfirmed()
	}
	return t.account.Unconfirmed()
}

// Outstanding reports whether debt or returned tokens await the store's confirmation.
func (t *Tokens) Outstanding() bool { return t.Unpaid() > 0 || t.Unconfirmed() > 0 }

// Charged reports whether the store has charged anything that may still count.
func (t *Tokens) Charged() bool {
	return t.account.mine > 0 || t.buckets != nil && t.buckets.balance > 0
}

// Keeps reports whether what is held is not over. In the last moment of a fixed window it is; what a rolling limit's account has
// may count for longer than its lease.
func (t *Tokens) Keeps(now int64) bool {
	w := t.Lease.Load()
	return w.Alive(now) || t.buckets != nil && !w.Over(now)
}

// Reserve takes the stock out for callers in line, so that a newcomer cannot spend what they wait for. Until the next Publish nobody is
// refused without a lock.
func (t *Tokens) Reserve() {
	if w := t.Lease.Load(); w != nil {
		w.deny(0)
		t.Reserved += w.Stock.Swap(0)
	}
}

// Publish puts what is reserved into the stock, and then lets callers be refused until denied; 0 = the store may have more.
func (t *Tokens) Publish(denied int64) {
	if w := t.Lease.Load(); w != nil {
		if n := t.Reserved; n != 0 {
			t.Reserved = 0
			w.Stock.Add(n)
		}
		w.deny(denied)
	}
}

// drain takes out all that is held.
func (t *Tokens) drain() int64 {
	t.Reserve()
	n := t.Reserved
	t.Reserved = 0
	return n
}

// State writes the account into q, which is about to be sent. Replies to earlier statements count no more.
func (t *Tokens) State(q *backend.Statement, now int64) {
	w := t.Lease.Load()
	if q.Runs = w.Alive(now); t.buckets != nil {
		t.buckets.State(q)
	} else if w != nil {
		t.account.State(q, w.Window)
	} else {
		t.account.State(q, backend.Window{})
	}
}

// Change is what a reply has changed.
type Change struct {
	Moved
	Window bool // the account has entered another window, or the first, or none
	Kept   bool // what was held and spent belongs to it
}

// Apply applies the reply r to q, the last statement, which was sent at sent, and is neither void nor astray. Grants are reserved
// then, and so is all that is held.
func (t *Tokens) Apply(q *backend.Statement, r *backend.Reply, sent, now int64) (c Change) {
	w := t.Lease.Load()
	if t.buckets != nil {
		c.Moved, c.Kept = t.buckets.Apply(q, r, t.drain(), sent, now), true
		t.Reserved = t.buckets.held() // what a Reset has voided, and what counts no more, is not among it
		t.turn(r.Window, sent, now)
		t.Reserve()
		t.Lease.Load().Remaining.Store(r.Remaining)
		return c
	}
	var held int64
	if c.Window = r.Window.End != 0; w != nil {
		c.Window = w.Window != r.Window
	}
	if c.Window {
		held = t.drain()
	}
	c.Kept = Keeps(q, r)
	c.Moved = t.account.Apply(q, r, held)
	if c.Window {
		if w = nil; r.Window.End != 0 {
			w = newLease(r.Window)
		}
		t.Lease.Store(w)
		if c.Kept {
			t.Reserved += held
		}
	}
	if w != nil {
		w.Read(r.State, sent, now)
		t.Reserved += r.Grant
		t.Reserve()
	}
	return c
}

// turn gives back the tokens of buckets that are over, and makes the lease that of the first bucket with tokens. sent is when the
// reading was requested that says window, and -1 if none has just come.
func (t *Tokens) turn(window backend.Window, sent, now int64) (expired bool) {
	from, b := t.Lease.Load(), t.buckets
	if expired = sent >= 0 || from.Bucket != 0 && now >= from.Deadline.Load(); expired {
		held := t.drain() // or callers could spend them meanwhile
		t.Reserved = held - b.Expire(held, now)
	}
	bucket, longest := b.First(), int64(Longest(b.limit))
	latest, deadline := now+longest, sent+longest // nobody knows when the statement arrived in between
	if sent < 0 {
		latest, deadline = from.Latest, from.Latest
	}
	if bucket != 0 {
		deadline = b.Deadline(bucket)
	}
	if to := from.turn(window, bucket, deadline, latest, sent); to != from {
		t.Lease.Store(to) // before the stock moves, so that a caller with the old lease finds the new one
		if from != nil {
			t.Reserved += from.Stock.Swap(0)
		}
	}
	return expired
}

// Longest is how long a token counts at most after its grant: until the window's end or, of a rolling limit, that of the last bucket
// that it may be for, and a window.
func Longest(l backend.Limit) time.Duration {
	if l.Rolls {
		return l.Window * backend.MaxChanges / backend.Buckets
	}
	return l.Window
}

// Expire counts what is over: the tokens and the debt of a window, unless a reply that is on its way decides, and the tokens of buckets,
// which go back to them. It reports whether tokens are reserved now that were not.
func (t *Tokens) Expire(now int64, inFlight bool) (m Moved, reserved bool) {
	w := t.Lease.Load()
	switch {
	case w == nil:
	case t.buckets != nil:
		if !w.Doubted() && w.Bucket != 0 && now >= w.Deadline.Load() {
			return m, t.turn(w.Window, -1, now)
		}
	case w.Over(now) && !inFlight:
		m = t.account.Expire(t.drain())
		m.Overdrawn = t.account.ExpireDebt().Overdrawn
	}
	return m, false
}

// Leave ends the account, if no reply does that: what is held expires.
func (t *Tokens) Leave() (m Moved) {
	if held := t.drain(); t.buckets != nil {
		m = t.buckets.Leave(held)
	} else {
		m = t.account.lose(held)
	}
	t.Lease.Store(nil)
	return m
}

// Return takes up to n tokens out of the stock that go back with the next statement, or all that is held if n is negative. It
// returns how many.
func (t *Tokens) Return(n int64) int64 {
	w := t.Lease.Load()
	if n < 0 {
		n = t.drain()
	} else if n = w.spendUpTo(n); n > 0 {
		w.Remaining.Add(n)
	}
	if n > 0 {
		t.giveBack(n)
	}
	return n
}

func (t *Tokens) giveBack(n int64) {
	if t.buckets != nil {
		t.buckets.Return(n, n+t.Held())
	} else {
		t.account.Return(n)
	}
}

// Refunded is what has become of tokens that a request has not used.
type Refunded struct {
	Stock int64 // may be spent again
	Back  int64 // are on their way to the store
	Paid  int64 // have paid for debt, so they are spent again
}

// Refund takes back n tokens of c that were not used. No more goes back than requests have used, so that a charge that is refunded again
// and again creates no tokens. ok is false if they belong to a window that is over: they have expired. Unless they may be spent here
// again, all go back to the store.
func (t *Tokens) Refund(c Charge, n int64, spend bool, now int64) (r Refunded, ok bool) {
	w := t.Lease.Load()
	switch {
	case w == nil:
		return r, false
	case t.buckets != nil:
		if w.Window.Gen != c.Window.Gen {
			return r, false
		}
		var present int64
		if spend && !w.Doubted() {
			present = t.buckets.Now(now)
		}
		r.Stock, r.Back = t.buckets.Refund(n, c.Bucket, present, t.Held())
		if t.Reserved += r.Stock; r.Stock > 0 {
			t.turn(w.Window, -1, now)
		}
		return r, r.Stock+r.Back > 0
	case w.Window != c.Window && !t.account.Carried(c.Window):
		return r, false
	}
	n = min(n, t.account.InUse(t.Held()))
	r.Paid = t.account.CancelDebt(n)
	t.account.Refund(n)
	if r.Stock = n - r.Paid; !spend {
		r.Stock, r.Back = 0, r.Stock
		t.giveBack(r.Back)
	}
	t.Reserved += r.Stock
	return r, true
}

// Overrun takes n tokens that were used above a charge out of the stock, and what it lacks as debt. It returns how much is debt.
func (t *Tokens) Overrun(n, now int64) (debt int64) {
	if debt = n - t.Lease.Load().spendUpTo(n); debt > 0 && t.buckets != nil {
		t.buckets.Declare(debt, t.buckets.Now(now))
	} else if debt > 0 {
		t.account.Declare(debt)
	}
	return debt
}

// Last is until when tokens of the last bucket may be spent of which there are some, and its number; 0 = there is none.
func (t *Tokens) Last() (until, bucket int64) {
	if bucket = t.buckets.Last(); bucket != 0 {
		until = t.buckets.Deadline(bucket)
	}
	return until, bucket
}
