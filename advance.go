package reservoir

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/slots"
)

// This file has what a key does without a caller. After every event it serves the line,
// asks package next what to do, and starts that fetch or sets the timer for the next look.
// The reply to a fetch is an event too.

// fetch is a statement to the store, from its order to the reply.
type fetch struct {
	k       *keyState
	req     backend.SyncRequest
	cause   next.Cause
	reason  string // for the size of the batch
	last    uint64 // sequence number of the last caller that it was sized for
	ordered int64  // time of the order, before its goroutine was scheduled
	shard   *shard
	heard   int   // callers in line that got its error
	slot    *line // whose slot it has; nil if it needs none

	freed atomic.Bool // the slot is free again
	late  *time.Timer // frees the slot if the call does not end in time
}

// asks reports whether the statement asks for a batch; others only state the account.
func asks(why next.Cause) bool {
	return why == next.Waiters || why == next.Probe || why == next.Reset || why == next.Prefetch
}

// advanceLocked ends every event; see keyState.event. It returns the fetch to start. slot is
// that of a key whose turn has come; otherwise nil.
func (k *keyState) advanceLocked(now, wanted int64, slot *line) (f *fetch) {
	if k.plan != counted { // tokens at hand go back, and nobody is served or refused from them
		k.deniedUntil, k.low = 0, false
		if k.lease.Load().Alive(now) && k.heldLocked() > 0 {
			k.account.Return(k.drainLocked())
		}
	}
	k.expireLocked(now)
	k.serveLocked(now, false)
	w, denied := k.lease.Load(), k.deniedUntil
	if denied != 0 && k.l.limits != nil { // now and then callers take the lock, to ask whether the limit was raised
		denied = min(denied, k.use.recheck)
	}
	if k.busy.callers().Active() == 0 { // otherwise a newcomer could take what the line waits for
		k.busy.publish(w, denied)
	}
	facts := k.factsLocked(now, wanted)
	if k.use != nil || k.leaving {
		facts.Surplus, facts.Look = k.lookLocked(now)
	}
	why, at := next.Step(facts)
	for ; why != next.None && !k.mayCallLocked(&slot, facts.Class(why), facts.Open); why, at = next.Step(facts) {
		facts.InLine = k.inLine
	}
	if why != next.None && k.l.calls.Begin() {
		f = k.orderLocked(why, now, wanted, facts.Surplus)
		f.slot = slot
	}
	k.busy.publish(w, denied)
	if at != next.Never && !k.retired {
		k.usageLocked().arm(now, at)
	}
	if k.busy != nil && k.busy.fetch == nil && k.busy.line.Empty() {
		k.busy = nil
	}
	return f
}

// How far a key looks ahead. A Part divides the window.
const (
	refreshPart = 50  // before the end, to read the end once more
	spreadPart  = 200 // over which processes spread their calls at the reset
	spreadMax   = 5 * time.Millisecond
	worthOne    = 0.1 // expected waiting callers above which a refresh is worth a call
)

// factsLocked returns all facts of the key except its surplus. It changes nothing.
func (k *keyState) factsLocked(now, wanted int64) next.Facts {
	w, line := k.lease.Load(), k.busy.callers()
	f := next.Facts{
		Now: now, Retired: k.retired || k.l.closed.Load(), Open: k.shard.Open(), InLine: k.inLine, InFlight: k.busy.inFlight(),
		Active: line.Active(), Passing: line.Passing(), Parked: line.Parked(),
		Denied: k.deniedUntil, Probe: wanted > 0, Alive: w.Alive(now), Unconfirmed: k.leaving && k.lastDue,
	}
	if f.Open {
		f.Ask = max(k.shard.NextProbe(), now) + int64(slack)
	}
	u := k.use
	if u != nil {
		f.Backoff, f.Rejected, f.Spread = u.backoff, u.rejected, u.spread
	}
	if k.fallback.waiting() > 0 {
		f.Charge = 1 // at once
	}
	if w == nil {
		return f
	}
	f.Over = w.LatestEnd()
	// A fetch has just found the old window again, though it is over by our clock, because
	// the store's clock is behind or a millisecond is left. Asking at once would be a loop.
	f.Ending = k.busy != nil && k.busy.unserved > 0 && !f.Alive
	if f.Charge == 0 && f.Alive && k.account.Unpaid() > 0 {
		f.Charge = 1
		if u != nil {
			f.Charge = max(u.charge, 1)
		}
	}
	f.Unconfirmed = f.Unconfirmed || f.Alive && k.account.Unconfirmed() > 0
	f.Low = k.low && w.Remaining() > 0
	if u == nil || k.leaving || k.l.direct {
		return f
	}
	window := k.limit().Window
	f.Regular = k.l.ahead() && u.Regular(window)
	f.Used = u.UsedIn(k.spentLocked(), k.denied.Load())
	// Callers that come between the two bounds of the window's end would wait. If some are
	// likely, read the end once more when it is near.
	at, gap := w.LatestEnd()-int64(window)/refreshPart, time.Duration(w.LatestEnd()-w.Deadline())
	if f.Regular && u.replied < at && u.Within(gap) > worthOne {
		f.Refresh = at
	}
	return f
}

