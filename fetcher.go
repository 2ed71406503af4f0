package reservoir

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/deadline"
)

// entry is one key: its stock, its account with the store, and the callers that
// wait for a fetch.
//
// The hot path (try) reads win and spends from it without the lock. Everything
// else happens under mu, which is never held during I/O, a callback or a wait.
// One fetch is in flight at a time. It belongs to nobody: it runs in a goroutine
// of its own under the limiter's timeout, and each caller waits for its place
// under its own context.
//
// While callers are queued for a fetch under way, the key's unspent tokens are in
// pot, not in win.stock, so that a newcomer on the hot path cannot take what they
// wait for. Otherwise pot is empty.
//
// There may be a million keys, most of them seen once: what only a key in use
// needs is apart (habit, traffic), and shared while it is empty.
type entry struct {
	// What the hot path reads comes first: one cache line.
	key   string
	hash  uint64
	next  atomic.Pointer[entry] // in the table
	win   atomic.Pointer[window]
	l     *Limiter
	bound atomic.Pointer[Limit] // it may change

	denied atomic.Int64

	name  *string // of the account; not shared with an earlier entry of the key
	shard *shard

	mu sync.Mutex
	*traffic
	*habit
	local    *fallback // nil unless the store has been away
	pot      int64     // tokens of win, reserved for the queue
	quiet    int64     // clock time until which not to ask for more than is left; 0 = ask
	granted  int64     // the account in win, cumulative
	returned int64
	flow     int64  // tokens taken and refunded, less the returned and the expired: held or spent
	since    int64  // clock time since which the key is known; 0 = not yet
	seen     uint64 // fingerprint at the last sweep
	clients  int32  // that share the key: the more of this window's and the last one's
	counted  int32  // clients in the ledger, as last heard
	round    uint16 // of release
	futile   uint8  // fetches in a row that helped nobody
	small    bool   // the limit is too small for batches: no more is granted than is needed
	short    bool   // the limit will run out before win ends
	unsure   bool   // a fetch has failed: the store may grant yet, or have granted, what we have not heard
	dead     bool   // evicted or closed: look the key up again
}

func (l *Limiter) newEntry(key string, hash uint64, limit Limit) *entry {
	e := &entry{
		l: l, key: key, hash: hash,
		name: l.account.Load(), shard: l.shardOf(key), traffic: &calm, habit: &unknown,
	}
	e.bound.Store(&l.limit)
	if limit != l.limit {
		own := limit // on the heap only then
		e.bound.Store(&own)
	}
	return e
}

func (e *entry) limit() Limit { return *e.bound.Load() }

// traffic is what is under way for a key: callers that wait, and the fetch.
type traffic struct {
	queue  queue
	flight *flight // nil when no fetch is under way
	only   flight  // what flight points to: there is one at a time
}

// calm is the traffic of all keys that have none. It is never written.
var calm traffic

// busy gives the key a traffic of its own, to write to.
func (e *entry) busy() *traffic {
	if e.traffic == &calm {
		e.traffic = new(traffic)
	}
	return e.traffic
}

// rest drops the traffic when there is none any more.
func (e *entry) rest() {
	if e.flight == nil && e.queue.empty() {
		e.traffic = &calm
	}
}

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

// try decides from memory, without a lock, if that is possible.
func (e *entry) try(r *Result, n int64) bool {
	w := e.win.Load()
	if w == nil {
		return false
	}
	now := e.l.clock.now()
	if now >= w.deadline.Load() {
		return false
	}
	if left, ok := w.spend(n); ok {
		w.admit(r, e.limit().Tokens, n, left, Local) // before a reply changes what remains
		if left <= w.reorder.Load() {
			e.restock(w)
		}
		return true
	}
	if n <= e.limit().Tokens && w.denies(n, now) {
		e.denied.Add(1)
		w.refuse(r, e.limit().Tokens, now, Denied)
		return true
	}
	return false
}

// acquire decides with the lock, and with the store where need be. again means
// that the entry is dead.
func (e *entry) acquire(ctx context.Context, n int64, wait bool) (r Result, err error, again bool) {
	l := e.l
	e.mu.Lock()
	now := l.clock.now()
	if err, again = e.refuses(n); err != nil || again {
		e.mu.Unlock()
		return r, err, again
	}
	e.findShard()
	if w := e.win.Load(); w.alive(now) {
		if e.decide(&r, w, n, now, wait) {
			e.mu.Unlock()
			return r, nil, false
		}
	}
	if e.shard.open.Load() {
		r, err = e.unasked(n, now, wait)
		e.mu.Unlock()
		return r, err, false
	}
	l.count.waited.Add(1)
	if !wait && e.goesDirect(n, now) {
		if r, err, settled := e.direct(ctx, n); settled { // unlocks
			return r, err, false
		}
		e.mu.Lock()
		now = l.clock.now()
	}
	p, err, again := e.enqueue(ctx, n, wait, now)
	e.mu.Unlock()
	if p == nil {
		return r, err, again
	}
	r, err = e.await(ctx, p)
	return r, err, false
}

// refuses reports why the entry serves no request for n: an error, or that it is
// dead and the key must be looked up again.
func (e *entry) refuses(n int64) (err error, again bool) {
	switch {
	case e.l.closed.Load():
		return ErrClosed, false
	case n > e.limit().Tokens:
		return ErrExceedsLimit, false
	}
	return nil, e.dead
}

