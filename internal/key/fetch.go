package key

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// Fetch is a statement to the store, from its order to the reply. The limiter sends it, and
// calls its methods from one goroutine.
type Fetch struct {
	Req     backend.Statement
	Cause   next.Cause
	Reason  string // for the size of the batch
	Shard   *Shard
	Ordered int64         // time of the order, before its goroutine was scheduled; 0 of a shard's try
	Timeout time.Duration // how long its call may take

	k         *Key   // nil of a shard's try
	asks      bool   // for tokens; others only state the account. Renew does: for the buckets after the last of which the key has tokens
	last      uint64 // sequence number of the last caller that it was sized for
	slot      slot
	holds     int64          // until when the statement holds the key; 0 = it does not
	holders   []chan<- error // who wait for that
	overtaken bool           // a message that the key is held came meanwhile, so what the reply grants is not spent before another one
	void      int64          // a Reset meanwhile has voided windows of lower generations, so the reply says nothing of these
}

// order orders a fetch: it writes the statement, which may ask for a batch. From the second fetch on it first brings the demand estimate
// up to date.
func (k *machine) order(why next.Cause, now int64, alive bool, probe, surplus int64) *Fetch {
	if k.env.Parts != nil { // a cluster's slots move
		k.findShard()
	}
	u, w, counts, q := k.use, k.Lease.Load(), &k.env.Counts, backend.Statement{}
	f := &Fetch{k: &k.node.State, Cause: why, Ordered: now, Shard: k.shard, Timeout: k.shard.Timeout(), last: u.line.Last}
	u.fetch, f.asks = f, why != next.Charge && why != next.Return && why != next.Hold

	// What goes back first: others may want it, or it would not be used.
	switch why {
	case next.Renew:
		until, _ := k.Last()
		uses := u.demand.Uses(*k.Limit.Load(), time.Duration(until-now), now, k.demanded())
		surplus = max(k.idle()-int64(math.Ceil(uses+3*math.Sqrt(uses))), 0) // three deviations more stay
	case next.Probe:
		counts.Probes.Add(1)
	case next.Prefetch:
		counts.Prefetches.Add(1)
	}
	if why == next.Return || why == next.Renew {
		if k.phase >= leaving && surplus > 0 {
			surplus = -1 // all
		}
		if surplus != 0 && k.Return(surplus) > 0 {
			u.denial.Open() // a caller who comes now may get what goes back
			if k.phase < leaving && !k.env.Direct {
				counts.GiveBacks.Add(1)
			}
		}
		if why == next.Return {
			if u.demand.EndRun(); u.surplus.Recalled.End != 0 {
				u.surplus.Recalled = backend.Window{}
				w.CancelOrder() // or a batch would bring back here what others wait for
			}
		}
	}
	if f.asks {
		if k.first == 0 {
			k.first = max(now, 1)
		} else {
			k.observe(now)
		}
	}

	// The account. After what goes back, which it states.
	// The limit is the present one, whatever it was when the stock was granted: the store compares it with what is charged.
	l := *k.Limit.Load()
	q = backend.Statement{Key: placement.Named(k.env.Name, k.node.Key), Client: k.env.Client, Limit: l.Plain(), Runs: alive}
	q.Leaving = k.phase >= leaving
	if l.Calendar.Period != 0 {
		q.Begin, q.End = Period(l, k.shard.Clock())
	}
	// Whoever was called has had time to answer, or not: the store does not wait for one that has let it pass.
	if u.denial.Ask != 0 {
		q.Waited, q.GaveUp = u.denial.Waited(now)
	}
	var of backend.Window
	if w != nil {
		of = w.Window
	}
	held, spent := k.Held(), k.Spent()
	k.Account.State(&q, of)
	switch {
	case l.Rolls:
		q.Pace = int64(u.demand.Uses(l, l.Window, now, k.demanded()))
		q.Within = time.Duration(k.shard.Lead.Load()) * 5 / 4 << u.unserved // longer after a reply that came too late
		if why == next.Renew {
			_, q.After = k.Last()
		}
	case u.demand != nil:
		q.Pace = u.demand.PerWindow(l)
	}
	// What the store may call back. Without messages it could not, so it must not count on it.
	free := max(held-u.line.Tokens, 0)
	if q.Deaf = !k.env.Caller.Hears(q.Key); !q.Deaf {
		q.Idle = free
	}
	if u.hold.unsaid > now && u.denial.State == denial.Held { // the hold, of which the store has not heard
		q.Hold = time.Duration(u.hold.unsaid - now)
		f.holds, f.holders, u.hold.holders = u.hold.unsaid, u.hold.holders, nil
	}

	// What to ask for. The store must grant all that the first caller in line lacks, or nothing.
	if f.asks {
		var hand, forLine int64
		if alive {
			hand = held
		}
		if u.line.Active > 0 {
			forLine = hand
		}
		least := probe // a grant to a probe is useful only if it serves the refused request
		if first := u.line.First; first != nil {
			if least = max(first.N-forLine, 0); first.Some {
				least = min(least, max(1-forLine, 0))
			}
		}
		q.Need = min(max(u.line.Tokens-forLine, 0)+probe, l.Tokens)
		q.Least = min(least, q.Need)
		t := k.sizes(now, alive)
		o := u.demand.Order(&t, demand.Need{
			Now: now, Callers: u.joined, Tokens: q.Need, Waiting: u.line.Tokens, Stock: hand - forLine, Free: free, Spent: spent,
			Runs: why != next.Probe && !q.Deaf && alive,
		})
		u.joined = 0
		q.Want, q.Exact, q.Run, f.Reason = o.Want, o.Exact, o.Run, o.Reason
		if why == next.Probe && k.Limit.Load().Rolls { // nobody waits, so no tokens that come later are promised
			q.Want, q.Need, q.Least, q.Exact = q.Need, 0, 0, true
		}
	}
	f.Req = q
	return f
}

