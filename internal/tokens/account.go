package tokens

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Account is one limiter's account of one key. Call Begin first. It is not safe for concurrent use: the
// owner's lock guards it, and only its methods write it.
//
// The sums are kept alike for all limits. Where the tokens of a rolling limit are charged, Ring knows; those
// of a fixed limit are all charged in one window. A method that takes held gets what the process holds, and
// so learns what was spent since.
//
// Most of a million keys are used once, so the fields that few keys need are in open.
type Account struct {
	Balance   int64 // tokens held, spent or given back and not confirmed, over the account's life
	Mine      int64 // tokens charged in the window, or in buckets that count, by the last reply; confirmed debt only in a window
	Ring      *Ring // the buckets of a rolling limit; nil = the limit is fixed
	life, seq int64 // of the last statement
	used      int64 // tokens charged to everybody in the window at that reply
	open      *open // nil = all is zero
}

// open holds what no reply has confirmed, and what else few accounts need.
type open struct {
	debt, back         int64 // used without a grant, and given back
	saidDebt, saidBack int64 // the parts of them that the last statement has said
	expired            int64 // tokens of Mine that were not used, because the window is over

	carried backend.Window // the window before, if what was charged in it counts in the present one
}

// Moved is how many tokens an event has moved, for the limiter's counts. Overdrawn is debt that was charged
// above the limit, or that did not reach the store in time. Settled were used, and count no more, but their
// requests may still be settled.
type Moved struct{ Taken, Returned, Expired, Overdrawn, Settled int64 }

// Refunded is what has become of tokens that a request has not used.
type Refunded struct {
	Stock int64 // may be spent again
	Back  int64 // are on their way to the store
	Paid  int64 // have paid for debt, so they are spent again
}

// Begin begins a life, which must have a higher number than all lives of this limiter before it.
func (a *Account) Begin(limit backend.Limit, life int64) {
	if *a = (Account{life: life}); limit.Rolls {
		a.Ring = &Ring{window: limit.Window}
	}
}

// State writes the account into q, which is about to be sent, and which is about the window w. Replies to
// earlier statements count no more.
func (a *Account) State(q *backend.Statement, w backend.Window) {
	a.seq++ // or a late reply to an earlier statement could bring a grant that this one undoes
	q.Life, q.Seq, q.Window = a.life, a.seq, w
	q.Mine, q.Used = a.Mine, a.used
	if o := a.open; o != nil {
		q.Change = o.debt - o.back
		o.saidDebt, o.saidBack = o.debt, o.back
	}
	if a.Ring != nil {
		a.Ring.state(q)
	}
}

// Apply applies the reply r to q, the last statement, which was sent at sent, and is neither void nor astray.
// It returns what is held afterwards, with the grant.
func (a *Account) Apply(q *backend.Statement, r *backend.Reply, held, sent, now int64) (m Moved, left int64) {
	// Does what is held and spent belong to the reply's window? It does if that is the same, or the store has
	// carried it over. Otherwise q's window is over or void.
	same := r.Window == q.Window || a.Ring != nil && r.Window.Gen == q.Window.Gen
	kept := same || r.Mine > r.Grant
	switch o := a.open; {
	case o == nil && a.Mine == 0: // nothing was charged before
	case !kept:
		m, held = a.Drop(held), 0
	case o != nil:
		// What q has said is confirmed. What came after it is not, and is said again.
		m.Taken, m.Returned = o.saidDebt, o.saidBack
		m.Overdrawn = min(m.Taken, max(r.Used-r.Grant-q.Limit.Tokens, 0))
		o.debt, o.back, o.saidDebt, o.saidBack = o.debt-o.saidDebt, o.back-o.saidBack, 0, 0
		a.Balance += m.Taken - m.Returned
	}
	if kept && !same {
		a.makeOpen().carried = q.Window // or nobody could refund what was charged in it
	}

	// What is charged, by the reply: in another window only what was carried there, and the grant.
	a.Mine, a.used = r.Mine, r.Used
	if a.Ring != nil {
		// Some buckets count no more. What is held of them must not be spent with what comes now.
		gone, charged := a.Ring.apply(q, r, held, sent, now)
		if a.Mine, held = charged, held-gone.held; gone.debt+gone.back > 0 {
			a.open.debt, a.open.back = a.open.debt-gone.debt, a.open.back-gone.back
		}
		m.Expired, m.Overdrawn, m.Settled = m.Expired+gone.held+gone.back, m.Overdrawn+gone.debt, m.Settled+gone.used+gone.debt
		a.Balance -= gone.held + gone.back
	}
	// The grant. Few keys ever need open again.
	m.Taken += r.Grant
	a.Balance += r.Grant
	if a.open != nil && *a.open == (open{}) {
		a.open = nil
	}
	if invariant.Enabled {
		a.check(held + r.Grant)
	}
	return m, held + r.Grant
}

