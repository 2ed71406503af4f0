package key

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// This file has what happens to a request that the hot path cannot answer.

// queue has the callers in line and the fetch in flight. A nil *queue has neither.
type queue struct {
	line     waiters.Line[outcome]
	reserved int64  // tokens of the lease, for the line
	fetch    *Fetch // there is one at a time; nil = none
	unserved int    // fetches in a row that served nobody
	joined   int64  // callers who have come since the last order

	asked      uint64 // the failure policy has no answer for the callers in line up to this one, but Rejected
	policyLeft int64  // tokens that it still admitted when they were asked about
}

// outcome is the verdict on a caller in line.
type outcome struct {
	Verdict
	lease *lease.Lease // the lease that paid, if allowed
}

type waiter = waiters.Waiter[outcome]

// nobody is the empty line of a nil *queue. It is never written.
var nobody waiters.Line[outcome]

func (q *queue) callers() *waiters.Line[outcome] {
	if q == nil {
		return &nobody
	}
	return &q.line
}

func (q *queue) held() int64 {
	if q == nil {
		return 0
	}
	return q.reserved
}

// unreserve takes out all reserved tokens.
func (q *queue) unreserve() int64 {
	n := q.held()
	if n > 0 {
		q.reserved = 0
	}
	return n
}

func (q *queue) inFlight() bool { return q != nil && q.fetch != nil }

// queued returns the key's queue, making one if there is none.
func (k *Key) queued() *queue {
	if k.queue == nil {
		k.queue = new(queue)
	}
	return k.queue
}

// Acquire decides on a request for n tokens, and waits for a fetch if one is needed. A
// request that stays waits for tokens of windows to come.
func (k *Key) Acquire(ctx context.Context, n int64, stay bool) (v Verdict) {
	w, v := k.decide(ctx, n, stay, !k.env.ByKey)
	if v.Next == askLimit {
		if _, v.Err = k.AskLimit(nil); v.Err != nil {
			return Verdict{Err: v.Err}
		}
		w, v = k.decide(ctx, n, stay, true)
	}
	if v.Next == wait {
		v = k.await(ctx, w)
	}
	return v
}

// Expect orders a fetch for a request for n tokens that may come soon, unless memory will
// answer it.
func (k *Key) Expect(n int64) {
	k.event(func(now int64) effect {
		k.findShard()
		t, w := k.Limit(), k.lease.Load()
		switch {
		case k.phase == phaseRetired || k.parted || k.queue.inFlight() || n > t.Tokens || k.shard.Open():
			return unchanged
		case w.Alive(now) && (w.Stock() >= n || k.deniedUntil() != 0):
			return unchanged
		}
		k.comeBack()
		return effect{changed: true, probe: n, expects: true}
	})
}

// decide answers the caller from memory or by the failure policy, or puts it in line as w.
// Unless the limit is known to be the present one, decide may want it to be asked for first.
func (k *Key) decide(ctx context.Context, n int64, stay, present bool) (w *waiter, v Verdict) {
	k.event(func(now int64) (did effect) {
		t := k.Limit()
		stay := stay && !t.Shadow // nobody waits for a limit in shadow
		switch {
		case k.env.Closed.Load():
			v.Err = ErrClosed
			return unchanged
		case k.phase == phaseRetired || k.parted:
			v.Next = StartOver
			return unchanged
		case !present && k.old(n, now):
			v.Next = askLimit
			return changed
		case n > t.Tokens:
			v = k.tooMuch(now)
			return unchanged
		}
		k.comeBack()
		k.findShard()
		var decided bool
		if v.Answer, did, decided = k.fromMemory(n, stay, now); decided {
			return did
		}
		if k.shard.Open() {
			if v, decided = k.policy(n, stay, now, k.shard.OpenError()); decided {
				return unchanged
			}
		}
		k.env.Counts.Waited.Add(1)
		v.Next, w = wait, k.env.waiters.Get(n, stay)
		if d, ok := ctx.Deadline(); ok && stay {
			w.Deadline = now + min(int64(time.Until(d)), math.MaxInt64-now)
		}
		k.queued().line.Push(w)
		k.queue.joined++
		return changed
	})
	return w, v
}

// fromMemory answers without the store, if that is possible. It serves nobody before the
// callers in line: an Allow waits behind the active ones, a Wait behind all. If a refusal's
// denial is over, it also asks for a probe, which nobody waits for.
func (k *Key) fromMemory(n int64, stay bool, now int64) (a Answer, did effect, decided bool) {
	w := k.lease.Load()
	if !w.Alive(now) {
		return a, unchanged, false
	}
	if line := k.queue.callers(); line.Active() == 0 && (!stay || line.Parked() == 0) {
		if left, ok := w.Spend(n); ok {
			return k.admit(w, n, left, Local), effect{changed: w.ClaimReorder(left)}, true
		}
	}
	if stay || k.deniedUntil() == 0 || n <= w.Available()+k.queue.held() {
		return a, unchanged, false
	}
	if now >= k.deniedUntil() && !k.queue.inFlight() && !k.shard.Open() {
		k.use.deniedUntil = now + int64(k.Limit().Window)/askTimes
		did = effect{changed: true, probe: n}
	}
	k.refusals.Add(1)
	return k.refuse(w, now, Local), did, true
}

// await waits for the outcome of w until ctx ends. The fetch that w waits for ends by its own
// timeout, and so does the fetch before, because a store returns soon after its context's end.
func (k *Key) await(ctx context.Context, w *waiter) Verdict {
	defer k.env.waiters.Put(w)
	select {
	case <-w.Ready:
		return w.Outcome.Verdict
	case <-ctx.Done():
		k.cancel(w)
		return Verdict{Err: ctx.Err()}
	}
}