// orderLocked orders a fetch: it writes the statement, which may ask for a batch. From the
// second fetch on it first brings the demand estimate up to date. Most keys are fetched
// for once, and one observation says nothing.
func (k *keyState) orderLocked(why next.Cause, now, wanted, surplus int64) *fetch {
	w := k.lease.Load()
	k.findShardLocked()
	f := &fetch{k: k, cause: why, ordered: now, shard: k.shard, last: k.busy.callers().Last()}
	switch why {
	case next.Return:
		f.returnLocked(w, surplus)
	case next.Probe:
		k.l.count.probes.Add(1)
	case next.Prefetch:
		k.l.count.prefetches.Add(1)
		k.use.prefetched(f.ordered)
	}
	if asks(f.cause) {
		if k.firstFetch == 0 {
			k.firstFetch = max(f.ordered, 1)
		} else {
			k.usageLocked()
			k.use.observe(k, f.ordered)
		}
	}
	f.req = k.statementLocked(f.ordered)
	if asks(f.cause) {
		f.sizeLocked(wanted)
	}
	if k.busy == nil {
		k.busy = new(busy)
	}
	k.busy.fetch = f
	return f
}

// returnLocked takes the surplus out of the stock, unless it has been used meanwhile.
func (f *fetch) returnLocked(w *lease.Lease, surplus int64) {
	k := f.k
	if surplus == 0 {
		return
	}
	if _, ok := w.Spend(surplus); !ok {
		return
	}
	k.account.Return(surplus)
	if !k.leaving && !k.l.direct {
		k.l.count.giveBacks.Add(1)
	}
}

// statementLocked states the account and asks for nothing.
func (k *keyState) statementLocked(now int64) backend.SyncRequest {
	w := k.lease.Load()
	q := backend.SyncRequest{
		Key: k.l.storeKey(k.node.Key), Client: k.l.clientOf(k.node.Tag), Strand: -1,
		Peers: int64(k.clients), Pace: k.use.demand().PerWindow(k.limit()), Leaving: k.leaving, Detached: true,
	}
	q.Limit, q.OpenLength, q.End, q.Next = k.openings(w, now)
	if w != nil {
		k.account.State(&q, w.Window)
	}
	return q
}

// run sends the statement under the fetch timeout. No caller's context ends it: that caller
// may leave, and the others still need the fetch.
func (f *fetch) run() {
	l := f.k.l
	defer l.calls.End()
	_ = f.send(func(c *storeCall) (backend.SyncReply, error) {
		if l.varies() {
			f.boundSlot(slots.Unused)
		}
		if _, err := l.relimit(f.k, &f.req); err != nil { // it may block or panic
			return backend.SyncReply{}, err
		}
		f.boundSlot(slots.Failed)
		ctx, cancel := context.WithTimeout(context.Background(), l.fetchTimeout)
		defer cancel()
		return c.sync(ctx, f.req)
	})
}

// send makes the call and applies its end. It is the only part of a fetch that is not under
// the lock.
func (f *fetch) send(call func(*storeCall) (backend.SyncReply, error)) (err error) {
	c := f.k.l.newCall(f.shard, f.req.Key, StoreCall{Op: "sync", Cause: string(f.cause), Reason: f.reason})
	var reply backend.SyncReply
	guard.Call(func() (err error) {
		reply, err = call(c)
		return err
	}, func(failed error) {
		var then *fetch
		if then, err = f.complete(c, reply, failed); then != nil {
			go then.run()
		}
		f.freeSlot(c, err)
		if f.heard == 0 { // no caller gets its panic
			guard.Unheard(err)
		}
		if c.made {
			c.report()
		}
	})
	return err
}

