package key

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/surplus"
)

// This file has what others do to a key: messages, and how a key ends, which is always the same: it gives back what it holds, says that
// it leaves, and is forgotten when the store has confirmed that.

// Hear is the event of a message about the key.
func (k *Key) Hear(m backend.Message) {
	k.event(func(now int64) effect {
		w, u, rolls := k.Lease.Load(), k.use, k.Limit.Load().Rolls
		current := w != nil && (w.Window == m.Window || rolls)
		switch {
		case k.phase == retired || m.Counter != k.Limit.Load().Counter():
		case m.Kind == backend.Voided: // a Reset has voided the window, and with it all of its generation and before
			// A copy changes nothing. But the first one may have been false, and this one true, so one copy counts while a reply is on its way.
			if k.inUse(); w != nil && w.Window.Gen > m.Window.Gen || u.voided == m.Window && (u.fetch == nil || u.copied) {
				return unchanged
			}
			u.copied = u.voided == m.Window
			if u.voided = m.Window; u.fetch != nil { // its reply may still name it; and a hold that it says may be over, so the next one is said
				u.fetch.void, u.fetch.holds = m.Window.Gen+1, min(u.fetch.holds, 1)
			}
			u.denial.Reset() // also a hold
			u.hold.forget(nil)
			return k.void(now)
		case m.Kind == backend.Held: // it may be forged, so it only makes the key ask: nothing is spent before a reply
			if k.inUse(); u.denial.State == denial.Held && (u.hold.unsaid != 0 || m.Window.End <= u.hold.ends) {
				u.hold.told = max(u.hold.told, m.Window.End) // the next reply says it, if one comes before this hold is over
				return unchanged
			}
			k.doubt(now)
			if u.denial.State == denial.Held { // what is known stands, or a policy could admit while the store is away
				u.denial.Look = now
			} else {
				u.denial.Reset()
			}
			return changed
		case m.Kind == backend.Recall && (current || u.fetch != nil): // the reply may name that window
			k.inUse().surplus.Recall(m.Window, rolls)
			return changed
		case !current:
		case m.Kind == backend.Exhausted && k.Limit.Load().Tokens <= m.Limit && u.fetch == nil:
			w.Remaining.Store(0)
			if k.deny(now, exhaustedTimes); k.idle() > 0 {
				u.surplus.Recall(m.Window, rolls)
			}
			return changed
		case m.Kind == backend.Again:
			// The message may be false, so callers are not served: the next one asks the store.
			u.denial.Open()
			u.quiet = 0
			return changed
		}
		return unchanged
	})
}

// Heard is the event that messages about the key have ceased or begun to come. What was called
// in vain goes back, unless there is enough for all.
func (k *Key) Heard() {
	k.event(func(now int64) effect {
		u := k.use
		if u.denial.State == denial.Held { // a Reset may have ended it
			u.denial.Look = now
			return changed
		}
		if k.phase == retired || u.demand == nil || !u.surplus.Hear(k.env.Caller.Hears(placement.Named(k.env.Name, k.node.Key)), k.short, now, k.Limit.Load().Window) {
			return unchanged
		}
		u.denial.Open() // the same elsewhere may have brought some back
		return changed
	})
}

// doubt keeps what is at hand, and what a fetch in flight brings, from being spent until a later statement has its reply: the key may be held.
func (k *machine) doubt(now int64) {
	if f := k.use.fetch; f != nil { // its reply may not know of it
		f.overtaken = true
	}
	if w := k.Lease.Load(); w != nil {
		w.Doubt(now)
	}
}

// void ends what is known of the window, which a Reset has voided: nothing of it is spent, refused or
// waited for any more, and the next caller asks the store. The account stays until a reply names another
// window, so that a false message does no harm. A hold stays: it may be younger.
func (k *machine) void(now int64) effect {
	u := k.inUse()
	// The account keeps the tokens, so a reply that knows of no Reset makes them good again.
	if w := k.Lease.Load(); w != nil {
		w.Doubt(now)
	}
	if u.surplus = (surplus.Surplus{}); u.denial.State != denial.Held {
		u.denial.Reset()
	}
	return changed
}

// comeBack is the event that a request has found the key among those that leave, under a limit of the same counter, and has put it
// into the table again. Until then requests that find it there start over.
func (k *Key) comeBack(limit backend.Limit) {
	k.event(func(int64) effect {
		if k.phase == retired {
			return unchanged
		}
		k.parted, k.phase = false, active
		return changed
	})
	k.Relimit(limit, Told, nil)
}

// leave lets the key be forgotten, after a last statement if one is needed.
func (k *machine) leave(now int64) {
	k.Lease.Load().CancelOrder()
	if k.phase = left; k.needsLast(now) {
		k.phase = leaving
	}
}

// needsLast reports whether the key must make a last statement, which says that it
// leaves: because of tokens that it holds or may have been granted, or because others
// share the key and space their probes by the number of clients, or because of a hold of which the store has not heard.
func (k *machine) needsLast(now int64) bool {
	w, closed := k.Lease.Load(), k.env.Closed.Load()
	// Nobody else knows of the hold, and it must outlast the key's memory.
	if k.use.hold.unsaid != 0 {
		return true
	}
	if now >= k.Until() && (!w.Doubted() || w.Over(now)) { // the store may have opened a window since, and granted
		// A grant that nobody read counts until its window is over. The failed call may have arrived as late as connectTime, and two
		// windows are longer than the longest day or month by the calendar, and than a token of a rolling limit counts.
		failed := k.use.failedAt
		recently := failed != 0 && now-failed < int64(2*k.Limit.Load().Window+connectTime)
		return k.replyLost && (closed || recently)
	}
	// Others probe the more rarely the more clients the store counts, so it must hear that there is one less.
	return !k.Empty() || k.replyLost || k.clients > 1 || closed && k.Account.Mine > 0
}

