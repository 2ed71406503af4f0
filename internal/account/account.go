// Package account keeps one limiter's account of one key with the store: the tokens that the store has
// charged to it, by the store's replies, and the statements that it makes.
//
// A statement is numbered and absolute: it says what the store should have charged, and that is always what is held and
// spent. So a grant whose reply was lost goes with the next statement, and what was given back in vain is said again. The
// package is pure: no lock, clock or I/O; replies come in, figures go out.
//
// Every token is in one place. Builds with -race assert it:
//
//	0 <= said <= debt, 0 <= said <= back
//	balance == taken + refunded - returned and confirmed - expired, over the account's life
package account

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Account is one limiter's account of one key. Call Begin first. It is
// not safe for concurrent use; the owner's lock guards it.
//
// Most of a million keys are used once, so the fields that few keys need are in open.
type Account struct {
	life, seq int64
	mine      int64 // charged in the window, as the last reply says
	used      int64 // charged to everybody at that reply
	balance   int64 // tokens held, spent or unconfirmed
	open      *open // nil = nothing is outstanding

	Buckets *Buckets // the account of a rolling limit, which has nothing of the above; otherwise nil
}

// open holds what no reply has confirmed, and what has expired in the window.
type open struct {
	debt, back         int64 // used without a grant, and given back
	saidDebt, saidBack int64 // the parts of them that the last statement has said
	expired            int64 // unused, because the window is over
}

// Moved is how many tokens an event has moved, for the limiter's counts. Overdrawn is
// debt that was charged above the limit, or that did not reach the store in time. Settled were used, and count no more, but
// their requests may still be settled.
type Moved struct{ Taken, Returned, Expired, Overdrawn, Settled int64 }

// Begin begins a life, which must have a higher number than all lives of this limiter before it.
func (a *Account) Begin(limit backend.Limit, life int64) {
	*a = Account{life: life}
	if limit.Rolls {
		a.Buckets = new(Buckets)
		a.Buckets.Begin(limit, life)
	}
}

// Life is the number of the account's life.
func (a *Account) Life() int64 { return a.life }

func (a *Account) makeOpen() *open {
	if a.open == nil {
		a.open = new(open)
	}
	return a.open
}

// State writes the account into q, which is about to be sent, and which is about the window w. Replies to earlier
// statements count no more.
func (a *Account) State(q *backend.Statement, w backend.Window) {
	if a.Buckets != nil {
		a.Buckets.State(q)
		return
	}
	a.seq++
	q.Life, q.Seq, q.Window, q.Mine, q.Used = a.life, a.seq, w, a.mine, a.used
	if o := a.open; o != nil {
		q.Change = o.debt - o.back
		o.saidDebt, o.saidBack = o.debt, o.back
	}
}

// Keeps reports whether what is held and spent in q's window belongs to the window of the reply r: it is the same, or the
// store has carried it over. Otherwise that window is over or void.
func Keeps(q *backend.Statement, r *backend.Reply) bool {
	return r.Window == q.Window || r.Mine > r.Grant
}

// Apply applies the reply r to q, the last statement, which is neither void nor astray. held is what the process holds in q's
// window; unless r keeps it, it expires. Afterwards the balance includes the grant.
func (a *Account) Apply(q *backend.Statement, r *backend.Reply, held int64) (m Moved) {
	if !Keeps(q, r) {
		m = a.lose(held)
	} else if o := a.open; o != nil {
		m.Taken, m.Returned = o.saidDebt, o.saidBack
		m.Overdrawn = min(m.Taken, max(r.Used-r.Grant-q.Limit.Tokens, 0))
		o.debt, o.back, o.saidDebt, o.saidBack = o.debt-o.saidDebt, o.back-o.saidBack, 0, 0
		if a.balance += m.Taken - m.Returned; *o == (open{}) {
			a.open = nil
		}
	}
	m.Taken += r.Grant
	a.balance += r.Grant
	a.mine, a.used = r.Mine, r.Used
	a.check()
	return m
}

