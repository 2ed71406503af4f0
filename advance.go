package reservoir

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/deadline"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file is what a key does of itself: after every event it serves the line, asks
// package next what to do, and starts that fetch or sets the timer for the next look.

// fetch is a statement on its way to the store.
type fetch struct {
	req     backend.SyncRequest
	cause   next.Cause
	reason  string // for the size of the batch
	last    uint64 // sequence number of the last caller that it was sized for
	ordered int64  // time, before its goroutine had to find a processor
	shard   *shard
	own     bool // it only asks which window is open
}

// asks reports whether the statement asks for a batch; others only state the account.
func asks(why next.Cause) bool {
	return why == next.Waiters || why == next.Probe || why == next.Reset || why == next.Prefetch
}

// advanceLocked ends every event. wanted is how many tokens a refused caller wanted
// whose denial is over: a probe asks for them.
func (k *keyState) advanceLocked(now, wanted int64) {
	k.serveLocked(now, false)
	k.stepLocked(now, wanted)
}

// stepLocked does what is to be done next, once the line is served.
func (k *keyState) stepLocked(now, wanted int64) {
	if line := k.lineLocked(); line == nil || line.Active() == 0 {
		k.publishLocked()
	}
	facts := k.factsLocked(now, wanted)
	why, at := next.Step(facts)
	if why != next.None {
		k.startLocked(why, wanted, facts.Surplus, now)
	}
	k.publishLocked()
	k.timerLocked(now, at)
	if k.busy != nil && !k.busy.inFlight && k.busy.line.Empty() {
		k.busy = nil
	}
}

// publishLocked lets the hot path have what the line does not need.
func (k *keyState) publishLocked() {
	w := k.lease.Load()
	if w == nil || k.inFlightLocked() && k.busy.line.Active() > 0 {
		return
	}
	denied := k.deniedUntil
	if denied != 0 && k.l.limits != nil {
		denied = min(denied, k.use.recheck)
	}
	var n int64
	if k.busy != nil {
		n, k.busy.reserved = k.busy.reserved, 0
	}
	w.Publish(n, denied)
}

// slack is how much later than the fetch timeout a fetch may end before those who wait
// for it are answered without it: a store should obey its context.
const slack = 20 * time.Millisecond

// factsLocked is the key as it stands. It changes nothing but the time of the next look
// for a surplus.
func (k *keyState) factsLocked(now, wanted int64) next.Facts {
	w := k.lease.Load()
	f := next.Facts{
		Now: now, Retired: k.retired || k.l.closed.Load(), Open: k.shard.Open(),
		Denied: k.deniedUntil, Probe: wanted > 0, Alive: w.Alive(now),
	}
	if f.Open {
		f.Ask = max(k.shard.NextProbe(), now) + int64(slack)
	}
	if b := k.busy; b != nil {
		f.InFlight = b.inFlight
		f.Active, f.Passing, f.Parked = b.line.Active(), b.line.Passing(), b.line.Parked()
	}
	if k.use != nil {
		f.Backoff, f.Rejected, f.Spread = k.use.backoff, k.use.rejected, k.use.spread
	}
	f.Unconfirmed = k.farewell
	if w == nil {
		return f
	}
	f.Over = w.Late()
	f.Ending = k.futile > 0 && !f.Alive
	f.Debt = f.Alive && k.account.Unpaid() > 0
	f.Unconfirmed = k.farewell || f.Alive && k.account.Unconfirmed() > 0
	f.Low = k.low && k.aheadLocked(w)
	if k.use != nil {
		k.aheadFactsLocked(&f, w, now)
	}
	return f
}