// Drop drops all that is about the window, which is over or void, or the account ends without a reply: what
// is held or has gone back in vain expires, and debt must not be charged to a later window.
func (a *Account) Drop(held int64) (m Moved) {
	debt, back := a.Unconfirmed()
	m.Expired, m.Overdrawn, m.Settled = held+back, debt, a.InUse(held-debt)
	a.Balance -= m.Expired
	if a.Mine, a.used, a.open = 0, 0, nil; a.Ring != nil {
		a.Ring.list = nil
	}
	return m
}

// Expire ends what is held of a window or of buckets that are over, and returns what is held still. Tokens of
// a bucket go back to it, because it counts for longer. Those of a window have expired, and debt has reached
// no store in time.
func (a *Account) Expire(held, now int64) (m Moved, left int64) {
	if a.Ring != nil {
		if n := a.Ring.expire(held, now); n > 0 {
			a.makeOpen().back += n
			held -= n
		}
		return m, held
	}
	if held > 0 { // they stay in Mine, which statements name, until a reply shows another window
		a.makeOpen().expired += held
		a.Balance -= held
	}
	if o := a.open; o != nil {
		m.Overdrawn, o.debt, o.saidDebt = o.debt, 0, 0
	}
	m.Expired = held
	return m, 0
}

// Return gives back n of the tokens held, of the last buckets. They count as held until the store has
// confirmed a statement that says so.
func (a *Account) Return(n, held int64) {
	if a.makeOpen().back += n; a.Ring != nil {
		a.Ring.giveBack(n, held)
	}
}

// Declare adds n tokens of debt, which were used without a grant.
func (a *Account) Declare(n, now int64) {
	o := a.makeOpen()
	n = min(n, backend.MaxTokens-o.debt) // a store reads no larger number
	if o.debt += n; a.Ring != nil {
		a.Ring.bucket(a.Ring.Now(now)).debt += n
	}
}

// Refund takes back up to n tokens that were spent under a lease of the bucket, or in the window. No more
// goes back than requests have used, so that a charge that is refunded again and again creates no tokens.
// Those of a window first pay for debt that no statement has said. Unless they may be spent again, all go
// back to the store. What counts no more does not.
func (a *Account) Refund(n, bucket, held int64, spend bool, now int64) (r Refunded) {
	n = min(n, a.InUse(held))
	if a.Ring != nil {
		r.Stock, r.Back = a.Ring.refund(n, bucket, held, spend, now)
	} else {
		// Debt that a statement has said may be charged already: to cancel it would give the token twice.
		if o := a.open; o != nil {
			r.Paid = min(n, o.debt-o.saidDebt)
			o.debt -= r.Paid
		}
		if r.Stock = n - r.Paid; !spend {
			r.Stock, r.Back = 0, r.Stock
		}
	}
	if a.Balance += r.Stock + r.Back + r.Paid; r.Back > 0 {
		a.makeOpen().back += r.Back
	}
	return r
}

// Unconfirmed is what the store has not confirmed: the debt, and how many tokens have gone back.
func (a *Account) Unconfirmed() (debt, back int64) {
	if a.open == nil {
		return 0, 0
	}
	return a.open.debt, a.open.back
}

// Has reports whether what was charged in w counts in the present window: it is the same, or was carried into
// it.
func (a *Account) Has(w, present backend.Window) bool {
	if a.Ring != nil { // it has no window that ends, and each Reset begins one
		return w.Gen == present.Gen
	}
	return w == present || a.open != nil && a.open.carried == w && w.End != 0
}

// InUse is how many of the tokens charged in the window, or in buckets that count, are spent. Debt that no
// reply has confirmed is not charged.
func (a *Account) InUse(held int64) int64 {
	in := a.Mine - held
	if a.open != nil {
		in -= a.open.back + a.open.expired
	}
	return max(in, 0)
}

func (a *Account) makeOpen() *open {
	if a.open == nil {
		a.open = new(open)
	}
	return a.open
}

// check asserts the invariants, in builds that do.
func (a *Account) check(held int64) {
	o := open{}
	if a.open != nil {
		o = *a.open
	}
	invariant.That(0 <= o.saidDebt && o.saidDebt <= o.debt && 0 <= o.saidBack && o.saidBack <= o.back, "said %d of a debt of %d, and %d of %d given back", o.saidDebt, o.debt, o.saidBack, o.back)
	if a.Ring != nil {
		sum := a.Ring.sum()
		invariant.That(sum.held >= held, "%d tokens are held, and there were %d", held, sum.held)
		invariant.That(sum.debt == o.debt && sum.back == o.back && sum.held+sum.used+sum.back == a.Mine, "buckets of %+v in an account with %d, %+v", sum, a.Mine, o)
	}
}
