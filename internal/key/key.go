// Package key is one key of a limiter: the lease from which requests are served, the
// account with the store, the callers in line, the fetch for them, and what is settled.
//
// Everything that happens to a key is an event: a caller, a reply, a timer, a refund, its
// turn to call. An event takes the key's lock, changes the parts, serves the line and
// makes the one decision of package next. A fetch starts after the lock is released,
// because it is never held during I/O, a callback or a wait. What a key sees of its
// limiter is Env.
package key

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// Key is one key. Exported methods are safe for concurrent use. These, event and update, and
// what a caller does on its way through the line (decide, await, cancel) take the lock
// if they need it; all other methods are parts of an event and need it.
//
// A limiter may have a million keys, most of them seen once, so fields that only some keys
// need (queue, use, fallback) are pointers, nil until then.
type Key struct {
	// The fields that the hot path reads come first, in one cache line.
	lease    atomic.Pointer[lease.Lease]
	env      *Env
	limit    atomic.Pointer[backend.Limit] // which may change its tokens
	refusals atomic.Int64                  // requests refused
	node     *node

	shard *Shard

	mu       sync.Mutex
	account  account.Account
	queue    *queue    // nil while nobody waits and nothing is in flight
	use      *usage    // nil until the second fetch
	fallback *fallback // nil unless the store has been away

	firstFetch int64  // time of the first fetch; 0 = none yet
	largest    most   // the largest request since the last observation of demand
	clients    uint16 // that share the key: the larger count of this window and the last
	reported   uint16 // clients in the store's last reply
	phase      phase
	inLine     next.Class // the line of its shard in which the key stands
	parted     bool       // it has left its counter, and is not in the table any more
	orphan     bool       // it found no room among the leavers
	short      bool       // the limit will run out before the window ends, by the last reading
	replyLost  bool       // the last fetch has failed, or its reply was void: a grant that nobody read may be charged
}

type node = keytable.Node[Key]

// phase is the state of a key. Two more states come by time alone, so no event enters them,
// and package next tells them from the lease: ending, past the deadline but not surely past
// the window's end, and over.
type phase uint8

const (
	phaseCold    phase = iota // no window is known
	phaseOpen                 // stock may be spent until the lease's deadline
	phaseDenied               // the store has too little for some caller, until deniedUntil
	phaseLeaving              // idle: what it holds goes back, and a last statement that says so is due
	phaseLeft                 // idle, and no last statement is due any more
	phaseRetired              // forgotten, or closed: look the key up again
)

// enter is the only place where a key changes its phase.
func (k *Key) enter(p phase) {
	invariant.That(k.phase != phaseRetired || p == phaseRetired, "from retired to phase %d", p)
	k.phase = p
}

// idle reports whether the key is to be forgotten, unless a caller comes.
func (k *Key) idle() bool { return k.phase >= phaseLeaving }

// inWindow records what is known of the key's window, unless the key is idle.
func (k *Key) inWindow(p phase) {
	if !k.idle() {
		k.enter(p)
	}
}

// comeBack keeps the key in memory, because a caller has come.
func (k *Key) comeBack() {
	switch {
	case k.parted || k.phase != phaseLeaving && k.phase != phaseLeft:
	case k.lease.Load() == nil:
		k.enter(phaseCold)
	case k.deniedUntil() != 0:
		k.enter(phaseDenied)
	default:
		k.enter(phaseOpen)
	}
}

// leave lets the key be forgotten, after a last statement if one is needed.
func (k *Key) leave(now int64) {
	k.lease.Load().CancelOrder()
	if k.needsLast(now) {
		k.enter(phaseLeaving)
	} else {
		k.enter(phaseLeft)
	}
}

// deniedUntil is until when the store surely has too little for some caller; 0 = ask the store.
func (k *Key) deniedUntil() int64 {
	if k.use == nil {
		return 0
	}
	return k.use.deniedUntil
}

// allow ends a denial: the store may have more.
func (k *Key) allow() {
	if k.use != nil {
		k.use.deniedUntil = 0
	}
	if k.phase == phaseDenied {
		k.enter(phaseOpen)
	}
}

// init makes the key of node n, on that shard.
func (e *Env) init(n *node, s *Shard, limit backend.Limit) {
	k := &n.State
	k.env, k.node, k.shard = e, n, s
	s.keys.Add(1)
	k.account.Begin(limit, e.lives.Add(1))
	if k.limit.Store(&e.Limit); limit != e.Limit { // or a calendar's window has another length
		k.limit.Store(&limit)
	}
}

