// Package key is one key of a limiter: all that happens to it, in one place.
//
// What happens to a key is an event: a caller, a reply, a timer, a message, a refund, its turn to call. An event takes the
// key's lock, changes the parts, serves the line, and makes the one decision of package next; see [Key.step]. A fetch starts after the
// lock is released, because the lock is never held during I/O, a callback or a wait. The parts know nothing of each other: tokens,
// waiters, demand, denial, surplus. What a key sees of its limiter is Env.
package key

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/surplus"
	"github.com/go-reservoir/reservoir/internal/tokens"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// Key is one key, and the lock of its machine. Its methods are the events; they are safe for concurrent use.
type Key struct {
	machine
	mu sync.Mutex
}

// machine is the state of a key, and all that changes it. It has no lock and starts no goroutine: each event is a step, with
// the time at which it happens. A limiter may have a million keys, most of them seen once, so what only some keys need is in use.
type machine struct {
	// The hot path reads these, without the lock. The first three, up to the Lease, share the cache line of the node's name.
	Limit         atomic.Pointer[backend.Limit] // written under the lock, when its tokens change
	Refusals      atomic.Int64                  // requests refused; whoever refuses one from memory counts it
	tokens.Tokens                               // Lease; the lock guards the rest
	largest       atomic.Uint32                 // the largest request since the last observation of demand
	env           *Env                          // never changes
	node          *node                         // never changes; has the name, and the Key

	// The key's lock guards all that follows. Nothing writes it but step, with the events that it calls.
	shard     *Shard     // on which the key was when it last looked
	use       *use       // nil outside a step unless the key is in use
	first     int64      // time of the first fetch; 0 = none yet
	clients   uint16     // that share the key: the larger count of this window and the last
	reported  uint16     // clients in the store's last reply
	phase     phase      // whether the key is kept
	inLine    next.Class // the line of its shard in which the key stands
	parted    bool       // it leaves its counter, and is not in the table, unless it is about to come back
	short     bool       // the limit will run out before the window ends, by the last reading
	replyLost bool       // the last fetch has failed, or its reply was void: a grant that nobody read may be charged
}

type node = keytable.Node[Key]

// phase says whether the key is kept in memory. What is known of its window is said by its lease (none: cold; alive; over) and its denial.
type phase uint8

const (
	active  phase = iota
	leaving       // idle, or its limit counts elsewhere: what it holds goes back, and a last statement that says so is due
	left          // no last statement is due any more
	retired       // forgotten, or closed: look the key up again
)

// use is what only a key in use needs: one in whose line callers wait, or a fetch is in flight, or that was fetched for twice. The key's
// lock guards it, and only steps touch it. Each begins with a zero one if there is none, and drops it if nothing of it would be missed.
type use struct {
	// The parts. Only their own methods write them. The key writes hold and share itself.
	line    waiters.Line[Verdict]
	denial  denial.Denial
	hold    holding
	surplus surplus.Surplus
	demand  *demand.Demand // nil until the key is in use; see inUse
	share   *share         // what the failure policy has admitted; nil = nothing

	// The fetch. order writes these, and the end of the fetch, which no other event replaces.
	fetch    *Fetch // in flight; there is one at a time; nil = none
	unserved int    // fetches in a row that served nobody
	joined   int64  // callers who have come since the last order

	// When. Times are of the key's clock, and 0 is none. Only step sets the timer; each decision may only bring it forward.
	timer  *time.Timer
	due    int64 // when timer fires
	spread int64 // delay after the reset or before a bucket's end, so that processes do not all call at once
	trip   int64 // how long the last call took
	owes   int64 // since when debt is settled, which may wait for chargePart of the window; 0 = it may not
	quiet  int64 // until when a rolling limit orders nothing ahead, because it would get nothing

	// After failures. A reply that counts sets all of them to zero but failedAt, which needsLast asks for long after.
	backoff  int64          // after a failed fetch, the earliest time of the next
	pause    time.Duration  // of the last back-off; it doubles
	failedAt int64          // when a fetch that asks for a batch failed last, or its reply was void
	rejected bool           // the last fetch was rejected
	void     bool           // the last reply was void
	astray   int            // fetches in a row that named another period of the calendar than the store's
	voided   backend.Window // the last one that a Reset has voided, by its message
	copied   bool           // that message came again while a fetch was in flight

	// The limit and the failure policy. Sequence numbers are of the line, and 0 is before all callers.
	asked   uint64 // number of the last question for the limit whose answer may be too old
	policed uint64 // the failure policy has no answer for the callers in line up to this one, but Rejected
	shared  int64  // tokens that it still admitted when they were asked about
}

