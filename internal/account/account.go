// Package account keeps one process' account of one key: the tokens that the store has
// charged to it, by the store's replies, and the statements that it makes to the store.
//
// A statement carries cumulative figures (granted, returned, debt), so it can be lost,
// repeated, delayed or overtaken, and the store charges nothing twice. The package
// is pure: no lock, clock or I/O; replies come in, figures go out.
//
// Every token is in one place. Builds with -race assert the second and third invariant, and
// test/proof the last one:
//
//	0 <= returned <= granted + debtReturned
//	0 <= paid <= stated <= debt, 0 <= debtReturned <= stated
//	0 <= unstated <= unconfirmed <= returned
//	balance == taken + refunded - returned and confirmed - expired, over the account's life
package account

import (
	"math"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Account is one process' account for one key. The zero Account has no window. It is
// not safe for concurrent use; the owner's lock guards it.
//
// Most of a million keys are used once, so the fields that few keys need are in open.
type Account struct {
	granted  int64 // in the window, cumulative
	returned int64 // in the window, cumulative
	total    int64 // the Total of the last reply; 0 = unknown
	used     int64 // tokens charged to all clients at that reply
	balance  int64 // tokens held, spent or unconfirmed
	open     *open // nil = nothing is outstanding
	ring     *ring // nil = the limit is no rolling one, or no statement was answered
}

// open holds what the store has not confirmed, and what has expired in the window.
type open struct {
	debt         int64 // used without a grant in the window, cumulative
	stated       int64 // the part of debt that a statement has carried
	paid         int64 // the part of debt that the store has confirmed
	debtReturned int64 // the part of stated that requests gave back
	unconfirmed  int64 // the part of returned that the store has not confirmed
	unstated     int64 // the part of unconfirmed that no statement has carried
	expired      int64 // unused, because the window is over
}

// Moved is how many tokens an event has moved, for the limiter's counts. Overdrawn is
// debt that was charged above the limit, or that did not reach the store in time.
type Moved struct{ Taken, Returned, Expired, Overdrawn int64 }

func (a *Account) makeOpen() *open {
	if a.open == nil {
		a.open = new(open)
	}
	return a.open
}

// State writes the account into q, a statement about the window w. The statement also
// repeats the last total of all clients, so that a store that has lost data learns of
// the loss from any one client. Such a store charges q.Used, so tokens that q is the first to
// return are left out. If an earlier statement has returned them, others may have them.
// held is what the process holds.
func (a *Account) State(q *backend.SyncRequest, w backend.Window, held int64) {
	q.Window, q.Granted, q.Returned = w, a.granted, a.returned
	a.ring.state(q, a, held)
	if q.Total = a.total; a.total > 0 {
		q.Used = a.used
	}
	if o := a.open; o != nil {
		q.Used = max(q.Used-o.unstated, 0)
		o.unstated = 0
		o.stated = o.debt
		q.Debt = o.debt
	}
}

// Apply applies the reply r to q, the last statement. The caller must drop a reply about
// a window that the account has left, as if it were lost. held is what the process holds
// in q's window. If r is about another window, held expires unless the store has carried
// it over. Afterwards the balance includes the grant.
func (a *Account) Apply(q backend.SyncRequest, r backend.SyncReply, held int64) (m Moved) {
	var debt, returned, expired int64 // declared and returned after the statement was made
	if a.open != nil {
		debt, returned, expired = a.open.debt-q.Debt, a.returned-q.Returned-q.Refunded, a.open.expired
	}
	known := Same(q, r) // the store has applied the statement
	if known {
		m.Taken, m.Returned = a.charge(q, r), a.confirm(returned)
		m.Overdrawn = min(m.Taken, r.Over)
	}
	if r.Window != q.Window && !q.Limit.Rolls || !known {
		if !known {
			m.Overdrawn = a.Unpaid()
			debt, returned, expired = 0, 0, 0
			m.Expired = held + a.Unconfirmed()
			a.balance -= m.Expired
		}
		a.open = nil
		if debt+returned+expired+r.Debt > 0 {
			a.open = &open{debt: debt + r.Debt, stated: r.Debt, paid: r.Debt, unconfirmed: returned, unstated: returned, expired: expired}
		}
	}
	m.Taken += r.Grant
	a.balance += r.Grant
	a.granted, a.returned = r.Granted, r.Returned+returned
	if q.Limit.Rolls {
		a.answered(q, r)
	}
	a.total, a.used = r.Total, max(q.Limit.Tokens-r.Remaining, 0)
	a.dropIfEmpty()
	a.check()
	return m
}

// charge records that the store has charged the statement's debt, and returns the part
// that no earlier reply has confirmed. Debt that only the store has was declared, and
// counted, during an earlier stay in the window.
func (a *Account) charge(q backend.SyncRequest, r backend.SyncReply) (n int64) {
	if a.open == nil && r.Debt == 0 {
		return 0
	}
	o, debt := a.makeOpen(), q.Debt
	if r.Window == q.Window {
		debt = min(debt, r.Debt)
	}
	n = max(debt-o.paid, 0)
	o.paid += n
	a.balance += n
	more := max(r.Debt-q.Debt, 0)
	o.debt, o.stated, o.paid = o.debt+more, o.stated+more, o.paid+more
	return n
}

// confirm records that the store has confirmed all returned tokens except the last late
// ones. It returns how many of them are newly confirmed.
func (a *Account) confirm(late int64) (n int64) {
	if a.open != nil {
		n = a.open.unconfirmed - late
		a.open.unconfirmed = late
	}
	a.balance -= n
	return n
}

// Leave ends the account of a window. Tokens that are held expire with the window, and so
// do returned tokens that the store has not confirmed. Unconfirmed debt is dropped,
// because it must not be charged to a later window.
func (a *Account) Leave(held int64) (m Moved) {
	m.Expired, m.Overdrawn = held+a.Unconfirmed(), a.Unpaid()
	*a = Account{balance: a.balance - m.Expired}
	return m
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
		m.Overdrawn = a.Unpaid()
		o.stated, o.paid = o.debt, o.debt
	}
	return m
}

