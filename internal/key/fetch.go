package key

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// Fetch is a statement to the store, from its order to the reply. The limiter sends it, and
// calls its methods from one goroutine.
type Fetch struct {
	Req    backend.Statement
	Cause  next.Cause
	Reason string // for the size of the batch
	Shard  *Shard

	k       *Key
	last    uint64 // sequence number of the last caller that it was sized for
	ordered int64  // time of the order, before its goroutine was scheduled
	slot    slot   // of the lane, if it needs one
	void    int64  // a Reset meanwhile has voided windows of lower generations, so the reply says nothing of these
}

// asks reports whether the statement asks for a batch; others only state the account.
func (f *Fetch) asks() bool {
	return f.Cause == next.Waiters || f.Cause == next.Probe || f.Cause == next.Reset || f.Cause == next.Prefetch || f.renews()
}

// renews reports whether the statement is for the buckets after the last of which the key has tokens.
func (f *Fetch) renews() bool { return f.Cause == next.Refresh && f.k.Limit().Rolls }

// order orders a fetch: it writes the statement, which may ask for a batch. From the second
// fetch on it first brings the demand estimate up to date. Most keys are fetched for once,
// and one observation says nothing.
func (k *Key) order(why next.Cause, now, probe, surplus int64) *Fetch {
	k.findShard()
	f := &Fetch{k: k, Cause: why, ordered: now, Shard: k.shard, last: k.queue.callers().Last()}
	switch why {
	case next.Refresh:
		if f.renews() { // what will not be used before
			f.giveBack(max(k.free()-k.kept(math.MaxInt64, 3, now), 0))
		}
	case next.Return:
		f.giveBack(surplus)
		k.use.demand().EndRun()
		if k.use != nil && k.use.recall.called.End != 0 {
			k.use.recall.called = backend.Window{}
			k.lease.Load().CancelOrder() // or a batch would bring back here what others wait for
		}
	case next.Probe:
		k.env.Counts.Probes.Add(1)
	case next.Prefetch:
		k.env.Counts.Prefetches.Add(1)
	}
	if f.asks() {
		if k.firstFetch == 0 {
			k.firstFetch = max(now, 1)
		} else {
			k.usage().observe(k, now)
		}
		k.use.demand().Ordered(now, k.shard.Lead(), k.queued().joined)
		k.queue.joined = 0
	}
	f.state(now)
	if f.asks() {
		f.size(probe)
	}
	k.queued().fetch = f
	return f
}

// giveBack takes the surplus out of the stock, or what callers have left of it meanwhile.
func (f *Fetch) giveBack(surplus int64) {
	k := f.k
	if surplus == 0 {
		return
	}
	w := k.lease.Load()
	if surplus, _ = w.SpendUpTo(surplus); surplus == 0 {
		return
	}
	k.account.Return(surplus, k.held())
	w.AddRemaining(surplus)
	k.allow() // a caller who comes now may get what goes back
	if !k.idle() && !k.env.Direct {
		k.env.Counts.GiveBacks.Add(1)
	}
}

// state states the account and asks for nothing.
func (f *Fetch) state(now int64) {
	k := f.k
	w, limit := k.lease.Load(), k.Limit()
	q := &f.Req
	*q = backend.Statement{Key: k.env.Stored(k.node.Key), Client: k.env.Client, Limit: limit.Plain(), Runs: w.Alive(now)}
	q.Begin, q.End = Period(*limit, k.shard.Clock())
	q.Pace, q.Leaving = k.use.demand().PerWindow(*limit), k.idle()
	if q.Deaf = !k.env.Caller.Hears(q.Key); !q.Deaf {
		q.Idle = k.free()
	}
	if k.use != nil {
		r := &k.use.recall
		q.Waited = r.again > 0 && now >= r.again
		q.GaveUp = q.Waited && r.asked > 0 && now >= r.until && now <= r.until+int64(k.longest()) // else it has not begun to wait
	}
	var of backend.Window
	if w != nil {
		of = w.Window
	}
	if k.account.State(q, of); limit.Rolls {
		f.stateRolling(now)
	}
}

// size writes into the statement how much to ask for. The store must grant all that the
// first caller in line lacks, or nothing.
func (f *Fetch) size(probe int64) {
	k, now := f.k, f.ordered
	s, line := k.situation(now), k.queue.callers()
	var hand, forLine int64
	if s.lease.Alive(now) {
		hand = k.held()
	}
	if line.Active() > 0 {
		forLine = hand
	}
	least := probe // a grant to a probe is useful only if it serves the refused request
	if first := line.First(); first != nil {
		least = max(first.N-forLine, 0)
	}
	q := &f.Req
	q.Need = min(max(line.Tokens()-forLine, 0)+probe, s.limit.Tokens)
	q.Least = min(least, q.Need)
	q.Want, f.Reason = q.Need, "direct"
	switch {
	case s.Direct:
	case s.limit.Rolls && s.guided(): // the store knows best how many buckets to grant for
		q.Want, f.Reason = max(q.Need, s.largest()), "pace"
	default:
		q.Want, f.Reason = s.batch(k.spent(), hand-forLine, line.Tokens())
		if q.Want = max(q.Want, q.Need); s.small {
			q.Want, f.Reason = q.Need, "small"
		}
	}
	q.Exact = s.exact()
	f.goOn(&s)
	if s.guided() && !s.limit.Rolls { // what is idle here already counts
		q.Want = min(q.Want, q.Need+max(s.most()-k.free(), 0))
	}
	s.demand.Asked(q.Want, k.spent())
}