// uses are those that no key has. Most events are of keys that are not in use, each look of Stats for example.
var uses = sync.Pool{New: func() any { return new(use) }}

// Name is the user's name of the key.
func (k *Key) Name() string { return k.node.Key }

// Of reports whether the key is one of e.
func (k *Key) Of(e *Env) bool { return k.env == e }

// Used records a request for n tokens that was served.
func (k *machine) Used(n int64) {
	if size := uint32(min(n, 1<<32-1)); size > k.largest.Load() {
		k.largest.Store(size)
	}
	if n > 1 {
		k.env.Counts.Extra.Add(k.node.Hash, n-1)
	}
}

// effect is what an event has changed.
type effect struct {
	changed  bool   // something on which the line or a fetch depends
	fresh    bool   // the store's rest was read just now
	probe    int64  // tokens for which a probe is due, because a caller was refused though its denial is over
	expects  bool   // the probe's tokens are for a caller that will soon be in line
	slot     slot   // of a key whose turn to call has come; zero otherwise
	fetch    *Fetch // that has ended, and may have served none of its callers
	unserved error  // why
}

var unchanged, changed = effect{}, effect{changed: true}

// event is a step under the key's lock. It sends the fetch that is due then, in a goroutine of its own, and reports whether there is one.
func (k *Key) event(change func(now int64) effect) (sent bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.step(k.env.Clock.Now(), change) // read under the lock, because served callers must be in time now
	if f != nil {
		f.Req.Detached = true // no caller's context ends it: who made it may leave, and others still need it
		go func() {
			defer k.env.Calls.End()
			if err := f.begin(); err != nil {
				_ = f.End(Trip{}, backend.Reply{}, err)
				return
			}
			_ = k.env.Caller.Call(context.Background(), f)
		}()
	}
	return f != nil
}