// lose drops all that is about the window, which is over or void: what is held or has gone back in vain expires, and debt must
// not be charged to a later window.
func (a *Account) lose(held int64) (m Moved) {
	m.Expired, m.Overdrawn, m.Settled = held+a.Unconfirmed(), a.Unpaid(), a.Used(held)
	a.balance -= m.Expired
	a.mine, a.used, a.open = 0, 0, nil
	return m
}

// Leave ends the account of a window, if no reply does that; held is what the process holds.
func (a *Account) Leave(held int64) Moved {
	if a.Buckets != nil {
		return a.Buckets.Leave(held)
	}
	return a.lose(held)
}

// Expire records that n tokens, which are held no more, have expired with their window.
func (a *Account) Expire(n int64) Moved {
	if a.balance -= n; n > 0 {
		a.makeOpen().expired += n
	}
	return Moved{Expired: n}
}

// ExpireDebt records that debt has reached no store in time, because its window is over.
func (a *Account) ExpireDebt() (m Moved) {
	if o := a.open; o != nil {
		m.Overdrawn = o.debt
		o.debt, o.saidDebt = 0, 0
	}
	return m
}

// Return takes n unspent tokens out of the account, after which left are held. They count as held until the
// store has confirmed a statement that returns them.
func (a *Account) Return(n, left int64) {
	if a.Buckets != nil {
		a.Buckets.Return(n, n+left)
		return
	}
	a.makeOpen().back += n
	a.check()
}

// Declare adds n tokens of debt, which are used without a grant now.
func (a *Account) Declare(n, now int64) {
	if a.Buckets != nil {
		a.Buckets.Declare(n, a.Buckets.Now(now))
		return
	}
	o := a.makeOpen()
	o.debt = min(o.debt+n, backend.MaxTokens)
}

// CancelDebt cancels up to n tokens of debt that no statement has said, and returns how many.
func (a *Account) CancelDebt(n int64) int64 {
	if a.open == nil {
		return 0
	}
	n = min(n, a.open.debt-a.open.saidDebt)
	a.open.debt -= n
	return n
}

// Unpaid is the debt that the store has not confirmed.
func (a *Account) Unpaid() int64 {
	switch {
	case a.Buckets != nil:
		return a.Buckets.Unpaid()
	case a.open == nil:
		return 0
	}
	return a.open.debt
}

// Unconfirmed is how many returned tokens the store has not confirmed.
func (a *Account) Unconfirmed() int64 {
	switch {
	case a.Buckets != nil:
		return a.Buckets.Unconfirmed()
	case a.open == nil:
		return 0
	}
	return a.open.back
}

// Outstanding reports whether debt or returned tokens await the store's confirmation.
func (a *Account) Outstanding() bool { return a.Unpaid() > 0 || a.Unconfirmed() > 0 }

// Refund records that n spent tokens are held again. The caller must not refund more
// than was spent.
func (a *Account) Refund(n int64) {
	a.balance += n
}

// Spent is how many tokens requests have used over the account's life: the balance less
// the tokens that are held or unconfirmed. held is what the process holds.
func (a *Account) Spent(held int64) int64 { return a.Balance() - held - a.Unconfirmed() }

// InUse is how many tokens charged in the window are spent, if the process holds held. Debt that no reply has confirmed is
// not charged.
func (a *Account) InUse(held int64) int64 {
	in := a.mine
	if a.open != nil {
		in -= a.open.back + a.open.expired
	}
	return max(in-held, 0)
}

// Used is InUse with the debt.
func (a *Account) Used(held int64) int64 { return a.InUse(held - a.Unpaid()) }

// Balance is the sum of the tokens held, spent and unconfirmed.
func (a *Account) Balance() int64 {
	if a.Buckets != nil {
		return a.Buckets.Balance()
	}
	return a.balance
}

// Granted reports whether the store has charged anything in the window.
func (a *Account) Granted() bool { return a.mine > 0 || a.Buckets != nil && a.Balance() > 0 }

// check asserts the invariants.
func (a *Account) check() {
	if o := a.open; invariant.Enabled && o != nil {
		invariant.That(0 <= o.saidDebt && o.saidDebt <= o.debt && 0 <= o.saidBack && o.saidBack <= o.back, "said %d of a debt of %d, and %d of %d given back", o.saidDebt, o.debt, o.saidBack, o.back)
	}
}