// sizes returns what sizes depend on besides the demand. alive says that the lease is.
func (k *machine) sizes(now int64, alive bool) demand.Terms {
	w, e, l := k.Lease.Load(), k.env, *k.Limit.Load()
	t := demand.Terms{Policy: e.Sizing, Limit: l, Clients: int64(max(k.clients, 1)), Lead: time.Duration(k.shard.Lead.Load()), Open: alive, Left: l.Window}
	if e.Direct {
		t.Kind = demand.Direct
	}
	switch {
	case l.Rolls:
		t.Open, t.Left = true, bucket(l.Window)*backend.Ahead
	case alive:
		t.Left, t.Passed = time.Duration(w.Deadline.Load()-now), l.Window-time.Duration(w.Latest-now)
	}
	return t
}

// relimit writes the statement anew for a limit that has changed since.
func (f *Fetch) relimit() {
	k, q := f.k, &f.Req
	if k.parted { // what it brought would only have to go back
		q.Want, q.Need, q.Least, q.Leaving = 0, 0, 0, true
		return
	}
	q.Limit = k.Limit.Load().Plain()
	most := q.Limit.Tokens
	q.Want, q.Need, q.Least, q.Pace, q.Run = min(q.Want, most), min(q.Need, most), min(q.Least, most), min(q.Pace, most), min(q.Run, most)
}

// begin brings the statement up to date, immediately before it is sent. Unless the key leaves, it may ask for the
// key's limit, and returns the error of that.
func (f *Fetch) begin() error {
	if !f.k.env.varies || f.Req.Leaving {
		return nil
	}
	_, err := f.k.AskLimit(f) // it may panic
	return err
}

// Trip is how long the call of a fetch has taken.
type Trip struct{ Ordered, Sent, End int64 }

// connectTime is how long a call may take that nobody waits for, or that is among the first to a server: dial, TLS,
// handshake and the first load of a script, on a far server.
const connectTime = 2 * time.Second

// Timeout is how long a call may take. Until one has ended, there is no connection, and to make one is no outage.
func (s *Shard) Timeout() time.Duration {
	if s.met.Load() {
		return s.env.Timeout
	}
	return max(s.env.Timeout, connectTime)
}