// step is all that happens to a key at one event: expire, change, serve, decide, act. It does no I/O. It returns the fetch that is to be
// sent.
func (k *machine) step(now int64, change func(now int64) effect) (f *Fetch) {
	// A step can rely on use. Whether the key keeps it is decided at the end, by what is in it.
	if k.use == nil {
		k.use = uses.Get().(*use)
	}
	u, was := k.use, k.phase
	defer func() {
		invariant.That(was != retired || k.phase == retired, "from retired to phase %d", k.phase)
		if k.phase == retired || u.demand == nil && u.fetch == nil && u.share == nil && u.line.Len == 0 && k.inLine == 0 {
			k.use = nil // nothing of it would be missed
			*u = use{}
			uses.Put(u)
		}
	}()

	// Expire. Before the change: a caller who comes must not spend what is over, nor be refused because of it.
	turned := false
	if w := k.Lease.Load(); w != nil {
		var moved tokens.Moved
		if moved, turned = k.Expire(now, u.fetch != nil); moved != (tokens.Moved{}) {
			k.env.Counts.Move(moved)
		}
		if u.denial.State == denial.Denied && k.Frees() != 0 && now+u.trip+tokens.Rounding >= k.Frees() { // some tokens count no more
			u.denial.Open()
			k.Lease.Load().Remaining.Add(1) // one at least: at 0 nothing would be ordered ahead
			turned = true
		}
	}
	if u.denial.State == denial.Held && u.denial.Expire(now) { // whoever has heard of it; or the key would stay in memory to say it
		if w := k.Lease.Load(); w != nil && !k.Limit.Load().Rolls {
			w.Reset.Store(w.Latest)
		}
		if u.hold.told > u.hold.ends { // somebody else may hold it for longer
			k.doubt(now)
		}
		u.hold.forget(errHoldOver)
		turned = true
	}
	if turned && u.line.Active == 0 { // a caller that comes now is served from the stock
		k.publish()
	}

	// Change. Under the same lock as all that follows, or another caller could spend between the change and its consequences.
	did := change(now)
	if !did.changed && !turned && k.phase == was || k.phase == retired {
		return nil
	}

	// Those who are parked make no requests, so nobody would look for them whether a hold or a denial still is true.
	looks := u.denial.State == denial.Held || u.denial.State == denial.Denied && k.Limit.Load().Rolls
	if looks && u.line.Parked > 0 && u.fetch == nil && u.denial.Probe(now, k.Limit.Load().Window) { // has anything come back?
		did.probe = u.line.Rests.N
	}

	// Serve. Before the decision, or a fetch would be ordered for callers whom the stock serves.
	w := k.Lease.Load()
	if k.parted { // all that is at hand goes back, because handles still spend
		u.denial.Open()
		if w != nil {
			if w.CancelOrder(); !w.Over(now) {
				k.Return(-1)
			}
		}
	}
	alive := w != nil && now < w.Deadline.Load()
	k.serve(now, alive, did.fresh)
	if did.unserved != nil { // a fetch has ended whose reply was void, or whose grants came after the end of their window
		switch first := u.line.First; {
		case first == nil || first.Seq > did.fetch.last: // its callers are served
			u.unserved = 0
		case did.unserved == ErrTooSlow && w.Doubted(): // a Reset or a hold has overtaken the reply, which was in time
		case u.unserved < 2: // the next fetch opens a new window
			u.unserved++
		default: // the third in a row: the callers get an error, which says why it has happened the last time
			u.unserved = 0
			k.inUse().backOff(now, LongestPause)
			k.fallBack(did.fetch.last, now, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: did.unserved})
		}
	}
	published := u.line.Active == 0 // otherwise a newcomer could take what the line waits for
	if published {                  // before the look for a surplus, which goes back out of the stock
		k.publish()
	}
	if u.hold.holders != nil && k.shard.Open.Load() {
		u.hold.tell(k.shard.OpenError())
	}

	// Decide. After the line is served: what it leaves is the stock that a batch is sized for, and that may go back. And once, because two
	// decisions of one event could send a return and a prefetch, which bring back what others have called.
	var idle, look int64
	if w != nil && u.fetch == nil && (u.demand != nil || k.phase >= leaving || k.env.Direct) { // a reply may bring what others want
		idle, look = k.look(now, alive)
	}
	var debt, back int64
	if w != nil {
		debt, back = k.Owed(now)
	}
	// Debt can wait for a statement that is made anyway, but not so long that a lost one could not be said again.
	facts := k.facts(now, alive, did)
	if facts.Surplus, facts.Look = idle, look; debt > 0 {
		if facts.Charge = 1; u.owes != 0 { // early enough for a second try
			facts.Charge = max(min(u.owes+int64(k.Limit.Load().Window)/chargePart, k.Until()-2*k.shard.Lead.Load()), 1)
		}
	}
	facts.Unconfirmed = k.phase == leaving || back > 0 && !k.Limit.Load().Rolls // what is unspent of a bucket goes along with the next statement
	why, class, at := next.Step(facts)
	// A call that nobody waits for needs a slot. Without one the key stands in line, and something more urgent may still be due.
	for why != next.None && class != next.AtOnce && !k.shard.takeSlot(&k.node.State, &did.slot, class, facts.Open) {
		facts.InLine = k.inLine // now only what is more urgent
		why, class, at = next.Step(facts)
	}

	// Act. The order is written here, so that it states the account of this moment; it is sent when the lock is released. The timer comes
	// last: a fetch that is ordered needs none, because its end is an event.
	if why != next.None && k.env.Calls.Begin() {
		f = k.order(why, now, alive, did.probe, facts.Surplus)
		f.slot = did.slot
	}
	if f != nil || !published { // what the order has left; or what is at hand, unless a fetch may bring what callers wait for
		k.publish()
	}
	// A timer that fires too early only looks again. So one that is set for an earlier time stays, and most events leave it alone.
	if at != next.Never && !(now < u.due && u.due <= at) {
		k.inUse()
		if u.due = at; u.timer == nil {
			u.timer = time.AfterFunc(time.Duration(at-now), k.node.State.tick)
		} else {
			u.timer.Reset(time.Duration(at - now))
		}
	}
	invariant.That(u.denial.State != denial.Denied || k.Lease.Load() != nil || k.parted, "denied until %d without a lease", u.denial.Until)
	return f
}