// cancel takes w out of the line for a caller whose context has ended. Tokens that w got
// meanwhile are refunded: they go to the next waiter, or back to the stock.
func (k *Key) cancel(w *waiter) {
	k.event(func(now int64) effect {
		paid, n := w.Outcome.lease, w.N
		switch {
		case !w.Done():
			k.queue.line.Remove(w)
			return changed
		case paid == nil: // if it was admitted without the store
			if c := chargeOf(w.Outcome.Answer); c.Tokens > 0 {
				k.fallback.takeBack(c, n)
				k.env.Counts.RefundLeft(n)
			}
			return unchanged
		}
		k.env.Counts.Extra.Add(k.node.Hash, 1)
		if k.Limit().Rolls {
			did, ok := k.refundRolling(chargeOf(w.Outcome.Answer), n, now)
			if !ok {
				k.env.Counts.RefundLeft(n)
			}
			return did
		}
		k.env.Counts.Refunded.Add(n)
		present := k.lease.Load()
		if k.phase == phaseRetired || paid != present && !k.carried(paid.Window) { // when the key left the window, settleLater counted them
			TakeUpTo(&k.env.Counts.Left, n)
			k.env.Counts.Expired.Add(n)
			return unchanged
		}
		k.account.Refund(n)
		k.putBack(present, n)
		return changed
	})
}

// putBack puts n tokens back into the stock of w or, if nobody may spend from it, on
// their way to the store.
func (k *Key) putBack(w *lease.Lease, n int64) {
	if k.parted {
		k.account.Return(n, k.held())
		return
	}
	k.usage() // the store does not know that these are idle
	w.Publish(n, 0)
}

// serve serves the line; nothing else decides which callers in line are served. They can
// get the tokens at hand and those that the store has left. fresh says that the store's
// rest was read just now. Otherwise it is known only while the key is denied, and a caller
// that cannot be served at once waits for a fetch.
func (k *Key) serve(now int64, fresh bool) {
	line := k.queue.callers()
	if line.Empty() {
		return
	}
	w := k.lease.Load()
	left := int64(math.MaxInt64)
	var hand int64
	var to waiters.Windows // not needed before left is known
	if w.Alive(now) {
		k.queue.reserved += w.Reserve()
		hand = k.queue.reserved
		if fresh || k.deniedUntil() != 0 && now < k.deniedUntil() {
			t := k.Limit()
			left, to = w.Remaining(), waiters.Windows{Next: now + int64(w.RetryAfter(now)), Length: int64(t.Window), Tokens: t.Tokens}
		}
	}
	line.Serve(hand, left, to, func(c *waiter, v waiters.Verdict) {
		line.Notify(c, k.outcome(c, w, v, now))
	})
	if k.deniedUntil() == 0 && line.Parked() > 0 { // the store has too little
		k.deny(w, now)
	}
	if k.shard.Open() { // the others get none
		k.answer(line.Last(), now, k.shard.OpenError())
	}
}

// outcome is the outcome of a caller in line whose wait is over.
func (k *Key) outcome(c *waiter, w *lease.Lease, v waiters.Verdict, now int64) (o outcome) {
	if v != waiters.Grant && k.deniedUntil() == 0 { // the store has too little
		k.deny(w, now)
	}
	switch v {
	case waiters.Grant:
		k.queue.reserved -= c.N
		o.Answer, o.lease = k.admit(w, c.N, k.queue.reserved, k.source(c.N)), w
		k.queue.unserved = 0
	case waiters.Refuse:
		k.refusals.Add(1)
		o.Answer = k.refuse(w, now, k.source(c.N))
		o.Answer.Remaining = min(o.Answer.Remaining+k.queue.reserved, o.Answer.Limit)
		k.queue.unserved = 0
	case waiters.Miss:
		o.Err = ErrDeadline
	}
	return o
}

// source is where the decision on a request for n tokens came from that stood in line.
func (k *Key) source(n int64) Source {
	if e := k.env; e.Direct || e.Sizing.Max > 0 && n > e.Sizing.Max || e.Sizing.Kind == demand.Fixed && n > e.Sizing.Min {
		return Direct
	}
	return Fetched
}

// deny caches the denial until it is this process' turn to probe, or the window ends. Turns
// are random: the mean between two of them is the common interval times the number of
// processes.
func (k *Key) deny(w *lease.Lease, now int64) {
	u := k.usage()
	if !u.IsExhausted() {
		u.observe(k, now)
		u.Exhausted(now)
	}
	window := k.Limit().Window
	turn := chance.Interval(window/askTimes).Seconds() * float64(max(k.clients, 1))
	if u.deniedUntil = w.LatestEnd(); k.Limit().Rolls { // some come back before, and nobody tells of that
		u.deniedUntil = now + int64(w.RetryAfter(now))
	} else if left := time.Duration(u.deniedUntil - now); turn < left.Seconds() { // turn may be thousands of years
		u.deniedUntil = now + int64(turn*float64(time.Second))
	}
	if now < u.recall.again { // tokens may come back from others
		u.deniedUntil = min(u.deniedUntil, u.recall.again)
	}
	k.inWindow(phaseDenied)
	if u.recheck <= now {
		u.recheck = now + int64(window)/askTimes
	}
}

// CloseLine answers the callers in line when the limiter is closed.
func (k *Key) CloseLine() {
	k.event(func(int64) effect {
		line := k.queue.callers()
		line.Since(0, func(c *waiter) { line.Notify(c, outcome{Verdict: Verdict{Err: ErrClosed}}) })
		return changed
	})
}
