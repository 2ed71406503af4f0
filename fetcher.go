package reservoir

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// keyState is one key: the lease from which requests are served, the account with the
// store, the callers in line and the fetch for them.
//
// The hot path (try) reads the lease and spends from it without the lock. Everything
// else is an event (a caller, a reply, a timer, a refund), except the end of the key and
// Stats, which leave nothing to decide. An event changes the parts by their methods, under
// mu, in methods called …Locked. It ends with advanceLocked, which serves the line and
// makes the one decision of package next. A fetch starts after mu is unlocked, because mu
// is never held during I/O, a callback or a wait.
//
// A limiter may have a million keys, most of them seen once, so fields that only some keys
// need (busy, use, fallback) are pointers, nil until then.
type keyState struct {
	// The fields that the hot path reads come first, in one cache line.
	lease  atomic.Pointer[lease.Lease]
	l      *Limiter
	bound               // the limit, which may change
	denied atomic.Int64 // requests refused
	node   *keytable.Node[keyState]

	shard *shard

	mu       sync.Mutex
	account  account.Account
	busy     *busy     // nil while nobody waits and nothing is in flight
	use      *usage    // nil until the second fetch
	fallback *fallback // nil unless the store has been away

	deniedUntil int64  // until when the store surely has too little for some caller; 0 = ask the store
	firstFetch  int64  // time of the first fetch; 0 = none yet
	mark        uint64 // fingerprint at the last sweep
	largest     most   // the largest request since the last observation of demand
	clients     uint16 // that share the key: the larger count of this window and the last
	reported    uint16 // clients in the store's last reply
	short       bool   // the limit will run out before the window ends
	low         bool   // the stock has fallen to the re-order point, and no batch came since
	replyLost   bool   // a fetch has failed, and no last statement was answered since: a grant may wait in the store
	plan        plan   // whether the limit is special; if so, bound is an older limit
	leaving     bool   // the key is idle, and is forgotten when the store has confirmed its returns
	lastDue     bool   // if so, its last statement, which says that it leaves, is not confirmed yet
	retired     bool   // forgotten or closed: look the key up again
	inLine      uint8  // for which classes of calls the key stands in line at its shard; see next.Facts
}

// busy has the callers in line and the fetch in flight. A nil *busy has neither.
type busy struct {
	line     waiters.Line[outcome]
	reserved int64  // tokens of the lease, for the line
	fetch    *fetch // there is one at a time; nil = none
	unserved int    // fetches in a row that served nobody

	asked      uint64 // the failure policy has no answer for the callers in line up to this one, but Rejected
	policyLeft int64  // tokens that it still admitted when they were asked about
}

// nobody is the empty line of a nil *busy. It is never written.
var nobody waiters.Line[outcome]

func (b *busy) callers() *waiters.Line[outcome] {
	if b == nil {
		return &nobody
	}
	return &b.line
}

func (b *busy) held() int64 {
	if b == nil {
		return 0
	}
	return b.reserved
}

// unreserve takes out all reserved tokens.
func (b *busy) unreserve() int64 {
	n := b.held()
	if n > 0 {
		b.reserved = 0
	}
	return n
}

func (b *busy) inFlight() bool { return b != nil && b.fetch != nil }

// publish gives the hot path the tokens that the line does not need, and lets it refuse
// until denied. While a fetch is in flight for callers in line, tokens stay reserved and
// nobody is refused without the lock, because the fetch may bring enough.
func (b *busy) publish(w *lease.Lease, denied int64) {
	if w == nil || b.inFlight() && b.line.Active() > 0 {
		return
	}
	w.Publish(b.unreserve(), denied)
}

// outcome is the answer to a caller in line.
type outcome struct {
	Result
	err   error
	lease *lease.Lease // the lease that paid, if allowed
}

type waiter = waiters.Waiter[outcome]

// unchanged is what an event's change returns if it has changed nothing that a fetch or
// the line depends on.
const unchanged = -1