// aheadFactsLocked adds what a key in use looks ahead by.
func (k *keyState) aheadFactsLocked(f *next.Facts, w *lease.Lease, now int64) {
	u, window := k.use, k.limit().Window
	if k.leaving || k.l.direct {
		f.Surplus = w.Stock()
		return
	}
	f.Regular = k.l.ahead() && u.Regular(window)
	f.Used = u.UsedIn(k.spentLocked(), k.denied.Load())
	if f.Regular {
		// The two bounds of the window's end lie apart. Callers in between would wait;
		// where some are likely, look once more when the end is near.
		at := w.Late() - int64(window)/refreshPart
		if gap := time.Duration(w.Late() - w.Deadline()); u.replied < at && u.Within(gap) > worthOne {
			f.Refresh = at
		}
	}
	if k.l.guided() && k.short && f.Alive && k.heldLocked() > 2*k.idleShare() {
		if spent := k.spentLocked(); now >= u.look {
			if u.look != 0 && 30*w.Stock() > spent-u.lookSpent { // or it goes long before the next look
				f.Surplus = k.surplusLocked(w, now)
			}
			u.look, u.lookSpent = now+int64(window)/lookPart, spent
		}
		f.Look = u.look
	}
}

// What a key looks ahead by, as parts of the window.
const (
	lookPart    = 60  // between looks for a surplus
	refreshPart = 50  // before the end, to learn the end better
	spreadPart  = 200 // over which processes spread their calls at the reset
	spreadMax   = 5 * time.Millisecond
	worthOne    = 0.1 // callers that would wait, for a refresh to be worth a call
)

// aheadLocked reports whether batches are ordered before the stock is gone.
func (k *keyState) aheadLocked(w *lease.Lease) bool {
	return k.l.ahead() && !k.small && w.Remaining() > 0
}

// startLocked makes a statement and sends it. Some only state the account; others ask
// for a batch.
func (k *keyState) startLocked(why next.Cause, wanted, surplus, now int64) {
	w := k.lease.Load()
	if !k.l.calls.Begin() {
		return
	}
	if why == next.Return && surplus > 0 {
		if _, ok := w.Spend(surplus); ok { // otherwise it has been used meanwhile
			k.account.Return(surplus)
			if !k.leaving && !k.l.direct {
				k.l.count.giveBacks.Add(1)
			}
		}
	}
	k.findShardLocked()
	k.prepareLocked(why, now)
	b := k.busyLocked()
	b.inFlight = true
	b.fetch = fetch{req: k.statementLocked(), cause: why, last: b.line.Last(), ordered: now, shard: k.shard, own: k.ownLocked()}
	if asks(why) && !b.fetch.own {
		k.sizeLocked(&b.fetch, w, wanted, now)
	}
	switch why {
	case next.Probe:
		k.l.count.probes.Add(1)
	case next.Prefetch:
		k.l.count.prefetches.Add(1)
	}
	go k.run(&b.fetch)
}

// prepareLocked brings what is known of the demand up to date, from the second fetch on.
func (k *keyState) prepareLocked(why next.Cause, now int64) {
	if !asks(why) {
		return
	}
	if k.since == 0 {
		k.since = max(now, 1)
		return
	}
	k.usageLocked()
	k.observeLocked(now)
}

// statementLocked is the account as it stands, asking for nothing.
func (k *keyState) statementLocked() backend.SyncRequest {
	limit := k.limit()
	q := backend.SyncRequest{
		Key: k.l.storeKey(k.node.Key), Client: k.name.client, Limit: limit, Strand: -1,
		Peers: int64(k.clients), Pace: k.demand().PerWindow(limit), Leaving: k.leaving,
	}
	if w := k.lease.Load(); w != nil && !k.ownLocked() {
		k.account.State(&q, w.Window)
	}
	return q
}