// goOn says how long the run of this process is, if messages can call back what it brings. A
// small limit has batches only while one lasts.
func (f *Fetch) goOn(s *situation) {
	q := &f.Req
	if f.Cause == next.Probe || !s.guided() || q.Deaf || s.limit.Rolls || !s.lease.Alive(s.now) {
		return
	}
	most := s.largest()
	q.Run = min(s.demand.Run(), most)
	if s.small && float64(q.Run) > s.demand.Size() {
		q.Want, q.Exact, f.Reason = max(q.Want, min(q.Need+q.Run, most)), false, "run"
	}
}

// relimit writes the statement anew for a limit that has changed since.
func (f *Fetch) relimit() {
	k, q := f.k, &f.Req
	if k.parted { // what it brought would only have to go back
		q.Want, q.Need, q.Least, q.Leaving = 0, 0, 0, true
		return
	}
	q.Limit = k.Limit().Plain()
	most := q.Limit.Tokens
	q.Want, q.Need, q.Least, q.Pace, q.Run = min(q.Want, most), min(q.Need, most), min(q.Least, most), min(q.Pace, most), min(q.Run, most)
}

// Begin brings the statement up to date, immediately before it is sent. Unless the key leaves, it may ask for the
// key's limit, and returns the error of that.
func (f *Fetch) Begin() error {
	if !f.k.env.Varies() || f.Req.Leaving {
		return nil
	}
	_, err := f.k.AskLimit(f)
	return err
}

// Trip is when the call of a fetch was sent, and when it ended; the zero Trip is that of none.
type Trip struct {
	Sent, End int64
}

// End applies the reply to f, or the error of its call, and serves the line. It returns the
// error of f.
func (f *Fetch) End(c Trip, reply backend.Reply, err error) error {
	k := f.k
	var idle bool
	k.event(func(now int64) effect {
		k.queue.fetch = nil
		switch {
		case err != nil:
			f.failed(now, err)
		case k.phase == phaseRetired:
			k.env.Counts.Expire(reply.Grant)
		case reply.Void: // a copy of this statement was there before; the next one states the account again
			k.replyLost = true
			u := k.usage()
			if f.asks() { // what it was granted must go back
				u.failedAt = now
			}
			if u.void { // twice: the network repeats all, or another key has begun a later life
				u.backOff(now, LongestPause)
				if k.parted { // the limit is the old one again
					k.leaveWindow()
					k.replyLost = false
					k.lease.Store(nil)
					k.enter(phaseLeft)
				}
			}
			u.void = true
			f.countUnserved(now, errRepeats)
		case reply.Astray: // nothing was done; the next one goes by the store's clock
			if k.usage().astray++; k.use.astray == MaxAstray {
				k.use.astray, err = 0, ErrorAstray()
				f.failed(now, err)
			}
		default:
			if k.use != nil {
				k.use.astray = 0
			}
			f.Shard.ObserveLead(time.Duration(c.End - f.ordered))
			waits := f.awaits(c, &reply, now)
			f.apply(&reply, waits, c.Sent, now)
			if w := k.lease.Load(); w != nil && w.Window.Gen < f.void { // a Reset has overtaken the reply
				k.void(w, now)
			}
			waits = waits || k.lease.Load().Doubted()
			k.serve(now, !waits && k.Limit().Tokens <= f.Req.Limit.Tokens)
			if !waits {
				f.countUnserved(now, ErrTooSlow)
			}
		}
		idle = k.idle()
		return changed
	})
	if idle {
		k.Retire(true)
	}
	f.slot.free()
	return err
}

// failed answers callers after f has failed. If f has timed out, it also answers the
// callers that came while f was in flight, because they have waited long enough. Otherwise
// they get a fetch of their own.
func (f *Fetch) failed(now int64, err error) {
	k, last := f.k, f.last
	k.replyLost = true // even if the call was turned away: an earlier attempt may have arrived
	if now-f.ordered >= int64(k.env.Timeout) {
		last = k.queue.line.Last()
	}
	u, longest := k.usage(), LongestPause
	if k.account.Outstanding() && u.charge == 0 {
		u.charge = now // what it said must be said again
	}
	if u.rejected = !Outage(err); f.asks() { // others grant nothing
		u.failedAt = now
	}
	if u.rejected { // no circuit spares the store the calls of all other keys
		longest = min(max(longest, k.Limit().Window/chargePart), time.Minute)
	}
	u.backOff(now, longest)
	k.answer(last, now, err)
}

