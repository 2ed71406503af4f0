package reservoir

import (
	"context"
	"sync"
	"sync/atomic"
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

	account *account // not shared with an earlier entry of the key
	shard   *shard

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
	missed   bool   // a fetch has failed since the last that was answered: a grant may wait for the next statement
	dead     bool   // evicted or closed: look the key up again
}

func (l *Limiter) newEntry(key string, hash uint64, limit Limit) *entry {
	e := &entry{
		l: l, key: key, hash: hash,
		account: l.account.Load(), shard: l.shardOf(key), traffic: &calm, habit: &unknown,
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
	if n > e.limit().Tokens { // as was known
		if err = e.relimit(); err != nil {
			return r, err, false
		}
	}
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