// End applies the reply to f, or the error of its call, and serves the line. It returns the error of f.
func (f *Fetch) End(c Trip, r backend.Reply, err error) error {
	k := f.k
	if k == nil {
		return err
	}
	var idle bool
	k.event(func(now int64) effect {
		u, did := k.use, changed
		u.fetch = nil
		did.fetch = f
		switch {
		case err != nil:
			f.said(u, err)
			f.failed(now, err)
		case k.phase == retired:
			f.said(u, ErrClosed)
			k.env.Counts.Expire(r.Grant)
		case r.Void: // a copy of this statement was there before; the next one states the account again
			f.unheard(u)
			k.replyLost = true // nobody has read what the copy was granted, and it must go back, though no caller may come
			if k.inUse(); f.asks {
				u.failedAt = max(now, 1)
			}
			if u.void { // twice: the network repeats all
				u.backOff(now, LongestPause)
			}
			u.void, did.unserved = true, errRepeats
		case r.Astray: // nothing was done; the next one goes by the store's clock
			f.unheard(u)
			if k.inUse().astray++; u.astray == MaxAstray {
				u.astray, err = 0, ErrorAstray()
				u.hold.tell(err)
				f.failed(now, err)
			}
		default:
			if u.astray = 0; f.holds != 0 {
				f.said(u, nil)
			}
			waits := f.apply(c, &r, now)
			if r.Window.Gen < f.void { // a Reset has overtaken the reply
				k.void(now)
			} else if r.Window.Gen <= u.voided.Gen { // the message was false, and a true one may come
				u.voided, u.copied = backend.Window{}, false
			}
			if w := k.Lease.Load(); f.overtaken && w != nil {
				w.Doubt(now)
			}
			if did.fresh = !waits && k.Limit.Load().Tokens <= f.Req.Limit.Tokens; !waits {
				did.unserved = ErrTooSlow
			}
		}
		idle = k.phase >= leaving
		return did
	})
	if idle {
		k.Retire(true)
	}
	if f.slot.shard != nil {
		f.slot.release()
	}
	return err
}

// failed answers callers after f has failed. If f has timed out, it also answers the
// callers that came while f was in flight, because they have waited long enough. Otherwise
// they get a fetch of their own. So do all if only the reply is lost, and that for the first
// time in a row: the next statement asks anew, whatever became of this one.
func (f *Fetch) failed(now int64, err error) {
	k, last := f.k, f.last
	u := k.inUse()
	// A lost reply is no outage, so nobody is turned away because of one. Two in a row are.
	again := u.pause == 0 && lost(err)
	k.replyLost = true // even if the call was turned away: an earlier attempt may have arrived
	if now-f.Ordered >= int64(f.Timeout) {
		last = u.line.Last
	}
	if u.rejected = !Outage(err); f.asks { // others grant nothing
		u.failedAt = max(now, 1)
	}
	longest := LongestPause
	if u.rejected { // no circuit spares the store the calls of all other keys
		longest = min(max(longest, k.Limit.Load().Window/chargePart), time.Minute)
	}
	if u.backOff(now, longest); !again {
		k.fallBack(last, now, err)
	}
}

// lost reports whether a fetch with that error may have been carried out, or took too long.
func lost(err error) bool {
	failure, ok := errors.AsType[*backend.Error](err)
	return ok && (failure.Class == backend.Unknown || failure.Class == backend.Unavailable && errors.Is(err, context.DeadlineExceeded))
}

// backOff sets the pause after a failed fetch, before a fetch that no caller needs at once.
func (u *use) backOff(now int64, longest time.Duration) {
	u.pause = min(max(2*u.pause, FirstPause), longest)
	u.backoff = now + int64(u.pause/2+chance.Part(u.pause/2))
}

// fewUses is how many tokens of a key's first batch are used before the key counts as one in
// use, whose demand is estimated. Most keys are used less.
const fewUses = 3

