// Package account is what the store has charged to one process for one key, as far
// as the process knows, and the statements that it makes about it.
//
// A statement says cumulative figures: granted, returned, debt. So it can be lost,
// repeated, delayed or overtaken, and the store charges nothing twice. The package
// is pure: no lock, clock or I/O; replies come in, figures go out.
//
// Every token is in one place. Invariants, asserted in tests and all but the first under -race:
//
//	0 <= returned <= granted + repaid
//	0 <= repaid <= paid <= stated <= debt
//	0 <= unconfirmed <= returned
//	balance == taken + refunded - returned and confirmed - expired, over the account's life
package account

import (
	"math"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Account is one process' account for one key. The zero Account knows no window. It
// is not safe for concurrent use: the owner's lock guards it.
//
// Of a million keys most are used once: what only some need is apart, in open.
type Account struct {
	granted  int64 // in the window, cumulative
	returned int64 // in the window, cumulative
	total    int64 // of the window and all clients, as the store said last; 0 = unknown
	used     int64 // tokens that were charged then
	balance  int64 // tokens that came, less those that went back or expired: held or spent
	open     *open // nil = nothing is outstanding
}

// open is what the store has not confirmed, and what was charged by direct calls.
type open struct {
	debt        int64 // used without a grant in the window, cumulative
	stated      int64 // the part of debt that a statement has told the store of
	paid        int64 // the part of debt that the store has confirmed
	repaid      int64 // the part of paid that requests gave back
	unconfirmed int64 // the part of returned that it has not confirmed
	direct      int64 // charged by direct calls in the window, less what was refunded
	refunded    int64 // of direct calls in the window, cumulative
	heard       int64 // the part of refunded that the store has confirmed
}

// Moved is the tokens that an event has moved, for the limiter's counts. Overdrawn is
// debt that was above the limit, or that nobody was told of in time.
type Moved struct{ Taken, Returned, Expired, Overdrawn int64 }

func (a *Account) more() *open {
	if a.open == nil {
		a.open = new(open)
	}
	return a.open
}

// State writes the account into a statement about the window w. A process that
// knows what all clients had been charged says so too: a store that has lost data
// learns of it from any one client.
func (a *Account) State(q *backend.SyncRequest, w backend.Window) {
	q.Window, q.Granted, q.Returned = w, a.granted, a.returned
	if q.Total = a.total; a.total > 0 {
		q.Used = a.used
	}
	if a.open != nil {
		a.open.stated = a.open.debt
		q.Debt = a.open.debt
	}
}

// Apply applies the reply to the statement q, the last that was made; a reply to one
// about a window that the account has left since is as good as lost. When the reply
// is about another window than q, held is what the process held in q's window: the
// rest of it expires unless the store has carried it over. The grant is part of the
// balance afterwards.
func (a *Account) Apply(q backend.SyncRequest, r backend.SyncReply, held int64) (m Moved) {
	var debt, returned int64 // what was declared and returned after the statement was made
	if a.open != nil {
		debt, returned = a.open.debt-q.Debt, a.returned-q.Returned
	}
	known := r.Window == q.Window || r.Carried // the store has taken in the statement
	if known {
		m.Taken, m.Returned = a.charge(q, r), a.confirm(returned)
		m.Overdrawn = min(m.Taken, r.Over)
	}
	if r.Window != q.Window {
		if !known {
			m.Overdrawn = a.Unpaid()
			debt, returned = 0, 0
			m.Expired = held + a.Unconfirmed()
			a.balance -= m.Expired
		}
		a.open = nil
		if debt+returned+r.Debt > 0 {
			a.open = &open{debt: debt + r.Debt, stated: r.Debt, paid: r.Debt, unconfirmed: returned}
		}
	}
	m.Taken += r.Grant
	a.balance += r.Grant
	a.granted, a.returned = r.Granted, r.Returned+returned
	a.total, a.used = r.Total, max(q.Limit.Tokens-r.Remaining, 0)
	a.tidy()
	a.check()
	return m
}

// charge notes that the store has charged the debt of the statement, of which it may
// have confirmed a part before. It returns the rest. What the store knows of and the
// statement does not say is of an earlier stay in the window, and was counted then.
func (a *Account) charge(q backend.SyncRequest, r backend.SyncReply) (n int64) {
	if a.open == nil && r.Debt == 0 {
		return 0
	}
	o, debt := a.more(), q.Debt
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

// confirm notes that the store has heard of all that was returned, except the last
// late tokens.
func (a *Account) confirm(late int64) (n int64) {
	if a.open != nil {
		n = a.open.unconfirmed - late
		a.open.unconfirmed = late
	}
	a.balance -= n
	return n
}

// Leave ends the account of a window. What was held expires with it, and so does what was
// returned and not confirmed. Debt that the store has not heard of by then is forgotten:
// it must not empty a later window.
func (a *Account) Leave(held int64) (m Moved) {
	m.Expired, m.Overdrawn = held+a.Unconfirmed(), a.Unpaid()
	*a = Account{balance: a.balance - m.Expired}
	return m
}

// HandOver returns the account, for who makes its last statements. What is left here is
// what was spent.
func (a *Account) HandOver() Account {
	out := *a
	*a = Account{balance: a.Spent(0)}
	return out
}

// Expire notes that n tokens cannot be spent any more, the window being over.
func (a *Account) Expire(n int64) Moved {
	a.balance -= n
	return Moved{Expired: n}
}

// Return takes n unspent tokens out of the account. They count as held until the
// store has confirmed a statement that says so.
func (a *Account) Return(n int64) {
	a.returned += n
	a.more().unconfirmed += n
	a.check()
}

// Declare adds tokens that were used without a grant.
func (a *Account) Declare(n int64) {
	o := a.more()
	o.debt = min(o.debt+n, backend.MaxTokens)
}

// Forgive takes back up to n tokens of debt that no statement has told the store of:
// of the others it would take a smaller total for an old one. It returns how many.
func (a *Account) Forgive(n int64) int64 {
	if a.open == nil {
		return 0
	}
	n = min(n, a.open.debt-a.open.stated)
	a.open.debt -= n
	return n
}

// Repay returns up to n tokens of debt that the store has charged, and that were not used in
// the end. It says how many.
func (a *Account) Repay(n int64) int64 {
	if a.open == nil {
		return 0
	}
	if n = min(n, a.open.paid-a.open.repaid); n > 0 {
		a.open.repaid += n
		a.Refund(n)
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

// Unconfirmed is the part of what was returned that the store has not confirmed.
func (a *Account) Unconfirmed() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.unconfirmed
}

// Outstanding reports whether the store has not confirmed all figures.
func (a *Account) Outstanding() bool { return a.Unpaid() > 0 || a.Unconfirmed() > 0 }

// Direct notes that a direct call has charged n tokens, which are spent.
func (a *Account) Direct(n int64) Moved {
	a.more().direct += n
	a.balance += n
	return Moved{Taken: n}
}

// RefundDirect takes up to n tokens of direct calls back and returns the total that
// the store is to be told, 0 if nothing is left to refund.
func (a *Account) RefundDirect(n int64) (back, total int64) {
	if a.open == nil {
		return 0, 0
	}
	if back = min(n, a.open.direct); back == 0 {
		return 0, 0
	}
	a.open.direct -= back
	a.open.refunded += back
	return back, a.open.refunded
}

// ConfirmDirect notes that the store has heard of such a total and returns how many of
// these tokens it had not heard of before.
func (a *Account) ConfirmDirect(total int64) int64 {
	if a.open == nil {
		return 0
	}
	n := max(min(total, a.open.refunded)-a.open.heard, 0)
	a.open.heard += n
	return n
}

// Refund notes that n spent tokens are held again. It is the caller who knows that
// no more is refunded than was spent.
func (a *Account) Refund(n int64) { a.balance += n }

// Spent is how many tokens requests have used, over the account's life: what came
// and is nowhere else. held is what the process holds.
func (a *Account) Spent(held int64) int64 { return a.balance - held - a.Unconfirmed() }

// InUse is the part of what was granted in the window that is spent, given what is
// held. Repaid tokens are among those returned, and were not granted.
func (a *Account) InUse(held int64) int64 {
	in := a.granted
	if a.open != nil {
		in += a.open.repaid
	}
	return max(in-a.returned-held, 0)
}

// Balance is what the account has in all: held, spent or not confirmed.
func (a *Account) Balance() int64 { return a.balance }

// Granted reports whether the store has granted anything in the window.
func (a *Account) Granted() bool { return a.granted > 0 }

// tidy drops what nothing is left of.
func (a *Account) tidy() {
	if a.open != nil && *a.open == (open{}) {
		a.open = nil
	}
}

// check asserts the invariants.
func (a *Account) check() {
	if !invariant.Enabled {
		return
	}
	// That returned <= granted + repaid holds too, with a store that grants what it says.
	invariant.That(0 <= a.returned && 0 <= a.granted && a.granted <= math.MaxInt64/2, "returned %d of %d granted", a.returned, a.granted)
	if o := a.open; o != nil {
		invariant.That(0 <= o.repaid && o.repaid <= o.paid && o.paid <= o.stated && o.stated <= o.debt, "repaid %d, paid %d, stated %d of a debt of %d", o.repaid, o.paid, o.stated, o.debt)
		invariant.That(0 <= o.unconfirmed && o.unconfirmed <= a.returned, "unconfirmed %d of %d returned", o.unconfirmed, a.returned)
		invariant.That(0 <= o.direct && 0 <= o.heard && o.heard <= o.refunded, "direct %d, refunded %d, %d heard of", o.direct, o.refunded, o.heard)
	}
}