// Make returns the key, which it makes if it is not in memory, or nil if there is no room.
func (e *Env) Make(name string, limit backend.Limit) *Key {
	s := e.Caller.Shard(e.Stored(name)) // without the table's lock
	return keyOf(e.Table.GetOrMake(name, func(n *node) { e.init(n, s, limit) }))
}

// Find returns the key if it is in memory, or nil.
func (e *Env) Find(name string) *Key { return keyOf(e.Table.Find(name)) }

// FindStored is Find for the name of a key in the store.
func (e *Env) FindStored(stored string) *Key {
	name, key := placement.Split(stored)
	if name != e.Name {
		return nil
	}
	return e.Find(key)
}

// Get is Find without a lock. Rarely it misses a key that has just come.
func (e *Env) Get(name string) *Key { return keyOf(e.Table.Get(name)) }

func keyOf(n *node) *Key {
	if n == nil {
		return nil
	}
	return &n.State
}

// All calls yield with every key in memory, also those that leave their counter, and holds no lock meanwhile.
func (e *Env) All(yield func(*Key) bool) {
	more := true
	e.Table.All(func(n *node) bool { more = yield(&n.State); return more })
	if more {
		e.leavers.all(yield)
	}
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
	Exhausted bool           // the store has too little for some requests, which are refused from memory
}

// Figures returns the key's figures; ok is false if it was forgotten. The spent tokens are
// derived, not counted, because the hot path writes nothing but the stock.
func (k *Key) Figures() (f Figures, ok bool) {
	k.event(func(now int64) effect {
		w := k.lease.Load()
		f = Figures{
			Spent: k.spent(), Denied: k.refusals.Load(), Held: k.held(), Returning: k.account.Unconfirmed(), Debt: k.account.Unpaid(), Exhausted: k.deniedUntil() != 0,
		}
		if w.Alive(now) {
			f.Window = w.Window
		}
		f.Parted, ok = k.parted, k.phase != phaseRetired
		return unchanged
	})
	return f, ok
}

// Name is the user's name of the key.
func (k *Key) Name() string { return k.node.Key }

// Of reports whether the key is one of e.
func (k *Key) Of(e *Env) bool { return k.env == e }

// Lease returns the lease from which requests are served, or nil.
func (k *Key) Lease() *lease.Lease { return k.lease.Load() }

// Limit returns the key's limit.
func (k *Key) Limit() *backend.Limit { return k.limit.Load() }

// Refused counts a request that was refused from memory.
func (k *Key) Refused() { k.refusals.Add(1) }

// Used records a request for n tokens that was served.
func (k *Key) Used(n int64) {
	k.largest.record(n)
	k.env.Counts.Extra.Add(k.node.Hash, n-1)
}

// OrderIfLow orders a batch if left, the stock of w after a spend, is at the re-order
// point. Only one of the callers that find it there orders. The point of a key's first
// batch only tells that the key is used again, and so needs an estimate of its demand.
func (k *Key) OrderIfLow(w *lease.Lease, left int64) {
	if !w.ClaimReorder(left) {
		return
	}
	k.event(func(now int64) effect {
		if k.lease.Load() != w || k.phase == phaseRetired {
			return unchanged
		}
		k.comeBack()
		if k.use == nil {
			k.usage().observe(k, now)
		}
		s := k.situation(now)
		if point := s.reorder(); left > point {
			k.setReorder(w, point)
		}
		return changed
	})
}

// setReorder sets the re-order point. The stock may be below it already, because the batch is
// smaller than what is used during the next fetch: the hot path reports only a stock that
// falls to the point.
func (k *Key) setReorder(w *lease.Lease, point int64) {
	w.SetReorder(point)
	if point > 0 && k.use.demand().Regular(k.Limit().Window) && k.held()-k.queue.callers().Tokens() <= point {
		w.Order()
	}
}

// effect is what an event has changed.
type effect struct {
	changed bool  // something on which the line or a fetch depends
	probe   int64 // tokens for which a probe is due, because a caller was refused though its denial is over
	expects bool  // the probe's tokens are for a caller that will soon be in line
}

var unchanged, changed = effect{}, effect{changed: true}

// event changes the key, and starts the fetch that is due after that.
func (k *Key) event(change func(now int64) effect) {
	if f := k.update(change, slot{}); f != nil {
		go k.env.Caller.Send(f)
	}
}