// lenient reports whether a failure policy could admit what a hold forbids, if nobody here knew of it any more.
func (k *machine) lenient() bool {
	return k.env.Fallback.Mode != FailClosed && !k.parted && !k.env.Closed.Load()
}

// hasLeft reports whether the key, which is idle, is needed no more.
func (k *machine) hasLeft(now int64) bool {
	w := k.Lease.Load()
	holds := (now < k.Until() || w.Doubted() && !w.Over(now)) && !k.Empty()
	busy := k.use.fetch != nil || k.use.line.Len > 0
	return k.phase >= leaving && !busy && !holds && !(k.phase == leaving && k.needsLast(now))
}

// Retire is the event that the key ends; with ifLeft, only if it has left. Tokens that it still holds have
// expired, and its counts become the limiter's. Counts.Read makes that one step for a reader
// of all counts: a count that seems to go back is taken for a restart by a metrics system.
func (k *Key) Retire(ifLeft bool) {
	e := k.env
	e.Counts.Read(func() {
		k.event(func(now int64) effect {
			if k.phase == retired || ifLeft && (!k.hasLeft(now) || k.use.share.neededBy(e.Fallback, now)) {
				return unchanged
			}
			if k.use.timer != nil {
				k.use.timer.Stop()
			}
			// Counts of a key in memory are added to the limiter's by whoever reads all; from now on they must be among these.
			e.Counts.Move(k.Drop())
			e.Counts.Spent.Add(k.Account.Balance)
			e.Counts.Denied.Add(k.Refusals.Load())
			k.use.hold.tell(ErrClosed)
			k.phase = retired
			k.shard.keys.Add(-1)
			if k.parted {
				e.leavers.remove(k)
			}
			e.Table.Delete(k.node)
			return changed
		})
	})
}

// Visit looks at a key once per idle time. A key that was not used since the last visit
// leaves: it gives back what it holds, and is forgotten when the store has confirmed that
// or the window has ended. A fingerprint of the key's counts shows whether it was used, so
// that the hot path need not record the time. It is not 0, so that a key is not taken for idle at its first visit.
func (k *Key) Visit() {
	var leaves bool
	k.event(func(now int64) effect {
		u, was := k.use, k.node.Tag
		mark := uint64(k.Refusals.Load())*0x9e3779b97f4a7c15 + uint64(k.Spent())*0xbf58476d1ce4e5b9
		if w := k.Lease.Load(); w != nil {
			mark += uint64(w.Window.End) * 0x94d049bb133111eb
		}
		if u.share != nil {
			mark += uint64(u.share.admitted)
		}
		k.node.Tag = uint32(mark^mark>>32) | 1
		if k.node.Tag != was || k.phase == retired || u.fetch != nil || u.line.Len > 0 || u.share.neededBy(k.env.Fallback, now) || u.hold.unsaid != 0 || u.denial.State == denial.Held && k.lenient() {
			return unchanged
		}
		// Not retired at once: the store must hear first what goes back, or it would stay charged until the window ends.
		// The last statement is due now. Its reply retires the key, unless a caller comes first.
		k.leave(now)
		leaves = true
		return changed
	})
	if leaves {
		k.Retire(true)
	}
}

// LastFetch is the event that Close hands back what the key holds. It returns the statement that does so and says that the key leaves, for the
// caller to send, or nil if there is nothing to state. first says that none was made yet.
func (k *Key) LastFetch(first bool) (f *Fetch) {
	k.event(func(now int64) effect {
		if k.phase == retired || k.use.fetch != nil { // in flight only if the time for Close ended before it
			return unchanged
		}
		// A request may have come between two statements of Close, and a handle may still spend.
		if first || k.phase < leaving {
			k.leave(now)
		}
		if !k.hasLeft(now) {
			k.Return(-1) // at once, because handles still spend
			f = k.order(next.Return, now, k.Lease.Load().Alive(now), 0, 0)
		}
		return unchanged
	})
	return f
}

// CloseLine answers the callers in line when the limiter is closed.
func (k *Key) CloseLine() {
	k.event(func(int64) effect {
		u := k.use
		u.line.Since(0, func(c *waiter) { u.line.Notify(c, Verdict{Err: ErrClosed}) })
		return changed
	})
}

// Figures are what a key has done since it came into memory.
type Figures struct {
	Spent     int64          // tokens that requests used
	Denied    int64          // requests refused
	Held      int64          // tokens to be spent
	Returning int64          // tokens on their way back to the store
	Debt      int64          // tokens settled that the store must still charge
	Window    backend.Window // whose tokens may be spent now, or none
	Parted    bool           // the key has left this counter
	Hold      time.Duration  // how long the key is held
	Exhausted bool           // the store has too little for some requests, which are refused from memory
}

// Figures returns the key's figures; ok is false if it was forgotten. The spent tokens are
// derived, not counted, because the hot path writes nothing but the stock.
func (k *Key) Figures() (f Figures, ok bool) {
	k.event(func(now int64) effect {
		f = Figures{
			Spent: k.Spent(), Denied: k.Refusals.Load(), Held: k.Held(),
			Parted: k.parted, Exhausted: k.use.denial.State == denial.Denied,
		}
		if k.use.denial.State == denial.Held {
			f.Hold = time.Duration(k.use.denial.Until - now)
		}
		f.Debt, f.Returning = k.Account.Unconfirmed()
		if w := k.Lease.Load(); w.Alive(now) {
			f.Window = w.Window
		}
		ok = k.phase != retired
		return unchanged
	})
	return f, ok
}