// complete applies the end of f and serves the line. It returns the next fetch, if one is
// due, and the error of f. A leaving key may be retired.
func (f *fetch) complete(c *storeCall, reply backend.SyncReply, err error) (then *fetch, _ error) {
	k := f.k
	var leaving bool
	then = k.update(func(now int64) int64 {
		k.busy.fetch = nil
		switch {
		case err != nil:
			f.failedLocked(now, err)
		case k.retired:
			k.l.count.move(account.Moved{Taken: reply.Grant, Expired: reply.Grant})
		case reply.Conflict && !k.adopts(reply.State, reply.Clients, c.sent):
			err = ErrConflict
			k.conflictLocked(reply.State, now)
			f.failedLocked(now, err)
		default:
			f.shard.ObserveLead(time.Duration(c.end - f.ordered))
			f.applyLocked(reply, c.sent, now)
			k.serveLocked(now, k.limit().Tokens <= f.req.Limit.Tokens)
			f.stuckLocked(now)
		}
		leaving = k.leaving
		return 0
	})
	if leaving {
		k.l.retire(k, true)
	}
	return then, err
}

// failedLocked answers callers after f has failed. If f has timed out, it also answers the
// callers that came while f was in flight, because they have waited long enough. Otherwise
// they get a fetch of their own.
func (f *fetch) failedLocked(now int64, err error) {
	k, last := f.k, f.last
	k.replyLost = true // even if the call was turned away: an earlier attempt may have arrived
	if now-f.ordered >= int64(k.l.fetchTimeout) {
		last = k.busy.line.Last()
	}
	u, longest := k.usageLocked(), longestPause
	u.failedAt, u.rejected = now, !outage(err)
	if u.rejected { // no circuit spares the store the calls of all other keys
		longest = min(max(longest, k.limit().Window/chargePart), time.Minute)
	}
	u.backOff(now, longest)
	f.heard = k.answerLocked(last, now, err)
}

// stuckLocked counts fetches in a row that served none of their callers, because the grants
// came after the end of their window. The next fetch opens a new window. If that happens
// three times, the network is slower than the window.
func (f *fetch) stuckLocked(now int64) {
	k := f.k
	first := k.busy.line.First()
	if first == nil || first.Seq() > f.last {
		k.busy.unserved = 0
		return
	}
	if k.busy.unserved++; k.busy.unserved < 3 {
		return
	}
	k.busy.unserved = 0
	k.usageLocked().backOff(now, longestPause)
	k.answerLocked(f.last, now, &StoreError{Op: "sync", Class: backend.Unavailable, Err: errTooSlow})
}

// applyLocked applies the reply to f. The reply is one of three: the open window has another
// length, and nothing has changed; figures of a window that the key has left meanwhile; or,
// nearly always, the account as the store has it, and a grant.
func (f *fetch) applyLocked(r backend.SyncReply, sent, now int64) {
	k := f.k
	k.l.count.reasserted.Add(r.Reasserted)
	if f.req.Leaving && !r.Conflict {
		k.replyLost, k.lastDue = false, false
	}
	if k.use != nil {
		k.use.backoff, k.use.pause, k.use.rejected, k.use.replied = 0, 0, false, now
	}
	if r.Conflict {
		k.readLocked(r.State, r.Length, sent, now)
		return
	}
	w := k.lease.Load()
	if w != nil && w.Window != f.req.Window { // left meanwhile: the store will hand the grant over again
		k.replyLost = true
		k.usageLocked().failedAt = now
		return
	}
	k.l.count.recovered.Add(r.Recovered)
	w = f.bookLocked(w, r, sent, now)
	if k.foundLocked(r.Window, now); w == nil { // nothing is charged, and so no window is open
		return
	}
	if k.use != nil && k.use.charge != 0 { // debt settled during the fetch can wait, too
		k.use.charge = k.chargeAt(w, now)
	}
	k.clients = max(k.reported, k.clients)
	denied := f.deniedLocked(r, w)
	w.Apply(r.State, sent, now)
	k.busy.reserved += w.Reserve() + r.Grant
	f.forecastLocked(r, w, denied, now)
}

