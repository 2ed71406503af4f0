package account

import (
	"math"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// Rolling is one process' account of a rolling limit, by cumulative figures: granted, returned,
// debt. The zero Rolling has no window. It is not safe for concurrent use; the owner's lock guards it.
type Rolling struct {
	granted  int64       // in the window, cumulative
	returned int64       // in the window, cumulative
	total    int64       // the Total of the last reply; 0 = unknown
	used     int64       // tokens charged to all clients at that reply
	balance  int64       // tokens held, spent or unconfirmed
	open     *openTotals // nil = nothing is outstanding
	ring     *ring       // nil = no statement was answered
}

// openTotals holds what the store has not confirmed, and what has expired in the window.
type openTotals struct {
	debt        int64 // used without a grant in the window, cumulative
	stated      int64 // the part of debt that a statement has carried
	paid        int64 // the part of debt that the store has confirmed
	unconfirmed int64 // the part of returned that the store has not confirmed
	unstated    int64 // the part of unconfirmed that no statement has carried
	expired     int64 // unused, because the window is over
}

func (a *Rolling) makeOpen() *openTotals {
	if a.open == nil {
		a.open = new(openTotals)
	}
	return a.open
}

// State writes the account into q, a statement about the window w. The statement also
// repeats the last total of all clients, so that a store that has lost data learns of
// the loss from any one client. Such a store charges q.Used, so tokens that q is the first to
// return are left out. If an earlier statement has returned them, others may have them.
// held is what the process holds.
func (a *Rolling) State(q *backend.SyncRequest, w backend.Window, held int64) {
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
func (a *Rolling) Apply(q backend.SyncRequest, r backend.SyncReply, held int64) (m Moved) {
	var returned int64 // after the statement was made
	if a.open != nil {
		returned = a.returned - q.Returned - q.Refunded
	}
	known := r.Account == q.Account // the store has applied the statement
	if known {
		m.Taken, m.Returned = a.charge(q, r), a.confirm(returned)
		m.Overdrawn = min(m.Taken, r.Over)
	}
	if !known {
		m.Overdrawn, m.Expired = a.Unpaid(), held+a.Unconfirmed()
		a.balance -= m.Expired
		a.open, returned = nil, 0
		if r.Debt > 0 {
			a.open = &openTotals{debt: r.Debt, stated: r.Debt, paid: r.Debt}
		}
	}
	m.Taken += r.Grant
	a.balance += r.Grant
	a.granted, a.returned = r.Granted, r.Returned+returned
	a.answered(q, r)
	a.total, a.used = r.Total, max(q.Limit.Tokens-r.Remaining, 0)
	a.dropIfEmpty()
	a.check()
	return m
}

// charge records that the store has charged the statement's debt, and returns the part
// that no earlier reply has confirmed. Debt that only the store has was declared, and
// counted, during an earlier stay in the window.
func (a *Rolling) charge(q backend.SyncRequest, r backend.SyncReply) (n int64) {
	if a.open == nil && r.Debt == 0 {
		return 0
	}
	o, debt := a.makeOpen(), q.Debt
	debt = min(debt, r.Debt)
	n = max(debt-o.paid, 0)
	o.paid += n
	a.balance += n
	more := max(r.Debt-q.Debt, 0)
	o.debt, o.stated, o.paid = o.debt+more, o.stated+more, o.paid+more
	return n
}

// confirm records that the store has confirmed all returned tokens except the last late
// ones. It returns how many of them are newly confirmed.
func (a *Rolling) confirm(late int64) (n int64) {
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
func (a *Rolling) Leave(held int64) (m Moved) {
	m.Expired, m.Overdrawn = held+a.Unconfirmed(), a.Unpaid()
	*a = Rolling{balance: a.balance - m.Expired}
	return m
}

// Expire records that n tokens, which are held no more, have expired with their window.
func (a *Rolling) Expire(n int64) Moved {
	if a.balance -= n; n > 0 {
		a.makeOpen().expired += n
	}
	return Moved{Expired: n}
}

// ExpireDebt records that debt has reached no store in time, because its window is over.
func (a *Rolling) ExpireDebt() (m Moved) {
	if o := a.open; o != nil {
		m.Overdrawn = a.Unpaid()
		o.stated, o.paid = o.debt, o.debt
	}
	return m
}

// Return takes n unspent tokens out of the account. They count as held until the
// store has confirmed a statement that returns them.
func (a *Rolling) Return(n int64) {
	a.returned += n
	o := a.makeOpen()
	o.unconfirmed += n
	o.unstated += n
	a.check()
}

// Declare adds n tokens of debt, which were used without a grant.
func (a *Rolling) Declare(n int64) {
	o := a.makeOpen()
	o.debt = min(o.debt+n, backend.MaxTokens)
}

// CancelDebt cancels up to n tokens of debt that no statement has carried, and returns how
// many. Stated debt must not shrink: the store would take the smaller total for an old one.
func (a *Rolling) CancelDebt(n int64) int64 {
	if a.open == nil {
		return 0
	}
	n = min(n, a.open.debt-a.open.stated)
	a.open.debt -= n
	return n
}

// Unpaid is the debt that the store has not confirmed.
func (a *Rolling) Unpaid() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.debt - a.open.paid
}

// Unconfirmed is how many returned tokens the store has not confirmed.
func (a *Rolling) Unconfirmed() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.unconfirmed
}

// Outstanding reports whether debt or returned tokens await the store's confirmation.
func (a *Rolling) Outstanding() bool { return a.Unpaid() > 0 || a.Unconfirmed() > 0 }

// Direct records that a direct call has charged n tokens, which are spent.
func (a *Rolling) Direct(n int64) Moved {
	a.balance += n
	return Moved{Taken: n}
}

// Refund records that n spent tokens are held again. The caller must not refund more
// than was spent.
func (a *Rolling) Refund(n int64) { a.balance += n }

// Spent is how many tokens requests have used over the account's life: the balance less
// the tokens that are held or unconfirmed. held is what the process holds.
func (a *Rolling) Spent(held int64) int64 { return a.balance - held - a.Unconfirmed() }

// InUse is how many tokens granted in the window are spent, if the process holds held.
func (a *Rolling) InUse(held int64) int64 {
	in := a.granted
	if a.open != nil {
		in -= a.open.expired
	}
	return max(in-a.returned-held, 0)
}

// Used is how many tokens requests have used in the window, in debt too, if the process
// holds held.
func (a *Rolling) Used(held int64) int64 {
	in := a.granted
	if a.open != nil {
		in += a.open.debt - a.open.expired
	}
	return max(in-a.returned-held, 0)
}

// Balance is the sum of the tokens held, spent and unconfirmed.
func (a *Rolling) Balance() int64 { return a.balance }

// Granted reports whether the store has granted anything in the window.
func (a *Rolling) Granted() bool { return a.granted > 0 }

// dropIfEmpty drops open if all of it is zero.
func (a *Rolling) dropIfEmpty() {
	if a.open != nil && *a.open == (openTotals{}) {
		a.open = nil
	}
}

// check asserts the invariants.
func (a *Rolling) check() {
	if !invariant.Enabled {
		return
	}
	// returned <= granted is not asserted, because a faulty store can break it.
	invariant.That(0 <= a.returned && 0 <= a.granted && a.granted <= math.MaxInt64/2, "returned %d of %d granted", a.returned, a.granted)
	if o := a.open; o != nil {
		invariant.That(0 <= o.paid && o.paid <= o.stated && o.stated <= o.debt, "paid %d, stated %d of a debt of %d", o.paid, o.stated, o.debt)
		invariant.That(0 <= o.unstated && o.unstated <= o.unconfirmed && o.unconfirmed <= a.returned, "unstated %d, unconfirmed %d of %d returned", o.unstated, o.unconfirmed, a.returned)
	}
}

// ring is what of the account is about slices. It goes on over many windows. A nil
// ring is that of an account that the store has not named yet.
type ring struct {
	name     int64           // SyncReply.Account
	spent    []backend.Spent // the sums that the next statement carries
	refunded int64           // the part of returned that requests had spent, cumulative
	since    backend.Window  // the earliest in which a part of it was charged that is not confirmed
	late     backend.Window  // the same of what no statement has carried
}

// everSpent is how many of the tokens granted were spent, if the process holds held.
func (a *Rolling) everSpent(held int64) int64 {
	return max(a.granted-a.returned+a.ring.refunded-held, 0)
}

// Note records that what is spent by now was spent by the end of that slice. It keeps the sums of the
// last slices.
func (a *Rolling) Note(slice, held int64) {
	r := a.ring
	if r == nil {
		return
	}
	sum := backend.Spent{Slice: slice, Tokens: a.everSpent(held)}
	switch last := len(r.spent) - 1; {
	case last < 0 && sum.Tokens == 0:
	case last >= 0 && r.spent[last].Slice >= slice:
		r.spent[last].Tokens = sum.Tokens
	case last >= 0 && r.spent[last].Tokens == sum.Tokens:
	case len(r.spent) == backend.MaxSpent:
		r.spent = append(r.spent[:0], r.spent[1:]...) // the oldest counts with the next
		fallthrough
	default:
		r.spent = append(r.spent, sum)
	}
}

// state writes what statements about a rolling limit have besides. Refunds are apart from what is
// returned unspent.
func (r *ring) state(q *backend.SyncRequest, a *Rolling, held int64) {
	if r == nil {
		return
	}
	a.Note(backend.MaxTokens, held)
	q.Account, q.Spent, r.spent = r.name, r.spent, nil
	q.Returned -= r.refunded
	q.Refunded, q.RefundedIn, r.late = r.refunded, r.since, backend.Window{}
}

// answered applies a reply about a rolling limit.
func (a *Rolling) answered(q backend.SyncRequest, r backend.SyncReply) {
	switch {
	case r.Account == 0:
		a.ring = nil
	case a.ring == nil || a.ring.name != r.Account:
		a.ring = &ring{name: r.Account}
	default:
		a.ring.since = a.ring.late
		a.returned += q.Refunded
	}
}

// GiveBack returns to the store n tokens that requests had spent, and that were charged in w. They
// may not be spent here again, because the store may count them where they were spent. It keeps
// them apart from tokens that were not spent.
func (a *Rolling) GiveBack(n int64, w backend.Window) {
	a.Return(n)
	r := a.ring
	r.refunded += n
	if r.since.End == 0 || w.End < r.since.End {
		r.since = w
	}
	if r.late.End == 0 || w.End < r.late.End {
		r.late = w
	}
}

// Named reports whether the store keeps an account of a rolling limit under a name.
func (a *Rolling) Named() bool { return a.ring != nil }

// Refunding reports whether all returned tokens that the store has not confirmed are refunds of a
// rolling limit, which can wait for another statement.
func (a *Rolling) Refunding() bool { return a.ring != nil && a.ring.since.End != 0 }