// event changes the key, and starts the fetch that is due after that.
func (k *keyState) event(change func(now int64) (wanted int64)) {
	if f := k.update(change); f != nil {
		go f.run()
	}
}

// update is the part of an event under the lock. change returns how many tokens a probe
// must ask for, because a caller was refused though its denial is over.
func (k *keyState) update(change func(now int64) (wanted int64)) *fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now() // read under the lock, because served callers must be in time now
	if wanted := change(now); wanted != unchanged {
		return k.advanceLocked(now, wanted, nil)
	}
	return nil
}

// try decides from memory, without a lock, if that is possible.
func (k *keyState) try(r *Result, n int64) bool {
	w := k.lease.Load()
	if w == nil {
		return false
	}
	now := k.l.clock.Now()
	if !w.Alive(now) {
		return false
	}
	if left, ok := w.Spend(n); ok {
		r.admit(k, w, now, n, left, Local) // before a reply changes what remains
		if n > 1 {
			k.largest.record(n)
		}
		k.orderIfLow(w, left)
		return true
	}
	if n <= k.bound.Load().Tokens && w.Denies(n, now) {
		k.denied.Add(1)
		r.refuse(k, w, now, Denied)
		return true
	}
	return false
}

// orderIfLow orders a batch if left, the stock of w after a spend, is at the re-order
// point. Only one of the callers that find it there orders.
func (k *keyState) orderIfLow(w *lease.Lease, left int64) {
	if !w.ClaimReorder(left) {
		return
	}
	k.event(func(int64) int64 {
		if k.lease.Load() != w || k.retired {
			return unchanged
		}
		k.low, k.leaving = true, false
		return 0
	})
}

// acquire decides under the lock, and asks the store if needed.
func (k *keyState) acquire(ctx context.Context, n int64, stay bool) (r Result, err error) {
	w, decided, err := k.decide(ctx, &r, n, stay, k.l.limits == nil)
	var limit Limit // as asked for in this call, if so
	if err == errOldLimit {
		if limit, err = k.l.relimit(k, nil); err == nil {
			w, decided, err = k.decide(ctx, &r, n, stay, true)
		}
	}
	switch {
	case err != nil || decided:
	case w == nil:
		if limit, err = k.l.relimit(k, nil); err == nil {
			r, err = k.l.takeFor(ctx, k, n, false)
		}
	default:
		r, err = k.await(ctx, w)
	}
	switch {
	case err == errSpecial:
		return k.l.acquireStateless(ctx, k.node.Key, limit, n, stay)
	case stay && err == nil && !r.Allowed && !r.Shadowed: // the limit has just left shadow
		err = errStartOver
	}
	return r, err
}

// decide answers the caller from memory or by the failure policy, or puts it in line as w.
// If it does neither, the caller makes a direct call. Unless the limit is known to be the
// present one, decide may want it to be looked up first.
func (k *keyState) decide(ctx context.Context, r *Result, n int64, stay, present bool) (w *waiter, decided bool, err error) {
	k.event(func(now int64) int64 {
		limit := k.limit()
		stay := stay && !limit.Shadow // nobody waits for a limit in shadow
		switch {
		case k.l.closed.Load():
			err = ErrClosed
		case k.retired:
			err = errStartOver
		case !present && k.oldLocked(n, now):
			err = errOldLimit
			return 0
		case k.plan != counted:
			err = errSpecial
		case n > limit.Tokens:
			*r, err = k.tooMuchLocked(now)
			decided = true
		}
		if err != nil || decided {
			return unchanged
		}
		k.leaving = false // a caller has come
		k.findShardLocked()
		var wanted int64
		if wanted, decided = k.fromMemoryLocked(r, n, stay, now); decided {
			return wanted
		}
		if k.shard.Open() {
			if decided, err = k.policyLocked(r, n, stay, now, k.shard.openError()); decided && r.Allowed && k.owedLocked() == n {
				return 0 // the first debt: to look again even without traffic, because it must be charged
			} else if decided {
				return unchanged
			}
		}
		if k.use != nil && now < k.use.conflict {
			err = ErrConflict
			return unchanged
		}
		k.l.count.waited.Add(1)
		if k.l.direct && !stay && k.owedLocked() == 0 { // debt is stated first, while its window is open
			return unchanged
		}
		w = k.l.waiters.Get(n, stay)
		if d, ok := ctx.Deadline(); ok && stay {
			w.Deadline = now + min(int64(time.Until(d)), math.MaxInt64-now)
		}
		if k.busy == nil {
			k.busy = new(busy)
		}
		k.busy.line.Push(w)
		return 0
	})
	return w, decided, err
}

