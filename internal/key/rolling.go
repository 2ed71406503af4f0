package key

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has what differs for a rolling limit. Its tokens may be spent up to the end of a
// slice, and each statement carries those that are left over to a later one. So its lease
// slides from window to window, and the account goes on.

// leaseTime is how long tokens may be spent after a statement at least.
func leaseTime(window time.Duration) time.Duration { return window * backend.Ahead / backend.Slices }

// slide makes the lease one of the reply's window, in which the store counts what is unspent from
// now on. After a window's length the estimate of the demand may be trusted.
func (k *Key) slide(from *lease.Lease, r Reply) *lease.Lease {
	if from.Window == r.Window {
		return from
	}
	window := k.Limit().Window
	if at := r.Window.End*1000 - r.Left.Microseconds(); k.use != nil && at-r.Rolls.Account > window.Microseconds() {
		k.use.Opened(window, k.spent(), k.refusals.Load())
	}
	to := from.Next(r.Window)
	k.lease.Store(to) // before the stock moves, so that a caller with the old lease finds the new one
	k.queued().reserved += from.Drain()
	k.inWindow(phaseOpen)
	if k.deniedUntil() != 0 {
		k.inWindow(phaseDenied)
	}
	return to
}

// note records what was spent by now, so that it counts no longer than it must.
func (k *Key) note(now int64) {
	if t, w := k.Limit(), k.lease.Load(); t.Rolls && w.Alive(now) {
		k.account.Rolls.Note(backend.Slice(w.StoreClock(t.Window, now), t.Window), k.held())
	}
}

// noteAt is when to note again what was spent: just before the present slice ends. Tokens that are
// noted later count for a slice longer, and a limit that is used up admits less. While more than half of the
// limit is left, or if slices are very short, that is not worth a timer.
func (k *Key) noteAt(now int64) int64 {
	t, w := k.Limit(), k.lease.Load()
	slice := int64(t.Window) / backend.Slices
	if !t.Rolls || k.use == nil || !w.Alive(now) || k.held() == 0 || w.Remaining() > t.Tokens/2 || slice < shortestNoted {
		return next.Never
	}
	in := slice - w.StoreClock(t.Window, now)*1000%slice - slice/40
	if in <= 0 { // this slice's time has passed, so the next one's
		in += slice
	}
	return now + in
}

// shortestNoted is the length of the shortest slices at whose ends a key notes what was spent.
const shortestNoted = int64(50 * time.Millisecond)

// keeps reports whether what the key holds is not over. In the last moment of a fixed window it
// is; tokens of a rolling limit can be carried over until they count no more.
func (k *Key) keeps(w *lease.Lease, now int64) bool {
	return w.Alive(now) || k.Limit().Rolls && !w.Over(now)
}

// refreshRolling sets the time to carry over what is unspent, before the lease ends. A key that will
// need more in the next lease orders a batch by the same call. Processes that asked in the same
// slice do not all call at once.
func (k *Key) refreshRolling(f *next.Facts, w *lease.Lease) {
	held := k.held()
	if !f.Regular || held == 0 {
		return
	}
	soon := k.soon(f.Now)
	if soon == 0 {
		return
	}
	at := w.Deadline() - int64(k.Limit().Window)/(4*backend.Slices) - 2*int64(k.shard.Lead()) - f.Spread
	if f.Low = f.Low || f.Now >= at && held < soon && w.Remaining() > 0; !f.Low {
		f.Refresh = at
	}
}

// soon is how many tokens are likely to be used here before a lease that begins now ends.
func (k *Key) soon(now int64) int64 {
	return k.use.demand().Pace(*k.Limit(), now, k.spent()) * backend.Ahead / backend.Slices
}

// refundRolling gives n tokens that were charged in window back to the store, with the next
// statement. They may not be spent here again, because the store may count them in an earlier slice. It reports
// whether they still count.
func (k *Key) refundRolling(window backend.Window, n, now int64) (effect, bool) {
	t, w := k.Limit(), k.lease.Load()
	if w == nil {
		return unchanged, false
	}
	over := w.LatestEnd() - (w.Window.End-window.End)*int64(time.Millisecond)
	if now > over-int64(t.Window)*backend.Refundable/backend.Slices {
		return unchanged, false
	}
	back := min(n, k.account.InUse(k.held()))
	paid := k.account.CancelDebt(back)
	k.env.Counts.Extra.Add(k.node.Hash, paid) // spent again
	k.env.Counts.Refunded.Add(back)
	k.account.Refund(back)
	if back -= paid; back > 0 {
		if !k.account.Outstanding() {
			k.usage().charge = k.chargeAt(w, now)
		}
		k.account.Rolls.GiveBack(back, window)
	}
	return changed, true
}