// update is the part of an event under the lock. has is the slot of a key whose turn to call has come, or none.
func (k *Key) update(change func(now int64) effect, has slot) *Fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.env.Clock.Now() // read under the lock, because served callers must be in time now
	turned, was := k.expire(now), k.phase
	var f *Fetch
	if did := change(now); did.changed || turned || k.phase != was {
		f = k.advance(now, did, has)
	}
	return f
}

// advance ends every event: it serves the line, asks package next what to do, and orders
// that fetch or sets the timer for the next look.
func (k *Key) advance(now int64, did effect, has slot) (f *Fetch) {
	if k.parted { // all that is at hand goes back, because handles still spend
		k.allow()
		w := k.lease.Load()
		if w.CancelOrder(); !w.Over(now) && k.held() > 0 {
			k.account.Return(k.drain(), 0)
		}
	}
	k.serve(now, false)
	w := k.lease.Load()
	if k.queue.callers().Active() == 0 { // otherwise a newcomer could take what the line waits for
		k.publish(w)
	}
	facts := k.facts(now, did)
	if k.use != nil || k.idle() {
		facts.Surplus, facts.Look = k.surplus(now)
		facts.Called = k.use != nil && k.use.recall.called.End != 0
	}
	why, at := next.Step(facts)
	for why != next.None && !k.takeSlot(&has, facts.Class(why), facts.Open) {
		facts.InLine = k.inLine
		why, at = next.Step(facts)
	}
	if why != next.None && k.env.Calls.Begin() {
		f = k.order(why, now, did.probe, facts.Surplus)
		f.slot = has
	}
	k.publish(w)
	if at != next.Never && k.phase != phaseRetired {
		k.usage().arm(now, at)
	}
	if k.queue != nil && k.queue.fetch == nil && k.queue.line.Empty() {
		k.queue = nil
	}
	k.check()
	return f
}

// check asserts that the phase is what the parts say.
func (k *Key) check() {
	if invariant.Enabled && !k.idle() {
		invariant.That((k.phase == phaseCold) == (k.lease.Load() == nil), "phase %d, lease %v", k.phase, k.lease.Load())
		invariant.That((k.phase == phaseDenied) == (k.deniedUntil() != 0), "phase %d, denied until %d", k.phase, k.deniedUntil())
	}
}

// publish gives the hot path the tokens that the line does not need, and lets it refuse
// while the key is denied. While a fetch is in flight for callers in line, tokens stay
// reserved and nobody is refused without the lock, because the fetch may bring enough.
func (k *Key) publish(w *lease.Lease) {
	if w == nil || k.queue.inFlight() && k.queue.line.Active() > 0 {
		return
	}
	until := k.deniedUntil()
	if k.idle() { // the next caller must come by the lock
		until = 0
	} else if until != 0 && k.env.ByKey { // so must one now and then, to ask whether the limit was raised
		until = min(until, k.use.recheck)
	}
	w.Publish(k.queue.unreserve(), until)
}

// How far a key looks ahead. A Part divides the window.
const (
	refreshPart = 50  // before the end, to read the end once more
	spreadPart  = 200 // over which processes spread their calls at the reset
	spreadMax   = 5 * time.Millisecond
	worthOne    = 0.1                   // expected waiting callers above which a refresh is worth a call
	probeTime   = 20 * time.Millisecond // after which a probe has mostly shown whether the store is back
)

