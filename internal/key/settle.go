package key

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has what becomes of a charge when its request has used fewer tokens, or more.

// Charge is what a request was charged.
type Charge struct {
	Tokens   int64
	Window   backend.Window
	Bucket   int64 // of a rolling limit
	Fallback bool  // admitted by the failure policy
}

func chargeOf(a Answer) Charge {
	return Charge{Tokens: a.Charged, Window: a.Of, Bucket: a.Bucket, Fallback: a.Source == Fallback}
}

// Refund puts n tokens of c back into the stock if they came from there, after they have
// paid for debt. No more goes back than requests have used, so that a Result that is refunded
// again and again creates no tokens. Tokens of a window that the account has left have
// expired.
func (k *Key) Refund(c Charge, n int64) {
	ok := false
	k.event(func(now int64) (did effect) {
		w := k.lease.Load()
		switch {
		case c.Fallback:
			k.fallback.takeBack(c, n)
			return unchanged
		case k.phase == phaseRetired:
			return unchanged
		case k.Limit().Rolls:
			did, ok = k.refundRolling(c, n, now)
			return did
		case w == nil || w.Window != c.Window && !k.carried(c.Window):
			return unchanged
		}
		ok = true
		return k.refund(w, n)
	})
	if !ok {
		k.env.Counts.RefundLeft(n)
	}
}

// RefundLeft takes back n tokens that no account holds any more: they have expired.
func (c *Counts) RefundLeft(n int64) {
	n = TakeUpTo(&c.Left, n)
	c.Refunded.Add(n)
	c.Expired.Add(n)
}

// refund is Refund in the open window.
func (k *Key) refund(w *lease.Lease, n int64) effect {
	back := min(n, k.account.InUse(k.held()))
	paid := k.account.CancelDebt(back)
	k.account.Refund(back)
	k.env.Counts.Extra.Add(k.node.Hash, paid) // spent again
	k.env.Counts.Refunded.Add(back)
	decide := k.queue != nil || k.deniedUntil() != 0 || k.parted
	k.putBack(w, back-paid)
	if k.use != nil {
		k.use.recall.refunded = true
	}
	return effect{changed: decide || k.free() > k.use.recall.known}
}

// chargePart divides the window. Settled debt may wait that long for a statement.
const chargePart = 20

// Overrun charges n tokens that a request has used above its charge: from stock, and what the
// stock lacks as debt. They are charged to the window that this process knows, whatever the
// request was charged in; if it knows none, they are overdrawn. It reports whether the key was
// forgotten meanwhile, so that nothing was done.
func (k *Key) Overrun(n int64) (forgotten bool) {
	if w := k.lease.Load(); w.Alive(k.env.Clock.Now()) {
		if left, ok := w.Spend(n); ok {
			k.env.Counts.Extra.Add(k.node.Hash, n)
			k.OrderIfLow(w, left)
			return false
		}
	}
	k.event(func(now int64) effect {
		if forgotten = k.phase == phaseRetired; forgotten {
			return unchanged
		}
		w := k.lease.Load()
		if !k.keeps(w, now) { // no statement would be in time
			k.env.Counts.Overdrawn.Add(n)
			return unchanged
		}
		paid, left := w.SpendUpTo(n)
		k.env.Counts.Extra.Add(k.node.Hash, paid)
		w.ClaimReorder(left)
		if paid < n {
			k.declare(n-paid, w, now)
		}
		return changed
	})
	return forgotten
}

// declare adds n tokens to the debt of w, and sets the time to state it.
func (k *Key) declare(n int64, w *lease.Lease, now int64) {
	if u := k.usage(); k.account.Unpaid() == 0 && !(k.Limit().Rolls && u.charge != 0) {
		u.charge = k.chargeAt(w, now)
	}
	k.account.Declare(n, now)
}

// chargeAt is when to state debt that is settled now. A bucket that is over ends no debt.
func (k *Key) chargeAt(w *lease.Lease, now int64) int64 {
	at := now + int64(k.Limit().Window)/chargePart
	if !k.Limit().Rolls {
		at = min(at, w.Deadline()-2*int64(k.shard.Lead()))
	}
	return at
}