// fromMemoryLocked is try under the lock. It serves nobody before the callers in line: an
// Allow waits behind the active ones, a Wait behind all. If a refusal's denial is over, it
// also asks for a probe, which nobody waits for.
func (k *keyState) fromMemoryLocked(r *Result, n int64, stay bool, now int64) (wanted int64, decided bool) {
	w := k.lease.Load()
	if !w.Alive(now) {
		return unchanged, false
	}
	if line := k.busy.callers(); line.Active() == 0 && (!stay || line.Parked() == 0) {
		if left, ok := w.Spend(n); ok {
			r.admit(k, w, now, n, left, Local)
			if k.largest.record(n); w.ClaimReorder(left) {
				k.low = true
				return 0, true
			}
			return unchanged, true
		}
	}
	if stay || k.deniedUntil == 0 || n <= w.Available()+k.busy.held() {
		return unchanged, false
	}
	wanted = unchanged
	if now >= k.deniedUntil && !k.busy.inFlight() && !k.shard.Open() {
		k.deniedUntil = now + int64(k.limit().Window)/probes
		wanted = n
	}
	k.denied.Add(1)
	r.refuse(k, w, now, Denied)
	return wanted, true
}

// probes is how often in a window all processes together ask again for an exhausted key.
const probes = 20

// await waits for the outcome of w until ctx ends. The fetch that w waits for ends by its
// own timeout, and so does the fetch before; the timer is only for a store that does not
// return.
func (k *keyState) await(ctx context.Context, w *waiter) (Result, error) {
	defer k.l.waiters.Put(w)
	var timeout <-chan time.Time
	if !w.Stays {
		timeout = w.After(k.l.fetchTimeout + slack)
		defer w.Timer.Stop()
	}
	for {
		select {
		case <-w.Ready:
			return w.Outcome.Result, guard.Raise(w.Outcome.err)
		case <-ctx.Done():
			k.cancel(w)
			_ = guard.Raise(w.Outcome.err) // a panic that came meanwhile, which nobody else may get
			return Result{}, ctx.Err()
		case <-timeout:
			k.event(func(now int64) int64 {
				again := k.l.fetchTimeout
				if k.busy.inFlight() {
					if left := time.Duration(k.busy.fetch.ordered-now) + k.l.fetchTimeout + slack; left > 0 {
						again = left
					} else {
						k.answerLocked(k.busy.line.Last(), now, &StoreError{Op: "sync", Class: backend.Unknown, Err: errNoAnswer})
					}
				}
				w.Timer.Reset(again)
				return unchanged
			})
		}
	}
}

// slack is how much later than the fetch timeout a fetch may end before its waiters are
// answered without it. A store should obey its context.
const slack = 20 * time.Millisecond

// cancel takes w out of the line for a caller whose context has ended. Tokens that w got
// meanwhile are refunded: they go to the next waiter, or back to the stock.
func (k *keyState) cancel(w *waiter) {
	k.event(func(now int64) int64 {
		paid := w.Outcome.lease
		switch {
		case !w.Done():
			k.busy.line.Remove(w)
			return 0
		case paid == nil:
			wanted, _ := k.refundFallbackLocked(&w.Outcome.Result, w.N, now) // if it was admitted without the store
			return wanted
		}
		k.l.extra.add(k, 1)
		k.l.count.refunded.Add(w.N)
		if k.retired || paid != k.lease.Load() { // when the key left the window, leaveLocked counted them
			takeUpTo(&k.l.count.left, w.N)
			k.l.count.expired.Add(w.N)
			return unchanged
		}
		k.account.Refund(w.N)
		k.putBackLocked(paid, w.N)
		return 0
	})
}