// facts returns all facts of the key except those of its surplus. It changes nothing.
func (k *Key) facts(now int64, did effect) next.Facts {
	w, line := k.lease.Load(), k.queue.callers()
	f := next.Facts{
		Now: now, Retired: k.phase == phaseRetired || k.env.Closed.Load(), Open: k.shard.Open(), InLine: k.inLine, InFlight: k.queue.inFlight(),
		Active: line.Active(), Passing: line.Passing(), Parked: line.Parked(),
		Denied: k.deniedUntil(), Probe: did.probe > 0, Alive: w.Alive(now), Unconfirmed: k.phase == phaseLeaving,
	}
	if did.expects {
		f.Probe, f.Active, f.Passing = false, f.Active+1, f.Passing+1
	}
	if f.Open {
		f.Ask = max(k.shard.NextProbe(), now) + int64(probeTime)
	}
	u := k.use
	if u != nil {
		f.Backoff, f.Rejected, f.Spread, f.Recall = u.backoff, u.rejected, u.spread, u.recall.again
	}
	if w == nil {
		return f
	}
	f.Over = w.LatestEnd()
	// A fetch has just found the old window again, though it is over by our clock, because
	// the store's clock is behind or a millisecond is left. Asking at once would be a loop.
	// A window that a Reset has voided may have long to go, and is not waited for.
	f.Ending = k.queue != nil && k.queue.unserved > 0 && !f.Alive && !w.Doubted()
	rolls := k.Limit().Rolls
	switch {
	case !k.keeps(w, now):
	case rolls && u != nil: // what is unspent of a bucket that is over goes along with the next statement
		f.Charge = u.charge
	case k.account.Unpaid() > 0:
		f.Charge = 1
		if u != nil {
			f.Charge = max(u.charge, 1)
		}
	}
	f.Unconfirmed = f.Unconfirmed || k.keeps(w, now) && k.account.Unconfirmed() > 0 && !rolls
	f.Low = w.OrderDue() && w.Remaining() > 0
	if u == nil || k.idle() || k.env.Direct {
		return f
	}
	if rolls {
		k.lookAhead(&f)
		return f
	}
	window := k.Limit().Window
	f.Regular = k.env.ahead() && u.Regular(window) && !k.small()
	f.Used = u.UsedIn(k.spent(), k.refusals.Load())
	// Callers that come between the two bounds of the window's end would wait. If some are
	// likely, read the end once more when it is near.
	at, gap := w.LatestEnd()-int64(window)/refreshPart, time.Duration(w.LatestEnd()-w.Deadline())
	if f.Regular && u.replied < at && u.Within(gap) > worthOne {
		f.Refresh = at
	}
	return f
}

// held is what the key holds, whether it may still be spent or not.
func (k *Key) held() int64 { return k.lease.Load().Stock() + k.queue.held() }

// drain takes out all that the key holds.
func (k *Key) drain() int64 { return k.lease.Load().Drain() + k.queue.unreserve() }

// spent is how many tokens requests have used so far.
func (k *Key) spent() int64 { return k.account.Spent(k.held()) }

// keeps reports whether what the key holds is not over. In the last moment of a fixed window it is; what a rolling limit's
// account has may count for longer than its lease.
func (k *Key) keeps(w *lease.Lease, now int64) bool {
	return w.Alive(now) || k.Limit().Rolls && !w.Over(now)
}

// expire counts tokens and debt whose window is over; while a fetch is in flight its reply decides. It reports whether a
// rolling limit has another lease since, or may have tokens again.
func (k *Key) expire(now int64) (changed bool) {
	w := k.lease.Load()
	switch {
	case k.phase == phaseRetired || w == nil:
	case k.Limit().Rolls:
		return k.expireRolling(w, now)
	case w.Over(now) && !k.queue.inFlight():
		k.env.Counts.Move(k.account.Expire(k.drain()))
		k.env.Counts.Move(k.account.ExpireDebt())
	}
	return false
}

// enterWindow makes window the current one; the zero Window is none. The account has left the one
// before, and spent is how many tokens requests had used by then.
func (k *Key) enterWindow(window backend.Window, spent, now int64) *lease.Lease {
	k.short, k.clients = false, k.reported
	if f := k.fallback; f != nil && now > f.end {
		k.fallback = nil
	}
	if u := k.use; u != nil {
		u.deniedUntil, u.carried = 0, backend.Window{}
		length := k.Limit().Window
		u.Observe(length, now, spent, k.largest.take())
		u.opened(length, spent, k.refusals.Load())
	}
	var w *lease.Lease
	if window.End == 0 {
		k.inWindow(phaseCold)
	} else {
		w = lease.New(window)
		k.inWindow(phaseOpen)
	}
	k.lease.Store(w)
	return w
}

// leaveWindow ends the account of the key's window, if no reply does that.
func (k *Key) leaveWindow() { k.env.Counts.Move(k.account.Leave(k.drain())) }

// moved counts what a reply with that grant has moved. Debt that the store has charged is no burst of demand.
func (k *Key) moved(m account.Moved, grant int64) {
	k.env.Counts.Move(m)
	k.env.Counts.Extra.Add(k.node.Hash, m.Taken-grant)
	k.use.demand().Skip(m.Taken - grant)
}

// carried reports whether what was charged in that window counts in the key's present one.
func (k *Key) carried(of backend.Window) bool {
	return k.use != nil && k.use.carried == of && of.End != 0 && k.lease.Load() != nil
}