// tick is the event that the key's timer fires.
func (k *Key) tick() {
	k.event(func(int64) effect { k.use.due = 0; return changed })
}

// findShard looks up the shard that the key is on now. Without Parts it is always the one that the key was made with. A forgotten key is on
// none.
func (k *machine) findShard() {
	if k.phase == retired {
		return
	}
	if s := k.env.Shard(placement.Named(k.env.Name, k.node.Key)); s != k.shard {
		k.shard.keys.Add(-1)
		s.keys.Add(1)
		k.shard, k.inLine = s, 0
	}
}

// inUse makes the key one in use: what is known of its use outlasts the step from now on. Whatever is not to be forgotten calls it. Most keys
// are fetched for once, and one observation says nothing, so the first fetch does not.
func (k *machine) inUse() *use {
	u := k.use
	if u.demand != nil {
		return u
	}
	// The first fetch left no record but its time and what it was granted, and the lease has its reading: that is the first observation.
	limit := *k.Limit.Load()
	u.demand = demand.New(k.Account.Balance, k.first)
	u.spread = spread(limit.Window)
	u.surplus.Known = k.idle()
	if w := k.Lease.Load(); w != nil && k.first != 0 { // it was read once, at k.first
		u.demand.Opened(limit.Window, 0, 0)
		u.demand.Reply(demand.Reply{Limit: limit, State: backend.State{Window: w.Window, Left: time.Duration(w.Latest - k.first), Remaining: w.Remaining.Load()}})
	}
	return u
}

// spread is how long after a reset this process waits before it calls the store.
func spread(window time.Duration) int64 {
	return int64(chance.Part(min(window/spreadPart, spreadMax)))
}

// observe brings the estimate of the demand up to date.
func (k *machine) observe(now int64) {
	k.inUse().demand.Observe(k.Limit.Load().Window, now, k.demanded(), int64(k.largest.Swap(0)))
}

// demanded is by what the demand is estimated: the tokens spent. Of a rolling limit those that were refused count, too, because callers
// are refused for a part of each bucket.
func (k *machine) demanded() int64 {
	if k.Limit.Load().Rolls {
		return k.Spent() + k.Refusals.Load()
	}
	return k.Spent()
}

