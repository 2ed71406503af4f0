package reservoir

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/deadline"
)

// flight is a fetch under way.
type flight struct {
	req     backend.SyncRequest
	cause   cause
	reason  string // for the size of the batch
	ordered int64  // clock time, before its goroutine had to find a processor
	turn    uint64 // the last place that it was sized for
	shard   *shard
	owed    int64 // tokens admitted without the store, of which it is told
}

// charged reports whether the store has charged what it was owed.
func (f *flight) charged(reply backend.SyncReply) bool {
	return f.owed > 0 && (reply.Window == f.req.Window || reply.Carried)
}

// order starts a fetch if callers wait that one could help now. If none could
// before some instant, a timer is set for that, and others may have the stock.
func (e *entry) order(now int64) {
	if e.flight == nil && !e.queue.empty() && !e.dead && !e.l.closed.Load() {
		if e.helps(e.win.Load(), now) {
			e.fetch(now)
		} else {
			e.schedule(now)
		}
	}
	if e.flight == nil || e.queue.empty() {
		e.release()
	}
	e.rest()
}

// fetch is for those that are queued, unless the shard is known to be away.
func (e *entry) fetch(now int64) {
	if e.shard.open.Load() {
		e.fail(e.queue.turns, now, errAway)
	} else {
		e.launch(now, 0, forWaiters)
	}
}

// helps reports whether a fetch could serve the queue: unless only waiters for
// the reset are in it, and the first is known to need more than there is.
func (e *entry) helps(w *window, now int64) bool {
	if e.ending(w, now) {
		return false
	}
	return e.queue.once > 0 || !w.alive(now) || now >= e.quiet || !e.known(w, e.queue.head.n)
}

// ending reports whether w is over by one of its bounds and not by the other, and
// the last fetch was told of no later window: it takes a moment until there is one.
func (e *entry) ending(w *window, now int64) bool {
	return e.futile > 0 && w != nil && !w.alive(now) && now <= w.ends.Load()
}

// launch starts a fetch for all that wait, and extra tokens that nobody waits for.
func (e *entry) launch(now, extra int64, why cause) {
	if !e.queue.empty() {
		e.gather()
	}
	if e.since != 0 {
		e.learn()
	}
	e.watch(now)
	size, reason := e.plan(now)
	need := min(max(e.queue.tokens-e.pot, 0)+extra, e.limit().Tokens)
	f := e.report(now, why)
	f.reason = reason
	f.req.Need, f.req.Want = need, max(size, need)
	f.req.Strand = e.strand()
	if e.learned() {
		e.batch, e.spent = f.req.Want, e.spentBy(now)
	}
	e.send(f)
}

// strand is how many tokens may lie idle in all processes together, by which the
// store guides its grants; negative where it does not.
func (e *entry) strand() int64 {
	if !e.l.guided() {
		return -1
	}
	limit, clients := e.limit().Tokens, int64(max(e.clients, 1))
	strand := int64(e.l.stranding * float64(limit))
	early := clients * e.pace.reorder(e.shard.time()) // in hand when a batch is ordered
	switch strand -= min(early, strand/2); {
	case e.batch == 0: // how many peers there are is still to be heard
		strand = min(strand, max(limit/firstPart, 1))
	case strand > 0: // a batch that is gone before the next one comes strands nothing
		strand = max(strand, min(early, limit))
	}
	if most := e.l.sizing.max; most > 0 && most <= strand/clients { // a part of it is granted whatever was asked for
		strand = most * clients
	}
	return strand
}

// state tells the store the account and asks for nothing.
func (e *entry) state(why cause) { e.send(e.report(e.l.clock.now(), why)) }

// report is a fetch that states the account, and what was admitted while the
// store was away: to the store that looks like a grant which it has forgotten.
func (e *entry) report(now int64, why cause) flight {
	owed := e.confess(now)
	return flight{req: e.statement(), cause: why, owed: owed}
}

func (e *entry) send(only flight) {
	f := e.depart(only)
	f.ordered = e.l.clock.now()
	e.l.flights.Add(1)
	go e.fly(f)
}

// depart makes f the fetch under way, for all that are in the queue by now.
func (e *entry) depart(f flight) *flight {
	if f.cause != forReopening { // the shard that asked for a probe is to hear of it
		e.findShard()
	}
	t := e.busy()
	t.only = f
	t.only.turn, t.only.shard = t.queue.turns, e.shard
	t.flight = &t.only
	return t.flight
}

// plan asks the policy for a batch. It changes nothing.
func (e *entry) plan(now int64) (int64, string) {
	if e.l.direct {
		return 0, "direct"
	}
	left := e.limit().Window
	w := e.win.Load()
	if w.alive(now) {
		left = time.Duration(w.deadline.Load() - now)
	}
	return e.l.sizing.size(e.pace, observation{
		limit: e.limit(), left: left, lasts: e.lastsFrom(w, now), last: e.batch, spent: e.spentBy(now) - e.spent,
		stock: e.held(now) - e.pot, waiting: e.queue.tokens,
	})
}

// statement is the account as it stands, asking for nothing.
func (e *entry) statement() backend.SyncRequest {
	r := backend.SyncRequest{
		Key: e.key, Client: e.account.client, Limit: e.limit(),
		Granted: e.granted, Returned: e.returned, Peers: int64(e.clients), Pace: e.pace.perWindow(e.limit()),
	}
	if w := e.win.Load(); w != nil {
		r.Window = w.id
		if r.Total = e.total; r.Total > 0 {
			r.Used = w.used()
		}
	}
	return r
}

// receive takes in the reply to f and serves the queue. What comes when the limiter
// has been closed is not spent any more.
func (e *entry) receive(f *flight, reply backend.SyncReply, sent, now int64) {
	if e.dead {
		e.take(reply.Grant)
		e.expire(reply.Grant)
		return
	}
	e.apply(f.req, reply, sent, now)
	e.answer(f.turn, now)
	e.repay(now)
}

// fly carries out f. It is the only part of a fetch that is not under the lock.
func (e *entry) fly(f *flight) {
	l := e.l
	defer l.flights.Done()
	if err := e.relimit(); err != nil && f.cause != forReopening { // all wait for a probe's outcome
		e.mu.Lock()
		defer e.mu.Unlock()
		e.flight = nil
		now := l.clock.now()
		e.fail(f.turn, now, err)
		e.order(now)
		return
	}
	comply(&f.req, e.limit())
	ctx := deadline.After(l.fetchTimeout)
	sent := l.clock.now()
	reply, err := l.sync(ctx, f)
	ctx.Release()
	if err == nil {
		f.shard.heard(time.Duration(l.clock.now() - f.ordered))
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	now := l.clock.now() // not before the lock: who is served must be in time now
	e.flight = nil
	if err != nil {
		e.unsure, e.missed = true, true
		e.fail(f.turn, now, err)
	} else {
		if f.charged(reply) {
			e.told()
		}
		e.receive(f, reply, sent, now)
	}
	e.order(now)
	e.schedule(now)
}