// countUnserved counts fetches in a row that served none of their callers, because the reply was
// void, or the grants came after the end of their window; the next fetch opens a new one. If that
// happens three times, the callers get an error, which says why it has happened the last time.
func (f *Fetch) countUnserved(now int64, why error) {
	q := f.k.queue
	first := q.line.First()
	if first == nil || first.Seq() > f.last {
		q.unserved = 0
		return
	}
	if q.unserved++; q.unserved < 3 {
		return
	}
	q.unserved = 0
	f.k.usage().backOff(now, LongestPause)
	f.k.answer(f.last, now, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: why})
}

// apply applies the reply to f: the account as the store has it, and a grant.
func (f *Fetch) apply(r *backend.Reply, waits bool, sent, now int64) {
	k, rolls := f.k, f.Req.Limit.Rolls
	k.replyLost = false
	if u := k.use; u != nil {
		u.backoff, u.pause, u.rejected, u.void, u.replied = 0, 0, false, false, now
	}
	if was := k.lease.Load(); rolls {
		f.bookRolling(was, r, sent, now)
	} else {
		f.book(was, r, now)
	}
	w := k.lease.Load()
	if f.Req.Leaving && k.phase == phaseLeaving && !k.account.Outstanding() { // nothing went back after the statement
		k.enter(phaseLeft)
	}
	if w == nil { // nothing is charged, and so no window is open
		return
	}
	if k.use != nil && k.use.charge != 0 && !rolls { // debt settled during the fetch can wait, too
		k.use.charge = k.chargeAt(w, now)
	}
	k.clients = max(k.reported, k.clients)
	denied := !waits && f.showsDenial(r, w)
	k.queue.reserved += w.Reserve()
	f.believes(r)
	if rolls {
		f.forecastRolling(r, w, denied, now)
		return
	}
	k.use.demand().Got(r.Grant, r.Used-r.Grant-f.Req.Used)
	w.Apply(r.State, sent, now)
	f.forecast(r, w, denied, now)
}

// showsDenial reports whether r shows that the store has too little for some caller: it has
// nothing, too little for the first one that f was made for, or no more than when a caller
// was refused. The reading is newer than the denial, unless the limit was raised since.
func (f *Fetch) showsDenial(r *backend.Reply, w *lease.Lease) bool {
	k := f.k
	none := r.Remaining == 0 && !(f.Req.Limit.Rolls && r.Idle > 0) || r.Grant < f.Req.Least || k.deniedUntil() != 0 && r.Remaining <= w.Remaining()
	return none && f.Req.Limit.Tokens >= k.Limit().Tokens
}

// book applies the reply to the account, and enters the reply's window. Tokens held in the
// window before have expired, unless the store has carried them over.
func (f *Fetch) book(w *lease.Lease, r *backend.Reply, now int64) {
	k := f.k
	var held int64
	spent := k.spent()
	kept, moved := account.Keeps(&f.Req, r), r.Window.End != 0
	if w != nil {
		moved = w.Window != r.Window
	}
	if moved {
		held = k.drain()
	}
	k.moved(k.account.Apply(&f.Req, r, held), r.Grant)
	if moved {
		if w = k.enterWindow(r.Window, spent, now); w != nil && kept {
			k.queue.reserved += held
			if k.use != nil {
				k.use.carried = f.Req.Window
			}
		}
	}
	k.queue.reserved += r.Grant
	k.reported = uint16(min(r.Clients, math.MaxUint16)) // not before enterWindow, which keeps the last window's count
}

// fewUses is how many tokens of a key's first batch are used before the key counts as one in
// use, whose demand is estimated. Most keys are used less.
const fewUses = 3

// forecast derives from a reply what to expect of the rest of the window.
func (f *Fetch) forecast(r *backend.Reply, w *lease.Lease, denied bool, now int64) {
	k, limit := f.k, *f.k.Limit()
	if r.Lasted > 0 {
		k.usage()
	}
	k.use.demand().Forecast(limit, r.State, r.Lasted)
	k.short = demand.Short(limit, r.State)
	k.allow()
	if denied {
		k.deny(w, now)
	} else {
		k.use.demand().Exhausted(0)
	}
	// If the store grants only what is needed, the limit is too small for batches. If it grants less
	// than half of the smallest batch, the limit runs out, and a caller may never come for the next.
	s, worth := k.situation(now), f.Req.Need+1
	if !f.Req.Deaf {
		worth = max(worth, s.floor()/2)
	}
	small := s.small || r.Grant < min(f.Req.Want, worth)
	reorder := int64(-1)
	if s.ahead() && s.expects() && !small && !denied && w.Remaining() > 0 {
		if reorder = s.reorder(); k.use == nil {
			reorder = max(k.held()-k.queue.line.Tokens()-fewUses, reorder)
		}
	}
	switch {
	case f.asks():
		k.setReorder(w, reorder)
	case !w.OrderDue(): // it was reached meanwhile
		w.SetReorder(reorder)
	}
}