// apply applies the reply to f. It reports whether callers in line wait for tokens that the store has called. The order of its steps:
//
//   - What was spent in the old window is read before the account changes, or debt that the store has just charged would count as demand
//     twice; and what a denial knew before the recall ends it, or a probe that finds nothing new would let all callers ask at once.
//   - The account comes before all that reads the stock and the lease, which are those of the reply from then on.
//   - The new window comes before all that is learnt of it, or Opened would forget that again.
//   - The recall comes before the denial, or callers would be refused while others return what they wait for.
//   - The denial comes before the re-order point, or a key that refuses would order batches which the store does not have.
func (f *Fetch) apply(c Trip, r *backend.Reply, now int64) (waits bool) {
	k, q, rolls := f.k, &f.Req, f.k.Limit.Load().Rolls
	u, spent, l := k.use, k.Spent(), *k.Limit.Load()
	k.replyLost = false
	u.backoff, u.pause, u.rejected, u.void = 0, 0, false, false
	rest := int64(-1) // what the store had left when a caller was refused
	if u.denial.State == denial.Denied {
		rest = k.Lease.Load().Remaining.Load()
	}

	// The account: what the store has charged, and the grant.
	m, entered := k.Apply(q, r, c.Sent, now)
	// Taken has the debt that this statement has settled, too; it is no demand of this moment.
	debt := m.Taken - r.Grant
	if k.env.Counts.Move(m); debt != 0 {
		k.env.Counts.Extra.Add(k.node.Hash, debt)
	}
	if q.Leaving && k.phase == leaving && k.Empty() { // or the last statement was not the last: something was settled since
		k.phase = left
	}

	// The window, if it is another one.
	if entered {
		k.short, k.clients, rest = false, k.reported, -1
		if u.demand != nil {
			u.demand.Observe(l.Window, now, spent, int64(k.largest.Swap(0)))
			u.demand.Opened(l.Window, spent, k.Refusals.Load())
			u.spread = spread(l.Window)
			u.surplus.Known, u.surplus.Since = 0, 0 // what was known is of the window before
		}
	}
	// Clients of the last window come back, mostly: a count of the new one alone would make each the only one, and batches too large.
	if k.reported = uint16(min(r.Clients, math.MaxUint16)); rolls {
		k.clients = k.reported
	}
	k.clients = max(k.reported, k.clients)

	// A hold, during which nothing is granted or called. Its end is the latest that it may be, because to send a moment early is worse than
	// a moment late. Before the recall and the denial, which a held key does not change.
	is, old := u.denial.State == denial.Held, c.Sent < u.hold.since || u.hold.unsaid != 0
	switch {
	case r.Window.Gen < f.void: // a Reset has ended what it says of a hold
	case r.Held > 0:
		until := now + int64(r.Held) + int64(r.Held)/tokens.Drift
		if is && old {
			until = max(until, u.denial.Until)
		}
		k.hold(now, until)
		u.hold.ends = (r.Now + r.Held.Microseconds()) / 1000
		u.hold.sure = max(u.hold.sure, c.Sent+int64(r.Held)-int64(r.Held)/tokens.Drift)
	case is && !old: // a Reset has ended it, or the store's clock is faster
		u.hold.forget(nil)
		u.denial.Reset()
	}

	// The recall: may callers whom the reply does not serve get what others give back?
	lacks := r.Grant < q.Need
	recall := denial.Reply{
		Trip: time.Duration(c.End - c.Sent), Some: r.Grant > 0 || !rolls && r.Window != q.Window, GaveUp: q.GaveUp, Called: r.Called > 0,
		Patience: min(l.Window/backend.RecallPart, k.env.Timeout),
		InVain:   lacks || r.Grant == 0 && q.Want > 0 && r.Called > 0 && u.line.Active > 0, // those who came during a prefetch that gets nothing have asked by it
		Served:   r.Called == 0 && (r.Idle == 0 || rolls && lacks) || !lacks && r.Remaining > 0 && u.line.Tokens-k.Held() <= r.Remaining,
	}
	if !recall.Served {
		k.inUse()
	}
	if !recall.Served || u.denial.State != denial.Open || u.denial.Ask != 0 { // else nobody was called, nor has to be
		waits = u.denial.Await(recall, now)
	}

	if k.Lease.Load() != nil { // else nothing is charged, and so no window is open
		f.expect(c, r, now, debt, rest, waits)
	}
	return waits
}

