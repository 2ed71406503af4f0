package tokens

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
}

// open holds what no reply has confirmed, and what has expired in the window.
type open struct {
	debt, back         int64 // used without a grant, and given back
	saidDebt, saidBack int64 // the parts of them that the last statement has said
	expired            int64 // unused, because the window is over

	carried backend.Window // the window before, if what was charged in it counts in the present one
}

// Moved is how many tokens an event has moved, for the limiter's counts. Overdrawn is
// debt that was charged above the limit, or that did not reach the store in time. Settled were used, and count no more, but
// their requests may still be settled.
type Moved struct{ Taken, Returned, Expired, Overdrawn, Settled int64 }

// Begin begins a life, which must have a higher number than all lives of this limiter before it.
func (a *Account) Begin(life int64) { *a = Account{life: life} }

func (a *Account) makeOpen() *open {
	if a.open == nil {
		a.open = new(open)
	}
	return a.open
}

// State writes the account into q, which is about to be sent, and which is about the window w. Replies to earlier
// statements count no more.
func (a *Account) State(q *backend.Statement, w backend.Window) {
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
	kept := Keeps(q, r)
	if !kept {
		m = a.lose(held)
	} else if o := a.open; o != nil {
		m.Taken, m.Returned = o.saidDebt, o.saidBack
		m.Overdrawn = min(m.Taken, max(r.Used-r.Grant-q.Limit.Tokens, 0))
		o.debt, o.back, o.saidDebt, o.saidBack = o.debt-o.saidDebt, o.back-o.saidBack, 0, 0
		if a.balance += m.Taken - m.Returned; *o == (open{}) {
			a.open = nil
		}
	}
	if kept && r.Window != q.Window {
		a.makeOpen().carried = q.Window
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

// Return takes n unspent tokens out of the account. They count as held until the
// store has confirmed a statement that returns them.
func (a *Account) Return(n int64) {
	a.makeOpen().back += n
	a.check()
}

// Declare adds n tokens of debt, which were used without a grant.
func (a *Account) Declare(n int64) {
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
	if a.open == nil {
		return 0
	}
	return a.open.debt
}

// Unconfirmed is how many returned tokens the store has not confirmed.
func (a *Account) Unconfirmed() int64 {
	if a.open == nil {
		return 0
	}
	return a.open.back
}

// Outstanding reports whether debt or returned tokens await the store's confirmation.
func (a *Account) Outstanding() bool { return a.Unpaid() > 0 || a.Unconfirmed() > 0 }

// Refund records that n spent tokens are held again. The caller must not refund more
// than was spent.
func (a *Account) Refund(n int64) { a.balance += n }

// Spent is how many tokens requests have used over the account's life: the balance less
// the tokens that are held or unconfirmed. held is what the process holds.
func (a *Account) Spent(held int64) int64 { return a.balance - held - a.Unconfirmed() }

// Carried reports whether what was charged in w counts in the present window, which is another one.
func (a *Account) Carried(w backend.Window) bool {
	return a.open != nil && a.open.carried == w && w.End != 0
}

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

// check asserts the invariants.
func (a *Account) check() {
	if o := a.open; invariant.Enabled && o != nil {
		invariant.That(0 <= o.saidDebt && o.saidDebt <= o.debt && 0 <= o.saidBack && o.saidBack <= o.back, "said %d of a debt of %d, and %d of %d given back", o.saidDebt, o.debt, o.saidBack, o.back)
	}
}