// publish gives the hot path the tokens that the line does not need, and lets it refuse
// while the key is denied. While a fetch is in flight for callers in line, or they wait for a recall, tokens stay
// reserved, or a newcomer would pass them, and nobody is refused without the lock, because there may soon be enough.
func (k *machine) publish() {
	u := k.use
	if u.denial.State == denial.Held { // nothing is spent. What outlasts the window is refused under the lock, which needs no lease
		until := int64(0)
		if w := k.Lease.Load(); w != nil && u.denial.Until <= w.Latest && k.phase < leaving {
			until = min(u.denial.Until, u.denial.Look)
		}
		k.Withhold(until)
		return
	}
	// The tokens at hand are those of callers in line; a fetch or others bring more.
	if u.line.Active > 0 && (u.fetch != nil || u.denial.State == denial.Recalled) {
		return
	}
	until := u.denial.Until
	if k.phase >= leaving { // the next caller must come by the lock
		until = 0
	} else if until != 0 {
		if k.env.ByKey { // so must one now and then, to ask whether the limit was raised
			until = min(until, u.denial.Recheck)
		}
		if at := k.Frees(); at != 0 { // or a probe would put off what a refusal has said
			until = min(until, at)
		}
	}
	k.Publish(until)
}

// idle is how many of the tokens that the key holds nobody here waits for. That is what a
// statement says to be idle, and all of it goes back when others want it: a key that keeps
// what it will use soon makes refusals elsewhere untrue if its callers have moved on.
func (k *machine) idle() int64 { return max(k.Held()-k.use.line.Tokens, 0) }

// How far a key looks ahead. A Part divides the window, or a bucket.
const (
	spreadPart = 200 // over which processes spread their calls at the reset
	spreadMax  = 5 * time.Millisecond
	renewPart  = 7  // of a bucket, over which they spread those for the next ones
	freesPart  = 20 // of a bucket, over which they spread those for tokens that count no more
	quietPart  = 8  // of a bucket, for which a key orders nothing ahead after it has got nothing
	rareTimes  = 2  // in a window all processes together look whether something has come back to a rolling limit before a refusal ends
	worthTwo   = 2  // tokens used in a bucket from which on they are ordered ahead
	keepPart   = 50 // of the limit, that all processes together keep to which no message comes
)

// bucket is the length of a bucket of a rolling limit.
func bucket(window time.Duration) time.Duration { return window / backend.Buckets }

// facts returns all facts of the key on which its next call depends, but what lies idle and what the store has not confirmed. It changes nothing.
func (k *machine) facts(now int64, alive bool, did effect) next.Facts {
	w, u, l, rolls := k.Lease.Load(), k.use, k.Limit.Load(), k.Limit.Load().Rolls
	f := next.Facts{
		Now: now, Closed: k.env.Closed.Load(), Open: k.shard.Open.Load(), InLine: k.inLine, InFlight: u.fetch != nil,
		Active: u.line.Active, Passing: u.line.Passing, Parked: u.line.Parked,
		Denied: u.denial.Until, Probe: did.probe > 0, Alive: alive,
		Backoff: u.backoff, Rejected: u.rejected, Spread: u.spread, Recalled: u.surplus.Recalled.End != 0,
	}
	if u.denial.State == denial.Recalled {
		f.Recall = u.denial.Ask
	}
	if u.denial.State == denial.Held {
		f.Held, f.Unsaid = true, u.hold.unsaid > now
		if u.line.Parked > 0 { // who else comes looks at once
			f.Denied = min(u.denial.Until, u.denial.Look)
		}
	}
	if did.expects {
		f.Probe, f.Active, f.Passing = false, f.Active+1, f.Passing+1
	}
	if f.Open {
		f.Ask = max(k.shard.NextTry(), now) + int64(trySlack)
	}
	if w == nil {
		return f
	}
	f.Over = w.Latest
	// A fetch has just found the old window again, though it is over by our clock, because
	// the store's clock is behind or a millisecond is left. Asking at once would be a loop.
	// A window that a Reset has voided may have long to go, and is not waited for.
	f.Ending = !rolls && u.unserved > 0 && !f.Alive && !w.Doubted()
	f.Low = w.Reorder.Load() == tokens.Due && w.Remaining.Load() > 0

	// What to order ahead. A held key would get nothing.
	if f.Held {
		f.Low = false
		return f
	}
	if u.demand == nil || k.phase >= leaving || k.env.Direct {
		return f
	}
	if t := k.sizes(now, alive); !rolls {
		f.Regular = u.demand.Regular(&t)
		f.Used = u.demand.UsedIn(k.Spent(), k.Refusals.Load())
	} else {
		f.Low = f.Low && now >= u.quiet
		if until, last := k.Last(); last != 0 && t.Ahead() && u.demand.Uses(*l, bucket(l.Window), now, k.demanded()) >= worthTwo {
			f.Renew = max(until-int64(min(2*t.Lead, bucket(l.Window)/2))-u.spread, u.quiet)
		}
	}
	return f
}