// expect is the part of apply that says what to expect of the rest of the window: what others may call back here, whether the store has too
// little, and when to order more. debt is what it has charged beside the grant, and rest what it had left when a caller was refused, or -1.
func (f *Fetch) expect(c Trip, r *backend.Reply, now, debt, rest int64, waits bool) {
	k, q, rolls := f.k, &f.Req, f.k.Limit.Load().Rolls
	u, w, l := k.use, k.Lease.Load(), *k.Limit.Load()
	if u.owes != 0 { // debt settled during the fetch can wait, too
		u.owes = now
	}

	// What the store believes idle here. A look compares it with what is idle, and a key that forgot to say so would be called in vain, or never.
	hears := !q.Deaf && k.env.Caller.Hears(q.Key) // perhaps messages have ceased meanwhile
	held, alive := k.Reserved+w.Stock.Load(), now < w.Deadline.Load()
	t, reorder := k.sizes(now, alive), int64(-1)
	known := q.Idle + max(r.Grant-q.Need, 0) // what it was told, and what it granted beyond the need
	switch {
	case !hears:
		known = -1
	case q.Leaving:
		known = 0
	}
	if u.demand != nil || held-u.line.Tokens > max(known, 0) || r.Lasted > 0 { // or callers have left during the fetch
		k.inUse().surplus.Known = known
	}

	// While it is held the store grants nothing, so it also says that nothing remains.
	if r.Held > 0 { // the rest says nothing of what was used
		u.trip = now - c.Sent
		w.Reorder.Store(tokens.None)
		return
	}

	// How long the limit lasts, and when tokens of a rolling one count no more.
	if u.demand != nil {
		u.demand.Reply(demand.Reply{Limit: l, State: r.State, Lasted: r.Lasted, Grant: r.Grant, Others: r.Used - r.Grant - q.Used, Charged: debt})
	}
	frees, due := r.Frees, rolls && now >= w.Reset.Load() // due: the token that is promised to those who wait here may be free by now
	if k.short = demand.Short(l, r.State); rolls {
		if k.short = frees > 0 || r.Remaining < l.Tokens/backend.Buckets; frees > 0 { // processes do not all ask at once
			frees += chance.Part(bucket(l.Window) / freesPart)
		}
		if f.Cause != next.Probe || r.Grant > 0 || due { // else what a refusal has said before stays true
			w.Free(frees, now)
		}
	}
	u.trip = now - c.Sent

	// A denial. Only now: it reads when tokens count no more, which Free has just set. It comes if the store has too little for some caller: nothing, too little for the first one that f was made for, or no more than
	// when a caller was refused. The reading is newer than the denial, unless the limit was raised since.
	none := r.Remaining == 0 && !(rolls && (r.Idle > 0 || !f.asks)) || r.Grant < q.Least || rest >= 0 && r.Remaining <= rest
	if rolls && f.Cause == next.Probe && r.Grant == 0 && u.line.Parked > 0 && !due { // what is free was promised to others, and theirs comes in its turn
		none = true
		w.Remaining.Store(0)
	}
	if none && !waits && q.Limit.Tokens >= l.Tokens {
		times := time.Duration(1)
		if hears && u.line.Len > 0 && u.line.Passing == 0 { // all stay until tokens come back, and hear of those
			times = exhaustedTimes
		}
		k.deny(now, times)
	} else if u.demand != nil {
		u.demand.Exhausted = 0
	}

	// When to order the next batch. If the store grants only what is needed, the limit is too small for batches. If it grants less
	// than half of the smallest batch, the limit runs out, and a caller may never come for the next.
	orders := u.denial.State != denial.Denied && r.Remaining > 0
	switch {
	case !rolls:
		worth := q.Need + 1
		if hears {
			worth = max(worth, demand.Floor(l.Tokens, t.Clients)/2)
		}
		orders = orders && r.Grant >= min(q.Want, worth)
	case u.demand != nil:
		u.spread = int64(chance.Part(bucket(l.Window) / renewPart))
		if u.quiet = 0; frees > 0 {
			u.quiet = c.Sent + int64(frees)
		} else if f.asks && r.Grant == 0 { // nothing is to be had ahead of time
			u.quiet = now + int64(bucket(l.Window)/quietPart)
		}
		orders = orders && u.quiet == 0 && u.demand.Uses(l, bucket(l.Window), now, k.demanded()) >= worthTwo
	}
	if orders {
		if reorder = u.demand.ReorderPoint(&t); u.demand == nil && reorder >= 0 {
			reorder = max(held-u.line.Tokens-fewUses, reorder)
		}
	}
	if f.asks && u.demand != nil {
		k.setReorder(&t, reorder)
	} else if f.asks || w.Reorder.Load() != tokens.Due { // it was reached meanwhile
		w.Reorder.Store(reorder)
	}
}