// putBackLocked puts n tokens back into the stock of w or, if nobody may spend from it, on
// their way to the store.
func (k *keyState) putBackLocked(w *lease.Lease, n int64) {
	if k.plan != counted {
		k.account.Return(n)
		return
	}
	w.Publish(n, 0)
}

// serveLocked serves the line; nothing else decides which callers in line are served. They
// can get the tokens at hand and those that the store has left. fresh says that the
// store's rest was read just now. Otherwise it is known only while the key is denied, and
// a caller that cannot be served at once waits for a fetch.
func (k *keyState) serveLocked(now int64, fresh bool) {
	line := k.busy.callers()
	if line.Empty() {
		return
	}
	w := k.lease.Load()
	left := int64(math.MaxInt64)
	var hand int64
	var to waiters.Windows // not needed before left is known
	if w.Alive(now) {
		k.busy.reserved += w.Reserve()
		hand = k.busy.reserved
		if fresh || k.deniedUntil != 0 && now < k.deniedUntil {
			limit := k.bound.Load()
			left, to = w.Remaining(), waiters.Windows{Next: now + int64(w.RetryAfter(now)), Length: int64(limit.Window), Tokens: limit.Tokens}
		}
	}
	line.Serve(hand, left, to, func(c *waiter, v waiters.Verdict) {
		line.Notify(c, k.verdictLocked(c, w, v, now))
	})
	if k.deniedUntil == 0 && line.Parked() > 0 { // the store has too little
		k.denyLocked(w, now)
	}
	if k.shard.Open() { // the others get none
		k.answerLocked(line.Last(), now, k.shard.openError())
	}
}

// verdictLocked makes the outcome of a caller in line whose wait is over.
func (k *keyState) verdictLocked(c *waiter, w *lease.Lease, v waiters.Verdict, now int64) (o outcome) {
	if v != waiters.Grant && k.deniedUntil == 0 { // the store has too little
		k.denyLocked(w, now)
	}
	switch v {
	case waiters.Grant:
		k.busy.reserved -= c.N
		k.largest.record(c.N)
		o.Result.admit(k, w, now, c.N, k.busy.reserved, Fetched)
		o.lease, k.busy.unserved = w, 0
	case waiters.Refuse:
		k.denied.Add(1)
		o.Result.refuse(k, w, now, Fetched)
		o.Remaining = min(o.Remaining+k.busy.reserved, o.Limit)
		k.busy.unserved = 0
	case waiters.Miss:
		o.err = ErrDeadline
	}
	return o
}

// denyLocked caches the denial until it is this process' turn to probe, or the window
// ends. Turns are random: the mean between two of them is the common interval times the
// number of processes.
func (k *keyState) denyLocked(w *lease.Lease, now int64) {
	u, doubt := k.usageLocked(), 1.0
	if !u.IsExhausted() {
		u.observe(k, now)
		u.Exhausted(now)
		if k.clients > few {
			doubt = 2 // more processes will come: the store counts only those that have asked
		}
	}
	window := k.limit().Window
	turn := chance.Interval(window/probes).Seconds() * float64(max(k.clients, 1)) * doubt
	k.deniedUntil = w.LatestEnd()
	if left := time.Duration(k.deniedUntil - now); turn < left.Seconds() { // turn may be thousands of years
		k.deniedUntil = now + int64(turn*float64(time.Second))
	}
	if u.recheck <= now {
		u.recheck = now + int64(window)/probes
	}
}

// few is the number of processes above which most are still to ask when the first are
// refused.
const few = 4