// run carries out f. It is the only part of a fetch that is not under the lock.
func (k *keyState) run(f *fetch) {
	l := k.l
	defer l.calls.End()
	c := l.newCall(f.shard, f.req.Key, f.req.Limit, StoreCall{Op: "sync", Cause: string(f.cause), Reason: f.reason})
	var reply backend.SyncReply
	err := guard.ErrGoexit // unless the store returns
	defer func() {
		if k.complete(f, reply, err, c) {
			l.retire(k)
		}
		if c.made {
			c.report()
		}
	}()
	if err = guard.Do(k.relimit); err != nil {
		return
	}
	comply(&f.req, k.limit())
	c.Want = f.req.Want
	ctx := deadline.After(l.fetchTimeout)
	defer ctx.Release()
	err = c.do(ctx, true, func(ctx context.Context) (err error) {
		l.count.syncs.Add(1)
		reply, err = l.store.Sync(ctx, f.req)
		c.Granted = reply.Grant
		return l.conflict(reply.State, err)
	})
	if reply.Length != 0 {
		c.Err = ErrConflict // told, also where the limit may have changed
	}
}

// complete takes in the end of f and serves the line. gone says that the key was leaving
// and may be forgotten.
func (k *keyState) complete(f *fetch, reply backend.SyncReply, err error, c *storeCall) (gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now() // not before the lock: who is served must be in time now
	k.busy.inFlight = false
	switch {
	case err != nil:
		k.failedLocked(f, now, err)
	case k.retired:
		k.moveLocked(account.Moved{Taken: reply.Grant, Expired: reply.Grant})
	default:
		f.shard.Trip(time.Duration(c.end - f.ordered))
		k.applyLocked(f, reply, c.sent, now)
		if !f.own {
			k.serveLocked(now, k.limit().Tokens <= f.req.Limit.Tokens)
			k.stuckLocked(f, now)
		}
	}
	k.stepLocked(now, 0)
	return k.goneLocked(now)
}

// failedLocked takes in that f has failed. A caller gives up when its own fetch, or the
// one before it, has timed out: those who came while f was in flight have waited long
// enough if it took all its time. Others have a fetch of their own.
func (k *keyState) failedLocked(f *fetch, now int64, err error) {
	k.unheard = true // also of a call that was turned away: an attempt before may have arrived
	last := f.last
	if now-f.ordered >= int64(k.l.fetchTimeout) {
		last = k.busy.line.Last()
	}
	k.backOffLocked(now)
	k.use.failed, k.use.rejected = now, !outage(err)
	k.failLocked(last, now, err)
}

// The pause after a failed fetch, before one that no caller needs at once. It doubles.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = time.Second
)

func (k *keyState) backOffLocked(now int64) {
	u := k.usageLocked()
	u.pause = min(max(2*u.pause, firstPause), longestPause)
	u.backoff = now + int64(u.pause/2+chance.Part(u.pause/2))
}

// stuckLocked counts fetches that served none of those for whom they were made: grants
// that were dead on arrival, their window being over. The next fetch opens a new one; if
// that happens again and again the network is slower than the window.
func (k *keyState) stuckLocked(f *fetch, now int64) {
	first := k.busy.line.First()
	if first == nil || first.Seq() > f.last {
		k.futile = 0
		return
	}
	if k.futile++; k.futile < 3 {
		return
	}
	k.futile = 0
	k.backOffLocked(now)
	k.failLocked(f.last, now, &StoreError{Op: "sync", Class: backend.Unavailable, Err: errTooSlow})
}