// Return takes n unspent tokens out of the account. They count as held until the
// store has confirmed a statement that returns them.
func (a *Account) Return(n int64) {
	a.returned += n
	o := a.makeOpen()
	o.unconfirmed += n
	o.unstated += n
	a.check()
}

// Declare adds n tokens of debt, which were used without a grant.
func (a *Account) Declare(n int64) {
	o := a.makeOpen()
	o.debt = min(o.debt+n, backend.MaxTokens)
}

// CancelDebt cancels up to n tokens of debt that no statement has carried, and returns how
// many. Stated debt must not shrink: the store would take the smaller total for an old one.
func (a *Account) CancelDebt(n int64) int64 {
	if a.open == nil {
		return 0
	}
	n = min(n, a.open.debt-a.open.stated)
	a.open.debt -= n
	return n
}

// ReturnDebt returns to the store up to n tokens of stated debt that were not used in the
// end, whether the store has charged them already or not, and of debt that was carried over
// to this window as a grant. It reports how many. held is what the process holds.
//
// If the limit is a rolling one, they were charged in w.
func (a *Account) ReturnDebt(n, held int64, w backend.Window) int64 {
	o := a.makeOpen()
	debt := min(n, o.stated-o.debtReturned)
	n = debt + min(n-debt, a.InUse(held))
	o.debtReturned += debt
	a.Refund(n)
	if a.ring != nil {
		a.GiveBack(n, w)
	} else {
		a.Return(n)
	}
	return n
}

// Unpaid is the debt that the store has not confirmed.
func (a *Account) Unpaid() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.debt - a.open.paid
}

// Unconfirmed is how many returned tokens the store has not confirmed.
func (a *Account) Unconfirmed() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.unconfirmed
}

// Outstanding reports whether debt or returned tokens await the store's confirmation.
func (a *Account) Outstanding() bool { return a.Unpaid() > 0 || a.Unconfirmed() > 0 }

// Direct records that a direct call has charged n tokens, which are spent.
func (a *Account) Direct(n int64) Moved {
	a.balance += n
	return Moved{Taken: n}
}

// Refund records that n spent tokens are held again. The caller must not refund more
// than was spent.
func (a *Account) Refund(n int64) { a.balance += n }

// Spent is how many tokens requests have used over the account's life: the balance less
// the tokens that are held or unconfirmed. held is what the process holds.
func (a *Account) Spent(held int64) int64 { return a.balance - held - a.Unconfirmed() }

// InUse is how many tokens granted in the window are spent, if the process holds held.
// Returned debt is added, because it counts as returned but was never granted.
func (a *Account) InUse(held int64) int64 {
	in := a.granted
	if a.open != nil {
		in += a.open.debtReturned - a.open.expired
	}
	return max(in-a.returned-held, 0)
}

// Used is how many tokens requests have used in the window, in debt too, if the process
// holds held.
func (a *Account) Used(held int64) int64 {
	in := a.granted
	if a.open != nil {
		in += a.open.debt - a.open.expired
	}
	return max(in-a.returned-held, 0)
}

// Balance is the sum of the tokens held, spent and unconfirmed.
func (a *Account) Balance() int64 { return a.balance }

// Granted reports whether the store has granted anything in the window.
func (a *Account) Granted() bool { return a.granted > 0 }

// dropIfEmpty drops open if all of it is zero.
func (a *Account) dropIfEmpty() {
	if a.open != nil && *a.open == (open{}) {
		a.open = nil
	}
}

// check asserts the invariants.
func (a *Account) check() {
	if !invariant.Enabled {
		return
	}
	// returned <= granted + debtReturned is not asserted, because a faulty store can break it.
	invariant.That(0 <= a.returned && 0 <= a.granted && a.granted <= math.MaxInt64/2, "returned %d of %d granted", a.returned, a.granted)
	if o := a.open; o != nil {
		invariant.That(0 <= o.debtReturned && max(o.debtReturned, o.paid) <= o.stated && o.stated <= o.debt, "returned %d, paid %d, stated %d of a debt of %d", o.debtReturned, o.paid, o.stated, o.debt)
		invariant.That(0 <= o.unstated && o.unstated <= o.unconfirmed && o.unconfirmed <= a.returned, "unstated %d, unconfirmed %d of %d returned", o.unstated, o.unconfirmed, a.returned)
	}
}