// deniedLocked reports whether r shows that the store has too little for some caller: it
// has nothing, too little for the first one that f was made for, or no more than when a
// caller was refused. The reading is newer than the denial, unless the limit was raised since.
func (f *fetch) deniedLocked(r backend.SyncReply, w *lease.Lease) bool {
	k := f.k
	none := r.Remaining == 0 || r.Grant < f.req.Least || k.deniedUntil != 0 && r.Remaining <= w.Remaining()
	return none && f.req.Limit.Tokens >= k.limit().Tokens
}

// bookLocked applies the reply to the account, and enters the reply's window. Tokens held
// in the window before have expired, unless the store has carried them over. Debt that the
// store has charged is no burst of demand, because it was used over the whole outage.
func (f *fetch) bookLocked(w *lease.Lease, r backend.SyncReply, sent, now int64) *lease.Lease {
	k := f.k
	var held int64
	spent := k.spentLocked()
	moved := w == nil && r.Window != 0 || w != nil && w.Window != r.Window
	if moved {
		held = k.drainLocked()
		if !r.Carried {
			k.leaveLocked(held)
		}
		if f := k.fallback; r.Carried && w != nil && f != nil && f.home == w.Window {
			f.home = r.Window
		}
	}
	m := k.account.Apply(f.req, r, held)
	k.l.count.move(m)
	k.l.extra.add(k, m.Taken-r.Grant)
	if moved {
		if r.Window != 0 {
			k.openedLocked(k.nextLength(r.State, f.req.Limit.Window, r.Clients, sent))
		}
		w = k.enterLocked(r.Window, spent, now)
		if w != nil && r.Carried {
			k.busy.reserved += held
		}
	}
	if k.fallback != nil {
		k.use.demand().Skip(m.Taken - r.Grant)
	}
	k.reported = uint16(min(r.Clients, math.MaxUint16)) // not before enterLocked, which keeps the last window's count
	return w
}

// forecastLocked derives from a reply what to expect of the rest of the window.
func (f *fetch) forecastLocked(r backend.SyncReply, w *lease.Lease, denied bool, now int64) {
	k, limit := f.k, f.k.limit()
	if r.Lasted > 0 {
		k.usageLocked()
	}
	k.short = demand.Short(limit, r.State)
	k.use.demand().Forecast(limit, r.State, r.Lasted)
	if k.deniedUntil = 0; denied {
		k.denyLocked(w, now)
	} else {
		k.use.demand().Exhausted(0)
	}
	// If the store grants only what is needed, the limit is too small for batches.
	small := r.Learning || f.req.Want > f.req.Need && r.Grant <= f.req.Need
	reorder := int64(-1)
	if s := k.situationLocked(now); s.ahead() && !small && k.deniedUntil == 0 && w.Remaining() > 0 {
		reorder = s.reorder()
	}
	w.SetReorder(reorder)
	// The batch may be smaller than what is used during the next fetch. The hot path
	// reports only a stock that falls to the re-order point, not one that is below it.
	if !asks(f.cause) { // a re-order point that was reached meanwhile is still due
		return
	}
	k.low = reorder > 0 && k.use.demand().Regular(limit.Window) && k.heldLocked()-k.busy.line.Tokens() <= reorder
}

// enterLocked makes window the current one; 0 is no window. The account has left the one
// before, and spent is how many tokens requests had used by then.
func (k *keyState) enterLocked(window backend.Window, spent, now int64) *lease.Lease {
	k.short, k.low, k.deniedUntil, k.clients = false, false, 0, k.reported
	if f := k.fallback; f != nil && f.pending == 0 && f.home != window { // a later window may have the same name
		if f.debtor, f.home, f.declared = 0, 0, 0; now > f.end {
			k.fallback = nil
		}
	}
	if u := k.use; u != nil {
		length := k.limit().Window
		u.Observe(length, now, spent, k.largest.take())
		u.Opened(length, spent, k.denied.Load())
		u.spread = spread(length)
		u.look, u.refetchUntil, u.refetches, u.overstocked = 0, 0, 0, false
	}
	var w *lease.Lease
	if window != 0 {
		w = lease.New(window)
	}
	k.lease.Store(w)
	return w
}

// switchLocked is enterLocked if no reply has said anything of the account.
func (k *keyState) switchLocked(window backend.Window, now int64) *lease.Lease {
	spent := k.spentLocked()
	k.leaveWindowLocked()
	return k.enterLocked(window, spent, now)
}