// trySlack is how long after the time of a shard's next try a key looks whether its circuit is still open.
const trySlack = 20 * time.Millisecond

// look looks for tokens that go back before anybody here needs them: because others want them, because the key leaves, or because the store
// cannot call them. It returns how many go now, and when to look again; 0 = no need. No fetch is in flight.
func (k *machine) look(now int64, alive bool) (n, at int64) {
	w, u, l, rolls := k.Lease.Load(), k.use, k.Limit.Load(), k.Limit.Load().Rolls
	stock, back := w.Stock.Load(), int64(0)
	if rolls { // what is unspent of a bucket that is over goes along with the next statement, if the store knows of it
		_, back = k.Account.Unconfirmed()
	}
	switch {
	case k.phase >= leaving: // all, also what a hold withholds; nobody is in line
		return k.Held() + back, 0
	// It holds no stock: what a fetch brought for callers who have left goes back at once.
	case k.env.Direct:
		return stock + back, 0
	// The window ends before a statement could say it.
	case now >= k.Until():
		return 0, 0
	case u.surplus.Recalled.End != 0 || k.env.Caller.Hears(placement.Named(k.env.Name, k.node.Key)):
		return u.surplus.Look(surplus.View{
			Now: now, Window: w.Window, Rolls: rolls, Idle: min(k.idle(), stock) + back, Tokens: l.Tokens, Length: l.Window, Lead: time.Duration(k.shard.Lead.Load()), Short: k.short,
		})
	}

	// No message would come. Near the limit it looks for what will not be used while the limit lasts, and returns that if it is half of the
	// stock, because less is not worth a call. Nor is a stock that all such processes together may hold.
	t, pause := k.sizes(now, alive), l.Window/surplus.LookPart
	if !k.short || stock <= l.Tokens/keepPart/t.Clients {
		return 0, 0
	}
	if at = u.surplus.Due(now, pause); now < at { // the rate is not known yet
		return 0, at
	}
	u.surplus.Since = now
	lasts := l.Window
	if !rolls {
		lasts = u.demand.Lasts(&t)
	}
	soon := u.demand.Uses(t.Limit, max(min(lasts, t.Left), pause), now, k.demanded())
	if n = min(k.idle()-int64(soon), stock); n <= stock/2 {
		n = 0
	}
	return n, now + int64(pause)
}