// decide is try under the lock; a refusal whose quiet time is over also sends
// somebody to look whether tokens have come back.
func (e *entry) decide(r *Result, w *window, n, now int64, wait bool) bool {
	if e.queue.empty() {
		if left, ok := w.spend(n); ok {
			w.admit(r, e.limit().Tokens, n, left, Local)
			return true
		}
	}
	if wait || !e.known(w, n) {
		return false
	}
	if now >= e.quiet && e.flight == nil && !e.shard.open.Load() {
		e.quiet = now + int64(e.limit().Window)/probes
		e.release()
		if e.l.direct {
			return false // the call itself is the probe
		}
		e.l.count.probes.Add(1)
		e.launch(now, n, forProbe)
	}
	e.denied.Add(1)
	w.refuse(r, e.limit().Tokens, now, Denied)
	return true
}

// probes is how often in a window an exhausted key is asked for again by all
// processes together.
const probes = 20

// enqueue reserves a place and sees to it that somebody fetches. A waiter that
// cannot be served before its deadline is told at once.
func (e *entry) enqueue(ctx context.Context, n int64, wait bool, now int64) (p *place, err error, again bool) {
	if err, again = e.refuses(n); err != nil || again {
		return nil, err, again
	}
	p = e.l.places.get(n, wait)
	if d, ok := ctx.Deadline(); ok && wait {
		p.deadline = now + int64(time.Until(d))
	}
	w := e.win.Load()
	if w.alive(now) && e.known(w, n) && e.hopeless(p, w, e.queue.tokens) {
		e.l.places.put(p)
		return nil, ErrDeadline, false
	}
	e.gather()
	e.busy().queue.push(p)
	e.order(now)
	return p, nil, false
}

// hopeless reports whether p's turn, behind ahead tokens, comes only in a window
// that opens after its deadline.
func (e *entry) hopeless(p *place, w *window, ahead int64) bool {
	if p.deadline == 0 {
		return false
	}
	windows := (ahead + p.n - 1) / e.limit().Tokens // after the one that opens next
	return w.ends.Load()+windows*int64(e.limit().Window) > p.deadline
}

// await waits for the outcome of p, for as long as its own context lasts and, if
// it is not a waiter, the fetch timeout.
func (e *entry) await(ctx context.Context, p *place) (Result, error) {
	defer e.l.places.put(p)
	var timeout <-chan time.Time
	if !p.wait {
		t := e.l.places.timer(e.l.fetchTimeout)
		defer e.l.places.stop(t)
		timeout = t.C
	}
	select {
	case <-p.ready:
		return p.result, p.err
	case <-ctx.Done():
		e.leave(p)
		return Result{}, ctx.Err()
	case <-timeout:
		if e.giveUp(p) {
			return e.tired(p)
		}
		return p.result, p.err
	}
}

// tired answers a caller that has waited as long as callers do.
func (e *entry) tired(p *place) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.away(p.n, e.l.clock.now(), p.wait, &StoreError{Op: "sync", Class: backend.Unknown, Err: errNoAnswer})
}

// leave ends p for a caller whose context is over. What it had won meanwhile
// goes to the next, or back to the stock.
func (e *entry) leave(p *place) {
	if e.giveUp(p) || p.win == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.dead || p.win != e.win.Load():
		e.expire(p.n)
	default:
		e.regain(p.n, e.l.clock.now())
	}
}

// giveUp frees p's place and reports whether it was still waiting. Its successor
// may need less.
func (e *entry) giveUp(p *place) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.done {
		return false
	}
	p.done = true
	e.queue.remove(p)
	e.regain(0, e.l.clock.now())
	return true
}

// regain takes n tokens of the current window back from a caller and serves who
// waits.
func (e *entry) regain(n, now int64) {
	e.gather()
	e.pot += n
	e.serve(now)
	e.order(now)
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
	if w != nil && e.futile > 0 && now <= w.ends.Load() {
		return false // the last reply was of a window that is just ending
	}
	return e.queue.once > 0 || !w.alive(now) || now >= e.quiet || !e.known(w, e.queue.head.n)
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
	if most := e.l.sizing.max; most > 0 { // a part of it is granted whatever was asked for
		strand = min(strand, most*clients)
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
		Key: e.key, Client: *e.name, Limit: e.limit(),
		Granted: e.granted, Returned: e.returned, Peers: int64(e.clients), Pace: e.pace.perWindow(e.limit()),
	}
	if w := e.win.Load(); w != nil {
		r.Window = w.id
	}
	return r
}

// fly carries out f. It is the only part of a fetch that is not under the lock.
func (e *entry) fly(f *flight) {
	l := e.l
	defer l.flights.Done()
	if err := e.relimit(); err != nil {
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
		e.unsure = true
		e.fail(f.turn, now, err)
	} else {
		if f.owed > 0 && (reply.Window == f.req.Window || reply.Carried) {
			e.told()
		}
		e.apply(f.req, reply, sent, now)
		e.answer(f.turn, now)
		e.repay(now)
	}
	e.order(now)
	e.schedule(now)
}