// applyLocked takes in what the store answered to f.
func (k *keyState) applyLocked(f *fetch, r backend.SyncReply, sent, now int64) {
	k.l.count.recovered.Add(r.Recovered)
	k.l.count.reasserted.Add(r.Reasserted)
	if f.req.Leaving {
		k.unheard = false
	}
	if f.req.Leaving || !k.leaving { // somebody has come meanwhile
		k.farewell = false
	}
	if k.use != nil {
		k.use.backoff, k.use.pause, k.use.rejected, k.use.replied = 0, 0, false, now
	}
	if r.Length != 0 {
		k.adoptLocked(r.State, sent, now)
		return
	}
	w := k.lease.Load()
	if f.own && k.ownLocked() {
		if k.local.own = false; r.Window == 0 { // the store will adopt this one
			return
		}
		k.local.window, r.Carried = r.Window, true // debt goes along
	} else if w != nil && w.Window != f.req.Window { // left meanwhile: the next statement hears of the grant again
		k.unheard = true
		k.usageLocked().failed = now
		return
	}
	k.counted = uint16(min(r.Clients, math.MaxUint16))
	var held int64
	spent := k.spentLocked()
	moved := w == nil && r.Window != 0 || w != nil && w.Window != r.Window
	if moved {
		held = k.drainLocked()
	}
	m := k.account.Apply(f.req, r, held)
	k.moveLocked(m)
	if moved {
		if w = k.enterLocked(r.Window, spent, now); w == nil {
			return
		}
		if r.Carried {
			k.busy.reserved += held
		}
	}
	k.demand().Skip(m.Taken - r.Grant)
	if w == nil { // nothing is charged, and so no window is open
		return
	}
	k.clients = max(k.counted, k.clients)
	w.Read(r.State, sent, now)
	k.busy.reserved += w.Reserve() + r.Grant
	k.forecastLocked(f, r, w, now)
}

// forecastLocked takes from a reply what it says of the rest of the window.
func (k *keyState) forecastLocked(f *fetch, r backend.SyncReply, w *lease.Lease, now int64) {
	limit := k.limit()
	if r.Lasted > 0 {
		k.usageLocked()
	}
	k.short = demand.Short(limit, r.State)
	if k.use != nil {
		k.use.Forecast(limit, r.State, r.Lasted)
	}
	k.small = r.Remaining > 0 && (r.Learning || f.req.Want > f.req.Need && r.Grant <= f.req.Need)
	k.deniedUntil = 0
	if r.Remaining == 0 && f.req.Limit.Tokens >= limit.Tokens { // which may have been raised since
		k.denyLocked(w, now)
	} else if k.demand().IsExhausted() {
		k.use.Exhausted(0)
	}
	reorder := int64(-1)
	if k.aheadLocked(w) && k.deniedUntil == 0 {
		reorder = k.reorderLocked()
	}
	w.SetReorder(reorder)
	k.low = asks(f.cause) && reorder > 0 && k.demand().Regular(limit.Window) && k.heldLocked()-k.lineTokensLocked() <= reorder
}

func (k *keyState) lineTokensLocked() int64 {
	if k.busy == nil {
		return 0
	}
	return k.busy.line.Tokens()
}

// enterLocked makes window the current one; the account has left the one before, where
// so many tokens were spent by then. 0 is no window.
func (k *keyState) enterLocked(window backend.Window, spent, now int64) *lease.Lease {
	k.small, k.short, k.low, k.deniedUntil, k.clients = false, false, false, 0, k.counted
	if u := k.use; u != nil {
		length := k.limit().Window
		u.Observe(length, now, spent, int64(k.largest.Swap(0)))
		u.Opened(length, spent, k.denied.Load())
		u.spread = spread(length)
		u.look = 0
	}
	var w *lease.Lease
	if window != 0 {
		w = lease.New(window)
	}
	k.lease.Store(w)
	return w
}

// switchLocked is enterLocked where the store has said nothing of the account.
func (k *keyState) switchLocked(window backend.Window, now int64) *lease.Lease {
	spent := k.spentLocked()
	k.moveLocked(k.account.Leave(k.drainLocked(), false))
	return k.enterLocked(window, spent, now)
}

// timerLocked sets the key's timer for at, unless it fires before that anyway.
func (k *keyState) timerLocked(now, at int64) {
	if at == next.Never || k.retired {
		return
	}
	u := k.usageLocked()
	if u.due > now && u.due <= at {
		return
	}
	u.due = at
	if u.timer == nil {
		u.timer = time.AfterFunc(time.Duration(at-now), k.tick)
	} else {
		u.timer.Reset(time.Duration(at - now))
	}
}

// tick looks again.
func (k *keyState) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now()
	k.use.due = 0
	k.advanceLocked(now, 0)
}
