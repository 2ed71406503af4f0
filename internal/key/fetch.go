package key

import (
	"errors"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/slots"
)

// Fetch is a statement to the store, from its order to the reply. The limiter sends it, and
// calls its methods from one goroutine.
type Fetch struct {
	Req    backend.SyncRequest
	Cause  next.Cause
	Reason string // for the size of the batch
	Shard  *Shard

	k       *Key
	last    uint64      // sequence number of the last caller that it was sized for
	ordered int64       // time of the order, before its goroutine was scheduled
	slot    *lane       // whose slot it has; nil if it needs none
	late    *time.Timer // frees the slot if the call does not end in time
}

// asks reports whether the statement asks for a batch; others only state the account.
func (f *Fetch) asks() bool {
	return f.Cause == next.Waiters || f.Cause == next.Probe || f.Cause == next.Reset || f.Cause == next.Prefetch
}

// order orders a fetch: it writes the statement, which may ask for a batch. From the second
// fetch on it first brings the demand estimate up to date. Most keys are fetched for once,
// and one observation says nothing.
func (k *Key) order(why next.Cause, now, probe, surplus int64) *Fetch {
	k.findShard()
	f := &Fetch{k: k, Cause: why, ordered: now, Shard: k.shard, last: k.queue.callers().Last()}
	switch why {
	case next.Return:
		f.giveBack(surplus)
		k.use.demand().EndRun()
		if k.use != nil && k.use.recall.called != 0 {
			k.use.recall.called = 0
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
	}
	f.state(now)
	if f.asks() {
		f.size(probe)
	}
	k.queued().fetch = f
	return f
}

// giveBack takes the surplus out of the stock, unless it has been used meanwhile.
func (f *Fetch) giveBack(surplus int64) {
	k := f.k
	if surplus == 0 {
		return
	}
	w := k.lease.Load()
	if _, ok := w.Spend(surplus); !ok {
		return
	}
	k.account.Return(surplus)
	w.AddRemaining(surplus)
	k.allow() // a caller who comes now may get what goes back
	if !k.idle() && !k.env.Direct {
		k.env.Counts.GiveBacks.Add(1)
	}
}

// state states the account and asks for nothing.
func (f *Fetch) state(now int64) {
	k := f.k
	w, t := k.lease.Load(), k.terms.Load()
	q := &f.Req
	*q = backend.SyncRequest{
		Key: k.env.Stored(k.node.Key), Client: k.env.client(k.node.Tag),
		Peers: int64(k.clients), Pace: k.use.demand().PerWindow(t.Limit), Leaving: k.idle(),
	}
	if t.Rolls {
		q.Pace = k.use.demand().Pace(t.Limit, now, k.spent())
	}
	q.Limit, q.OpenLength, q.End, q.Next = t.openings(w, now)
	if q.Idle = k.idleHere(q.Key); k.use != nil {
		q.Waited = k.use.recall.again > 0 && now >= k.use.recall.again
	}
	if w != nil {
		k.account.State(q, w.Window, k.held())
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
	if !s.Direct {
		q.Want, f.Reason = s.batch(k.spent(), hand-forLine, line.Tokens())
		if q.Want = max(q.Want, q.Need); s.small {
			q.Want, f.Reason = q.Need, "small"
		}
	}
	q.Exact = s.exact()
	f.goOn(&s)
	s.demand.Asked(q.Want, k.spent())
}

// goOn says how long the run of this process is, if messages can call back what it brings. A
// small limit has batches only while one lasts.
func (f *Fetch) goOn(s *situation) {
	q := &f.Req
	if f.Cause == next.Probe || !s.guided() || q.Idle < 0 || s.limit.Rolls || !s.lease.Alive(s.now) {
		return
	}
	q.Run = s.demand.Run()
	most := s.limit.Tokens
	if s.Sizing.Max > 0 {
		most = min(most, s.Sizing.Max)
		q.Run = min(q.Run, most)
	}
	if s.small && float64(q.Run) > s.demand.Size() {
		q.Want, q.Exact, f.Reason = max(q.Want, min(q.Need+q.Run, most)), false, "run"
	}
}

// relimit writes the statement anew for a limit that has changed since.
func (f *Fetch) relimit(now int64) {
	q, t := &f.Req, f.k.terms.Load()
	q.Limit, q.OpenLength, q.End, q.Next = t.openings(f.k.lease.Load(), now)
	most := q.Limit.Tokens
	q.Want, q.Need, q.Least, q.Pace, q.Run = min(q.Want, most), min(q.Need, most), min(q.Least, most), min(q.Pace, most), min(q.Run, most)
	if t.plan != Counted { // what it brought would only have to go back
		q.Want, q.Need, q.Least = 0, 0, 0
	}
}

// Begin brings the statement up to date, immediately before it is sent. It may ask for the
// key's limit, and returns the error of that. A key whose limit is of another kind by now still
// leaves, under the old one; otherwise it would stay in memory for good.
func (f *Fetch) Begin() error {
	if f.k.env.Varies() {
		f.bound(slots.Unused)
		if _, err := f.k.AskLimit(f); err != nil && !(f.Req.Leaving && errors.Is(err, ErrConflict)) { // it may block or panic
			return err
		}
	}
	f.bound(slots.Failed)
	return nil
}

// Trip is how the call of a fetch has ended.
type Trip struct {
	Made      bool // it was made
	Sent, End int64
	Duration  time.Duration
}

// End applies the reply to f, or the error of its call, and serves the line. It returns the
// error of f, and whether a caller has got it.
func (f *Fetch) End(c Trip, reply backend.SyncReply, err error) (_ error, received bool) {
	k := f.k
	var idle bool
	k.event(func(now int64) effect {
		k.queue.fetch = nil
		switch {
		case err != nil:
			received = f.failed(now, err) > 0
		case k.phase == phaseRetired:
			k.env.Counts.Move(account.Moved{Taken: reply.Grant, Expired: reply.Grant})
		case reply.Conflict && !k.adopts(reply.State, reply.Clients, c.Sent):
			err = ErrConflict
			k.conflict(reply.State, now)
			received = f.failed(now, err) > 0
		default:
			f.Shard.ObserveLead(time.Duration(c.End - f.ordered))
			waits := f.awaits(c, reply, now)
			f.apply(reply, waits, c.Sent, now)
			if w := k.lease.Load(); w.Doubted() { // a Reset has overtaken the reply
				waits = true
				k.void(w, now)
			}
			k.serve(now, !waits && k.terms.Load().Tokens <= f.Req.Limit.Tokens)
			if !waits {
				f.countUnserved(now)
			}
		}
		idle = k.idle()
		return changed
	})
	if idle {
		k.Retire(true)
	}
	f.freeSlot(c, err)
	return err, received
}

// failed answers callers after f has failed. If f has timed out, it also answers the
// callers that came while f was in flight, because they have waited long enough. Otherwise
// they get a fetch of their own.
func (f *Fetch) failed(now int64, err error) (answered int) {
	k, last := f.k, f.last
	k.replyLost = true // even if the call was turned away: an earlier attempt may have arrived
	if now-f.ordered >= int64(k.env.Timeout) {
		last = k.queue.line.Last()
	}
	u, longest := k.usage(), LongestPause
	u.failedAt, u.rejected = now, !Outage(err)
	if u.rejected { // no circuit spares the store the calls of all other keys
		longest = min(max(longest, k.terms.Load().Window/chargePart), time.Minute)
	}
	u.backOff(now, longest)
	return k.answer(last, now, err)
}

// countUnserved counts fetches in a row that served none of their callers, because the grants
// came after the end of their window. The next fetch opens a new window. If that happens
// three times, the network is slower than the window.
func (f *Fetch) countUnserved(now int64) {
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
	f.k.answer(f.last, now, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: ErrTooSlow})
}

// apply applies the reply to f. The reply is one of three: the open window has another
// length, and nothing has changed; figures of a window that the key has left meanwhile; or,
// nearly always, the account as the store has it, and a grant.
func (f *Fetch) apply(r backend.SyncReply, waits bool, sent, now int64) {
	k := f.k
	k.env.Counts.Reasserted.Add(r.Reasserted)
	if f.Req.Leaving && !r.Conflict {
		if k.replyLost = false; k.phase == phaseLeaving {
			k.enter(phaseLeft)
		}
	}
	if u := k.use; u != nil {
		u.backoff, u.pause, u.rejected, u.replied = 0, 0, false, now
	}
	if r.Conflict {
		k.read(r.State, r.Length, sent, now)
		return
	}
	w := k.lease.Load()
	if w != nil && w.Window != f.Req.Window && !f.Req.Limit.Rolls { // left meanwhile: the store will hand the grant over again
		k.replyLost = true
		k.usage().failedAt = now
		return
	}
	k.env.Counts.Recovered.Add(r.Recovered)
	w = f.book(w, r, sent, now)
	if k.found(r.Window, now); w == nil { // nothing is charged, and so no window is open
		return
	}
	k.use.demand().Got(r.Grant, f.Req.Limit.Tokens-r.Remaining-r.Grant-f.Req.Used)
	if k.use != nil && k.use.charge != 0 { // debt settled during the fetch can wait, too
		k.use.charge = k.chargeAt(w, now)
	}
	k.clients = max(k.reported, k.clients)
	denied := !waits && f.showsDenial(r, w)
	w.Apply(r.State, Rolling(k.terms.Load().Limit), sent, now)
	k.queue.reserved += w.Reserve() + r.Grant
	f.believes(r)
	f.forecast(r, w, denied, now)
}

// showsDenial reports whether r shows that the store has too little for some caller: it has
// nothing, too little for the first one that f was made for, or no more than when a caller
// was refused. The reading is newer than the denial, unless the limit was raised since.
func (f *Fetch) showsDenial(r backend.SyncReply, w *lease.Lease) bool {
	k := f.k
	none := r.Remaining == 0 || r.Grant < f.Req.Least || k.deniedUntil != 0 && r.Remaining <= w.Remaining()
	return none && f.Req.Limit.Tokens >= k.terms.Load().Tokens
}

// book applies the reply to the account, and enters the reply's window. Tokens held in the
// window before have expired, unless the store has carried them over. Debt that the store
// has charged is no burst of demand, because it was used over the whole outage.
func (f *Fetch) book(w *lease.Lease, r backend.SyncReply, sent, now int64) *lease.Lease {
	k := f.k
	var held int64
	spent := k.spent()
	same := account.Same(f.Req, r)
	slides := w != nil && same && f.Req.Limit.Rolls
	moved := !slides && (w == nil && r.Window != 0 || w != nil && (w.Window != r.Window || !same))
	if moved {
		held = k.drain()
		if !same {
			k.settleLater(held)
		}
		if p := k.fallback; same && w != nil && p != nil && p.home == w.Window {
			p.home = r.Window
		}
	}
	m := k.account.Apply(f.Req, r, held)
	k.env.Counts.Move(m)
	k.env.Counts.Extra.Add(k.node.Hash, m.Taken-r.Grant)
	if moved {
		if r.Window != 0 {
			k.replace(k.terms.Load().opened(k.lengthOf(r.State, f.Req.Limit.Window, r.Clients, sent)))
		}
		w = k.enterWindow(r.Window, spent, now)
		if w != nil && same {
			k.queue.reserved += held
		}
	}
	if slides {
		w = k.slide(w, r)
	}
	if k.fallback != nil {
		k.use.demand().Skip(m.Taken - r.Grant)
	}
	k.reported = uint16(min(r.Clients, math.MaxUint16)) // not before enterWindow, which keeps the last window's count
	return w
}

// fewUses is how many tokens of a key's first batch are used before the key counts as one in
// use, whose demand is estimated. Most keys are used less.
const fewUses = 3

// forecast derives from a reply what to expect of the rest of the window.
func (f *Fetch) forecast(r backend.SyncReply, w *lease.Lease, denied bool, now int64) {
	k, limit := f.k, f.k.terms.Load().Limit
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
	if f.Req.Idle >= 0 {
		worth = max(worth, s.floor()/2)
	}
	small := s.small || r.Learning || r.Grant < min(f.Req.Want, worth)
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