// serve serves the line; nothing else decides which callers in line are served. They can
// get the tokens at hand and those that the store has left. fresh says that the store's
// rest was read just now. Otherwise it is known only while the key is denied, and a caller
// that cannot be served at once waits for a fetch.
func (k *machine) serve(now int64, alive, fresh bool) {
	u := k.use
	if u.line.Len == 0 {
		return
	}
	w, l := k.Lease.Load(), k.Limit.Load()
	rest := int64(math.MaxInt64)
	var hand int64
	var to waiters.Windows // not needed before the rest is known
	held := u.denial.State == denial.Held
	// rest is what the store may have beyond what is at hand. Nothing is known of it, so it may be any number, until a reply has told
	// or a denial says so.
	if held {
		rest, to = 0, waiters.Windows{Next: max(u.denial.Until, now+1), Length: int64(l.Window), Tokens: l.Tokens}
	} else if alive {
		k.Reserve()
		hand = k.Reserved
		if until := u.denial.Until; fresh || until != 0 && now < max(until, k.Frees()) {
			rest, to = w.Remaining.Load(), waiters.Windows{Next: max(w.Reset.Load(), now+1), Length: int64(l.Window), Tokens: l.Tokens}
		}
	}
	u.line.Serve(hand, rest, to, func(c *waiter, v waiters.Verdict) {
		// Whoever comes next for as much gets the same answer from memory.
		if v != waiters.Grant && u.denial.State < denial.Denied { // the store has too little
			k.deny(now, 1)
		}
		var o Verdict
		from := Fetched
		if p := &k.env.Sizing; k.env.Direct || p.Max > 0 && c.N > p.Max || p.Kind == demand.Fixed && c.N > p.Min { // more than a batch brings
			from = Direct
		}
		switch v {
		case waiters.Grant:
			k.Reserved -= c.N
			k.Used(c.N)
			o.Answer = k.answer(true, c.N, now, from)
		case waiters.Refuse:
			k.Refusals.Add(1)
			o.Answer = k.answer(false, c.N, now, from)
		case waiters.Miss:
			o.Err = ErrDeadline
		}
		if v != waiters.Miss {
			u.unserved = 0
		}
		u.line.Notify(c, o)
	})
	if u.denial.State < denial.Denied && u.line.Parked > 0 { // the store has too little
		k.deny(now, 1)
	}
	if k.shard.Open.Load() && !held { // the others get none
		k.fallBack(u.line.Last, now, k.shard.OpenError())
	}
}

// answer answers a request for n tokens.
func (k *machine) answer(allowed bool, n, now int64, from Source) Answer {
	w, l, d := k.Lease.Load(), k.Limit.Load(), &k.use.denial
	a := Answer{Allowed: allowed, Source: from, Limit: l.Tokens, Window: l.Window}
	if w != nil {
		a.Remaining = min(w.Remaining.Load()+w.Stock.Load()+k.Reserved, l.Tokens)
		a.Of, a.Bucket, a.Reset = w.Window, w.Bucket, w.Window.Time()
	}
	if d.State == denial.Held {
		a.Remaining, a.Shadowed, a.RetryAfter = 0, l.Shadow, time.Duration(max(d.Until-now, 1))
		if end := time.Now().Add(a.RetryAfter); end.After(a.Reset) {
			a.Reset = end
		}
	} else if allowed {
		a.Charged = n
	} else {
		a.Shadowed, a.RetryAfter = l.Shadow, RetryAfter(time.Duration(w.Reset.Load()-now), tokens.Longest(*l))
	}
	return a
}

// exhaustedTimes is how much more rarely a key probes that has heard that the limit is used up, or all of whose callers stay. It hears of tokens that come back, too, unless
// that message is lost or many wait for it.
const exhaustedTimes = 4

// deny refuses from memory: until it is this process' turn to probe, times as late as usual, or the window ends or, of a rolling limit, some
// tokens count no more.
func (k *machine) deny(now int64, times time.Duration) {
	u, w, window := k.inUse(), k.Lease.Load(), k.Limit.Load().Window
	if u.denial.State == denial.Held {
		return
	}
	ends, mean := w.Latest, times*window/denial.Times
	// A rolling limit has no reset. The denial ends by the time of a call before more tokens count no more, so that a call finds them.
	if at := k.Frees(); at != 0 {
		ends, mean = max(at, now+1)-u.trip-tokens.Rounding, times*window/rareTimes
	} else if u.demand.Exhausted == 0 {
		k.observe(now)
		u.demand.Exhausted = now
	}
	clients := time.Duration(max(k.clients, 1)) // times a year they overflow
	u.denial.Deny(now, ends, min(mean, math.MaxInt64/64/clients)*clients, window)
}
